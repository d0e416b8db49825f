"""The embedded TubeMQ answers as the Java one: the same calls to both, and the answers field by field.

Both live for the whole module and get every call in the same order, so that their logs stay alike. What
may differ is in ``differential/allowed.py`` and, argued, in docs/embedded-differences.md.

``TUBEMQ_DIFFERENTIAL_SEQUENCES`` (500) and ``TUBEMQ_DIFFERENTIAL_SEED`` (1) ask for longer or other runs.
The Java broker keeps the messages of some 5000 sequences in memory; more need several seeds.
"""

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, seed, settings

from integration_tests.differential.allowed import explanation
from integration_tests.differential.calls import call_of
from integration_tests.differential.compare import compare, flat
from integration_tests.differential.drive import Pair, Target
from integration_tests.differential.names import FILED_TOPICS, TOPICS
from integration_tests.differential.requests import filing, reading_files, sequences
from integration_tests.real.availability import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ, TopicSpec as EmbeddedSpec

SEQUENCES = int(os.environ.get("TUBEMQ_DIFFERENTIAL_SEQUENCES", "500"))
SEED = int(os.environ.get("TUBEMQ_DIFFERENTIAL_SEED", "1"))
FILE_SEQUENCES = max(SEQUENCES // 5, 1)

pytestmark = pytest.mark.timeout(300 + SEQUENCES)

KEPT_FILE = Path(__file__).parent / "differential" / "kept.json"
KEPT = json.loads(KEPT_FILE.read_text(encoding="utf-8"))
"""Sequences that the servers once answered differently, and one for each difference that is allowed."""

IN_MEMORY = {"memCacheMsgSizeInMB": 128, "memCacheMsgCntInK": 100, "memCacheFlushIntvl": 36_000_000}
"""The Java broker keeps the messages in memory: what it shows of its files depends on when it wrote them."""

NEVER = 1 << 31

JAVA_SETTINGS = {"lease_timeout_ms": 20_000, "query_priority": 301}
"""What the Java servers are set to, or have by default, where the embedded one has its own default."""

AS_FROM_MEMORY = EmbeddedSettings(first_transfer_bytes=512 << 10, moving_404=True, **JAVA_SETTINGS)
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
def paired(java, topics, settings, **flushing):
    """Start an embedded server with these topics, and drive it together with the Java one."""
    specs = {name: EmbeddedSpec(*shape, **flushing) for name, shape in topics.items()}
    stores = [(name, store) for name, (count, _) in topics.items() for store in range(count)]
    with (
        EmbeddedTubeMQ(topics=specs, settings=settings) as ours,
        Target("embedded", ours.master, ours.broker) as embedded,
        Target("real", java.master, java.brokers[1].address) as real,
    ):
        yield Pair(embedded, real, stores)


@pytest.fixture(scope="module")
def memory_pair(compared_java):
    """Both servers, with messages that the Java one has in memory."""
    with paired(compared_java, TOPICS, AS_FROM_MEMORY, flush_messages=NEVER, flush_interval_ms=NEVER) as pair:
        yield pair


@pytest.fixture(scope="module")
def file_pair(compared_java):
    """Both servers, with messages that they have on the disk."""
    with paired(compared_java, FILED_TOPICS, AS_FROM_FILES) as pair:
        assert not differences(pair, filing())[0]
        wait_until(pair.is_flushed, timeout_s=60, what="the messages to be on the disk")
        yield pair


def differences(pair, calls):
    """Make the calls; return what differs and may not, and the rows of the table that explain the rest.

    Rows that show only now and then are left out. Ends at the first call that parts the servers.
    """
    rows = set()
    for number, (call, embedded, real) in enumerate(pair.run(calls)):
        found = compare(call, flat(embedded, pair.embedded), flat(real, pair.real))
        reasons = [explanation(difference) for difference in found]
        rows |= {reason.id for reason in reasons if reason is not None and not reason.by_time}
        if any(reason is None or reason.parts for reason in reasons):
            pair.align()
            unexplained = zip(found, reasons, strict=True)
            return [f"call {number}: {difference}" for difference, row in unexplained if row is None], rows
    return [], rows


def report(calls, found):
    """Say what differs, and how to keep the sequence."""
    plain = json.dumps([call.plain() for call in calls])
    return "\n".join([*found, f"for {KEPT_FILE.name}, once it is mended:", plain])


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept["was"])
def test_kept_sequences(memory_pair, kept):
    calls = [call_of(plain) for plain in kept["calls"]]

    found, rows = differences(memory_pair, calls)

    assert not found, report(calls, found)
    assert rows == set(kept["allowed"])


def repeated(number):
    """Run a test with so many sequences of the seed, the explicit ones first."""
    given_so = settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(given_so(test))


def test_random_sequences(memory_pair):
    @repeated(SEQUENCES)
    @given(sequences())
    def answers_are_the_same(calls):
        found, _ = differences(memory_pair, calls)
        assert not found, report(calls, found)

    for kept in KEPT:
        answers_are_the_same = example([call_of(plain) for plain in kept["calls"]])(answers_are_the_same)
    answers_are_the_same()


def test_random_reads_from_files(file_pair):
    @repeated(FILE_SEQUENCES)
    @given(reading_files())
    def answers_are_the_same(calls):
        found, rows = differences(file_pair, calls)
        assert not found, report(calls, found)
        assert not rows

    answers_are_the_same()
