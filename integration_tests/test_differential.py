"""The embedded TubeMQ answers as the Java one: the same calls to both, and the answers field by field.

There are two embedded ones: one is set to do what the Java one does with messages in memory, or in files,
the other has its default settings. All live for the whole module and get every call in the same order, so
that their logs stay alike. What may differ is in ``differential/allowed.py`` and, argued, in
docs/testing/embedded-differences.md.

``TUBEMQ_DIFFERENTIAL_SEQUENCES`` (100) and ``TUBEMQ_SEED`` (by the commit) ask for longer or other runs.
The Java broker keeps the messages of some 5000 sequences in memory; more need several seeds.
"""

import contextlib
import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, seed, settings

from integration_tests.differential.allowed import explanation
from integration_tests.differential.calls import FILED_TOPICS, TOPICS, call_of
from integration_tests.differential.compare import compare, flat
from integration_tests.differential.drive import Servers, Target
from integration_tests.differential.requests import filing, reading_files, sequences
from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.processes import wait_until
from integration_tests.rig.runs import choose_seed
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ, TopicSpec as EmbeddedSpec

SEQUENCES = int(os.environ.get("TUBEMQ_DIFFERENTIAL_SEQUENCES", "100"))
FILE_SEQUENCES = max(SEQUENCES // 5, 1)
LEAST_FROM_MEMORY = {"as java": 0.9, "by default": 0.8}
LEAST_FROM_FILES = {"as java": 1.0, "by default": 0.4}
"""Of the calls that were made, so many must be compared: a sequence ends at the first difference that parts
the servers. From memory that is a fetch of what is in the active block, in the last quarter of a sequence;
from files the first fetch of more than half of the entries, which comes early."""

pytestmark = pytest.mark.timeout(300 + SEQUENCES)

KEPT_FILE = Path(__file__).parent / "differential" / "kept.json"
KEPT = json.loads(KEPT_FILE.read_text(encoding="utf-8"))
"""Sequences that the servers once answered differently, and one for each difference that is allowed."""

IN_MEMORY = {"memCacheMsgSizeInMB": 128, "memCacheMsgCntInK": 100, "memCacheFlushIntvl": 36_000_000}
"""The Java broker keeps the messages in memory: what it shows of its files depends on when it wrote them."""

NEVER = 1 << 31

JAVA_SETTINGS = {"lease_timeout_ms": 20_000, "query_priority": 301}
"""What the Java servers are set to, or have by default, where the embedded one has its own default."""

FIRST_FROM_MEMORY = {"first_transfer_bytes": 512 << 10}
"""How much a first fetch returns from memory; from its files it is the embedded server's default."""
AS_FROM_MEMORY = EmbeddedSettings(moving_404=True, **FIRST_FROM_MEMORY, **JAVA_SETTINGS)
AS_FROM_FILES = EmbeddedSettings(halving_quirk=True, **JAVA_SETTINGS)
"""How the embedded server does what a Java broker does that reads from memory, and from its files."""


@pytest.fixture(scope="module")
def compared_java():
    """The Java servers, with the topics of both kinds."""
    require_real_tubemq()
    in_memory = {name: TopicSpec(*shape, properties=IN_MEMORY) for name, shape in TOPICS.items()}
    filed = {name: TopicSpec(*shape) for name, shape in FILED_TOPICS.items()}
    with RealTubeMQ(in_memory | filed) as running:
        yield running


@contextlib.contextmanager
def together(java, topics, as_java, by_default, **flushing):
    """Start embedded servers with these topics, and drive them together with the Java one."""
    specs = {name: EmbeddedSpec(*shape, **flushing) for name, shape in topics.items()}
    stores = [(name, store) for name, (count, _) in topics.items() for store in range(count)]
    with contextlib.ExitStack() as running:

        def target(name, master, broker):
            return running.enter_context(Target(name, master, broker))

        def embedded(name, settings):
            ours = running.enter_context(EmbeddedTubeMQ(topics=specs, settings=settings))
            return target(name, ours.master, ours.broker)

        ours = [embedded("as java", as_java), embedded("by default", by_default)]
        yield Servers(target("real", java.master, java.brokers[1].address), ours, stores)


@pytest.fixture(scope="module")
def from_memory(compared_java):
    """The servers, with messages that the Java one has in memory."""
    never_flushed = {"flush_messages": NEVER, "flush_interval_ms": NEVER}
    by_default = EmbeddedSettings(**FIRST_FROM_MEMORY)
    with together(compared_java, TOPICS, AS_FROM_MEMORY, by_default, **never_flushed) as servers:
        yield servers


@pytest.fixture(scope="module")
def from_files(compared_java):
    """The servers, with messages that they have on the disk."""
    with together(compared_java, FILED_TOPICS, AS_FROM_FILES, EmbeddedSettings()) as servers:
        assert not Comparison().of(servers, filing())
        wait_until(servers.is_flushed, timeout_s=60, what="the messages to be on the disk")
        yield servers


class Comparison:
    """What sequences of calls have shown."""

    def __init__(self):
        self.made = 0
        self.compared = Counter()
        """How many calls, by server."""
        self.rows = defaultdict(set)
        """The rows of the table that explain what differs, by server, but those that show now and then."""

    def of(self, servers, calls):
        """Make the calls and return what differs and may not.

        The comparison with a server ends at the first call that parts it from the Java one.
        """
        left, parted = list(servers.embedded), False
        for number, (call, said) in enumerate(servers.run(calls)):
            self.made += 1
            real = flat(call, said["real"], servers.real)
            for target in list(left):
                unlike = servers.unlike_bytes(target, (call.topic, call.store))
                found = compare(call, flat(call, said[target.name], target), real, unlike_bytes=unlike)
                reasons = [explanation(d, by_default=target.name == "by default") for d in found]
                self.compared[target.name] += 1
                self.rows[target.name] |= {row.id for row in reasons if row is not None and not row.by_time}
                if None in reasons:
                    servers.align()
                    unexplained = [d for d, row in zip(found, reasons, strict=True) if row is None]
                    return [f"call {number}, {target.name}: {difference}" for difference in unexplained]
                if any(row.parts for row in reasons):
                    left.remove(target)
                    parted = True
        if parted:
            servers.align()
        return []

    def check(self, least_of, record_property):
        """Tell how many calls were compared, and check that they are not too few."""
        for name, least in least_of.items():
            record_property(f"compared {name}", f"{self.compared[name]} of {self.made} calls")
            assert self.compared[name] >= least * self.made


def report(calls, found):
    """Say what differs, and how to keep the sequence."""
    plain = json.dumps([call.plain() for call in calls])
    return "\n".join([*found, f"for {KEPT_FILE.name}, once it is mended:", plain])


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept["was"])
def test_kept_sequences(from_memory, kept):
    calls = [call_of(plain) for plain in kept["calls"]]
    comparison = Comparison()

    found = comparison.of(from_memory, calls)

    assert not found, report(calls, found)
    assert comparison.rows["as java"] == set(kept["allowed"])


def repeated(number):
    """Run a test with so many sequences of the seed, the explicit ones first."""
    given_so = settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(choose_seed())(given_so(test))


def test_random_sequences(from_memory, record_property):
    comparison = Comparison()

    @repeated(SEQUENCES)
    @given(sequences())
    def answers_are_the_same(calls):
        found = comparison.of(from_memory, calls)
        assert not found, report(calls, found)

    for kept in KEPT:
        answers_are_the_same = example([call_of(plain) for plain in kept["calls"]])(answers_are_the_same)
    answers_are_the_same()
    comparison.check(LEAST_FROM_MEMORY, record_property)


def test_random_reads_from_files(from_files, record_property):
    comparison = Comparison()

    @repeated(FILE_SEQUENCES)
    @given(reading_files())
    def answers_are_the_same(readings):
        for calls in readings:
            found = comparison.of(from_files, calls)
            assert not found, report(calls, found)
        assert not comparison.rows["as java"]

    answers_are_the_same()
    comparison.check(LEAST_FROM_FILES, record_property)
