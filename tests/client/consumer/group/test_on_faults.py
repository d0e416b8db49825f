"""Members of a group where things go wrong: nothing is lost, each partition has one reader, and only what was
not confirmed comes again.

Some of it goes wrong in TubeMQ's Go and C++ clients; the tests of that say so.
"""

import collections
import concurrent.futures
import contextlib
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tests.client.assigned import TOPIC, fill, in_loop, keep_leases
from tests.client.members import PARTITIONS, member, shares
from tests.client.ways import served
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.errcodes import ErrCode

pytestmark = pytest.mark.sampled

COUNT = 12
# Who is silent for 2 s is gone.
SETTINGS = {"max_entries": 4, "client_timeout_ms": 2_000, "lease_timeout_ms": 2_000, "scan_period_ms": 50}
server = served(stores=4, balance_period_ms=50, **SETTINGS)


class Readers:
    """Threads that read for members, and notes of what they saw."""

    def __init__(self, *members, seconds=40):
        self.seen = collections.defaultdict(list)
        self.confirmed = collections.defaultdict(set)
        self.failed = collections.defaultdict(collections.Counter)
        """Confirmations that failed; only what is here may come again, as often as it is here."""
        self._forgotten = collections.defaultdict(collections.Counter)
        """What a broker that was killed may have forgotten to be confirmed."""
        self._members = members
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = concurrent.futures.ThreadPoolExecutor(len(members))
        self._sent = {}

    def __enter__(self):
        self._running = [self._threads.submit(self._read, one) for one in self._members]
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._threads.shutdown()
        for one in self._running:
            one.result()
        for one, values in self._sent.items():
            seen = [value for value in self.seen[one] if value in set(values)]
            assert list(dict.fromkeys(seen)) == values, "in order, and nothing is missing"
            assert (
                not collections.Counter(seen)
                - collections.Counter(values)
                - self.failed[one]
                - self._forgotten[one]
            )

    def read(self, sent):
        """Wait until everything that was sent has come, and was confirmed as far as the answers tell."""
        self._sent |= sent
        while not self._has(sent):
            assert time.monotonic() < self._deadline, [one.positions() for one in self._members]
            assert not any(one.done() for one in self._running)
            time.sleep(0.01)

    def may_come_again(self, sent):
        """Allow for a kill: a broker then forgets what was confirmed in its last seconds."""
        for one, values in sent.items():
            self._forgotten[one].update(values)

    def _has(self, sent):
        with self._lock:
            return all(
                set(values) <= {*self.confirmed[one], *self.failed[one]} for one, values in sent.items()
            )

    def _read(self, consumer):
        while not self._stopped.is_set():
            batch = consumer.fetch(50)
            if batch is not None:
                self._confirm(consumer, batch)

    def _confirm(self, consumer, batch):
        one, values = batch.partition, [record.value for record in batch]
        with self._lock:
            self.seen[one] += values
        try:
            consumer.confirm(batch)
        except TubeMQError:
            with self._lock:
                self.failed[one].update(values)
        else:
            with self._lock:
                self.confirmed[one].update(values)


def registers(request):
    return request.opType == OpType.REGISTER


def unregisters(request):
    return request.opType == OpType.UNREGISTER


BROKER_CALLS = {
    "register": (Method.PARTITION_REGISTER, {"only": registers}),
    "fetch": (Method.GET_MESSAGE, {"skip": 3}),
    "commit": (Method.COMMIT_OFFSET, {"skip": 2}),
    "lease heartbeat": (Method.PARTITION_HEARTBEAT, {}),
    "unregister": (Method.PARTITION_REGISTER, {"only": unregisters}),
}
MASTER_CALLS = {
    "register at the master": (Method.CONSUMER_REGISTER, {}),
    "heartbeat": (Method.CONSUMER_HEARTBEAT, {}),
}
FAULTS = {
    "lost": lambda faults, method, script: faults.drop_connection(method, times=2, **script),
    "lost answer": lambda faults, method, script: faults.drop_connection(
        method, times=2, carried_out=True, **script
    ),
    "503": lambda faults, method, script: faults.answer(method, 503, times=2, **script),
}
ON_LEASES = {
    "411": lambda faults, method, script: faults.answer(method, ErrCode.HB_NO_NODE, times=2, **script),
    "412": lambda faults, method, script: faults.answer(
        method, ErrCode.DUPLICATE_PARTITION, times=2, **script
    ),
    "415": lambda faults, method, script: faults.answer(
        method, ErrCode.CERTIFICATE_FAILURE, times=2, **script
    ),
}
CASES = [
    *((call, how) for call in {**BROKER_CALLS, **MASTER_CALLS} for how in FAULTS),
    *((call, how) for call in ("register", "fetch", "lease heartbeat") for how in ON_LEASES),
]


@pytest.mark.parametrize(("call", "how"), CASES, ids=[f"{how} at {call}" for call, how in CASES])
def test_trouble_at_any_request_of_a_rebalance_loses_nothing(server, call, how):
    """Two members read; the third joins and leaves while requests fail."""
    method, script = {**BROKER_CALLS, **MASTER_CALLS}[call]
    sent = fill(server, COUNT)
    with member(server, rpc_timeout_ms=1_000) as first, member(server, rpc_timeout_ms=1_000) as second:
        shares(first, second)
        rule = {**FAULTS, **ON_LEASES}[how](server.faults, method, script)
        with Readers(first, second) as readers:
            with member(server, rpc_timeout_ms=1_000) as third:
                wait_until(lambda: third.connected, seconds=20)
            readers.read(sent)
            wait_until(lambda: rule.hits, seconds=20)
            readers.read(sent)
        shares(first, second)
    assert rule.hits


def test_a_lost_close_loses_nothing(server):
    sent = fill(server, COUNT)
    with member(server) as first:
        shares(first)
        lost = server.faults.drop_connection(Method.CONSUMER_CLOSE, times=1)
        with member(server) as second:
            shares(first, second)
        assert lost.hits == 1
        with Readers(first) as readers:
            server.faults.forget_clients()
            readers.read(sent)


def test_members_share_while_a_broker_is_away_and_when_it_is_back(server, caplog):
    with member(server, rpc_timeout_ms=1_000) as first, member(server, rpc_timeout_ms=1_000) as second:
        shares(first, second)
        sent = fill(server, COUNT)
        with Readers(first, second) as readers:
            server.faults.stop_broker(2)
            readers.may_come_again({one: values for one, values in sent.items() if one.broker_id == 2})
            readers.read({one: values for one, values in sent.items() if one.broker_id != 2})
            server.faults.start_broker(2)
            readers.read(sent)
        shares(first, second)
    assert caplog.text.count("cannot be read; it is tried again") <= 2 * PARTITIONS


def test_members_come_back_after_everything_was_forgotten(server):
    with member(server) as first, member(server) as second:
        shares(first, second)
        sent = fill(server, COUNT)
        with Readers(first, second) as readers:
            server.faults.forget_clients()
            server.faults.forget_leases()
            readers.read(sent)
        shares(first, second)


def test_a_standby_master_stops_no_member(server):
    """Members go on reading their partitions; a new member is refused."""
    with member(server) as first:
        shares(first)
        server.faults.become_standby()
        sent = fill_partitions(server, first)
        with Readers(first) as readers:
            readers.read(sent)
        with pytest.raises(TubeMQError), member(server, register_attempts=1):
            pass
        server.faults.become_active()
        with member(server) as second:
            shares(first, second)


def fill_partitions(server, consumer):
    """Put numbers in what a consumer holds, while the master that producers need is away."""
    server.faults.become_active()
    sent = fill(server, COUNT)
    server.faults.become_standby()
    return {one: sent[one] for one in consumer.connected}


def test_one_failed_heartbeat_of_leases_drops_no_partition(server, caplog):
    """With the Go client a heartbeat that fails ends the heartbeats of that broker."""
    caplog.set_level(logging.INFO)
    with member(server) as consumer:
        shares(consumer)
        registers = server.faults.delay(Method.PARTITION_REGISTER, 0)
        lost = server.faults.drop_connection(Method.PARTITION_HEARTBEAT, times=6)
        wait_until(lambda: lost.hits == 6)
        heard = server.faults.delay(Method.PARTITION_HEARTBEAT, 0)
        wait_until(lambda: heard.hits >= 6)
        assert len(consumer.connected) == PARTITIONS
        assert registers.hits == 0, "none was given up and came back"
        assert "no lease at" in caplog.text


def test_a_partition_that_somebody_else_took_is_given_up_and_comes_back(server, caplog):
    with member(server) as consumer:
        shares(consumer)
        server.faults.give_leases_away(group="etl", broker=2)
        wait_until(lambda: "is given up" in caplog.text)
        server.faults.forget_leases(group="etl", broker=2)
        shares(consumer)


JOIN = """
    import sys, time
    from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.model import Endpoint

    consumer = ConsumerConfig(consume_position=ConsumePosition.FIRST)
    config = ClientConfig(
        (Endpoint.parse(sys.argv[1]),), "etl", heartbeat_period_ms=100, consumer=consumer
    )
    with TubeMQClient(config) as client, client.group_consumer("demo") as member:
        batch = None
        while batch is None:
            batch = member.fetch(1_000)
        print("holds a batch", flush=True)
        time.sleep(600)
"""


@contextlib.contextmanager
def other_process(server):
    """Run a member in another process, which has a batch that it does not confirm."""
    command = [sys.executable, "-c", textwrap.dedent(JOIN), server.master]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "holds a batch\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_others_take_over_from_a_member_that_is_gone(server, how):
    sent = fill(server, COUNT)
    with other_process(server) as process, member(server) as first, member(server) as second:
        wait_until(lambda: len({*first.connected, *second.connected}) == 2 * PARTITIONS // 3, seconds=20)
        with Readers(first, second) as readers:
            process.send_signal(how)
            readers.read(sent)
        shares(first, second)


def test_a_member_that_was_away_cannot_confirm_what_others_have_read(server, monkeypatch):
    with member(server) as away:
        shares(away)
        sent = fill(server, COUNT)
        batch = away.fetch()
        # As if its process had been suspended: nothing of it reaches a server.
        monkeypatch.setattr(away._core._leases, "run_once", lambda: None)
        in_loop(away._core._session.stop_heartbeats)
        with member(server) as other:
            wait_until(lambda: len(other.connected) == PARTITIONS, seconds=20)
            with Readers(other) as readers:
                readers.read(sent)
            before = {one: where.offset for one, where in other.positions().items()}
            with pytest.raises(TubeMQError):
                away.confirm(batch)
            assert {one: where.offset for one, where in other.positions().items()} == before
            assert other.fetch(100) is None


async def is_idle(session):
    return not (session._finished or session._is_due.is_set() or session._lock.locked())


def test_a_token_that_brokers_refuse_costs_no_partition(caplog):
    """With the Go and the C++ client all partitions of that broker are dropped."""
    settings = EmbeddedSettings(balance_period_ms=50, check_visit_tokens=True)
    with (
        EmbeddedTubeMQ(topics={TOPIC: (4, 1)}, brokers=3, settings=settings) as server,
        member(server, heartbeat_period_ms=29_000) as consumer,  # so that nothing renews the token by itself
    ):
        session = consumer._core._session
        wait_until(lambda: len(consumer.connected) == PARTITIONS or in_loop(session.refresh_soon), seconds=20)
        # No heartbeat is to come any more that would bring a new token: the event's answer has gone out.
        wait_until(consumer._core._rebalancing._under_way.done)
        wait_until(lambda: run(is_idle(session)))
        server.faults.expire_visit_tokens()
        registers = server.faults.delay(Method.PARTITION_REGISTER, 0)
        keep_leases(consumer)
        assert list(consumer.missed_heartbeats().values()) == [1, 1, 1]
        wait_until(lambda: keep_leases(consumer) or not consumer.missed_heartbeats())
        assert len(consumer.connected) == PARTITIONS
        assert registers.hits == 0
        assert "no lease at" in caplog.text
