"""The whole server: what it keeps, and how it ends."""

import contextlib
import dataclasses
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tests.embedded import crash_server
from tests.embedded.wire import BrokerClient, MasterClient, send_answer, send_request
from tests.waiting import wait_until
from tubemq_spark.embedded import server as server_module
from tubemq_spark.embedded.broker.groups import OffsetKey, OffsetTable
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.log.store import StoreSettings
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ, TopicSpec, Traffic
from tubemq_spark.errors import DataLossError, OptionError, TubeMQConnectionError


def test_a_restart_keeps_messages_offsets_and_topics(tmp_path, start, connect):
    first = start(tmp_path, {"demo": (2, 2), "other": TopicSpec(retention_ms=5000)})
    broker = connect(first)
    broker.send(b"1", b"2", b"3", partition_id=10_001)
    broker.register(10_001)
    broker.fetch(10_001)
    broker.commit(10_001)
    broker.send(b"4", partition_id=10_001)
    broker.fetch(10_001)
    first.add_topic("later", stores=3)
    first.close()

    second = start(tmp_path, {})
    assert second.topics() == {
        "demo": TopicSpec(2, 2),
        "later": TopicSpec(3),
        "other": TopicSpec(retention_ms=5000),
    }
    broker = connect(second)
    assert broker.fetch(10_001).errCode == 411, "who holds a partition is forgotten"
    assert broker.register(10_001).currOffset == 112, "a good end takes what is in flight as consumed"
    assert broker.register(10_001, currOffset=0).maxOffset == 112
    assert broker.drain(10_001) == [b"1", b"2", b"3", b"4"]
    assert broker.send(b"5", partition_id=10_001)[0].appendOffset == 112


def test_what_a_lost_consumer_had_in_flight_is_not_taken_as_consumed(tmp_path, start, connect):
    first = start(tmp_path, settings=EmbeddedSettings(lease_timeout_ms=30, scan_period_ms=10))
    broker = connect(first)
    broker.send(b"x")
    broker.register()
    broker.fetch()
    wait_until(lambda: not first._state.leases.all())
    first.close()
    assert connect(start(tmp_path)).register().currOffset == 0


def test_the_same_ports_again(tmp_path, start, connect):
    first = start(tmp_path)
    connect(first).send(b"kept")
    with pytest.raises(OptionError, match=r"^\[TUBEMQ_DATA_DIR_IN_USE\]"):
        first.reopened()
    first.close()
    with first.reopened() as second:
        for name in ("master", "broker", "master_web", "broker_web", "data"):
            assert getattr(second, name) == getattr(first, name)
        client = connect(second)
        client.register()
        assert client.drain() == [b"kept"]


def test_after_a_restart_the_ids_of_brokers_and_layout_are_others(tmp_path, start, closing):
    ids = set()
    for _ in range(2):
        server = start(tmp_path)
        master = closing.enter_context(MasterClient(server.master))
        master.register_consumer()
        layout = master.layout()
        ids.add((layout.brokerConfigId, layout.topicMetaInfoId))
        server.close()
        time.sleep(0.002)
    assert len(ids) == 2


def test_the_directory_may_be_a_text(tmp_path, start):
    assert start(str(tmp_path)).data == tmp_path


def test_a_server_may_be_closed_twice(start):
    server = start()
    server.close()
    server.close()


FORKING = """
import os, sys
from pathlib import Path
from tests.embedded.wire import BrokerClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

server = EmbeddedTubeMQ(Path(sys.argv[1]), {"demo": (1, 1)})
with BrokerClient(server.broker) as broker:
    broker.send(b"x")
    reader, writer = os.pipe()
    if not os.fork():
        os.close(writer)
        os.read(reader, 1)  # Until the parent ends.
        os._exit(0)
    server.close()
with server.reopened() as again, BrokerClient(again.broker) as broker:
    print(broker.send(b"y")[0].appendOffset)
"""
"""A server whose process forks, as with multiprocessing, closes and reopens beside its child."""


def test_a_forked_child_keeps_neither_the_end_nor_the_ports_nor_the_directory(tmp_path):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("28\n", "")


def test_a_temporary_directory_goes_with_the_server():
    with EmbeddedTubeMQ() as server:
        assert server.data.is_dir()
        server.add_topic("demo")
    assert not server.data.exists()


def test_a_directory_is_made_and_used_by_one_server_only(tmp_path, start):
    data = tmp_path / "not" / "there"
    start(data)
    with pytest.raises(
        OptionError, match=r"^\[TUBEMQ_DATA_DIR_IN_USE\] The directory .* is in use by process \d+;"
    ):
        EmbeddedTubeMQ(data)


def opened(folder):
    """Return the open files of a folder, how many sockets listen, and how many threads run."""
    process = psutil.Process()
    files = [file.path for file in process.open_files() if file.path.startswith(str(folder))]
    listening = [one for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
    return files, len(listening), threading.active_count()


def test_a_port_in_use_leaves_nothing_open(tmp_path, start, connect):
    with EmbeddedTubeMQ(tmp_path, {"demo": (1, 1)}) as server:
        connect(server).send(b"1")
    taken = int(start().broker_web.rpartition(":")[2])
    before = opened(tmp_path)
    for ports in (
        {"broker_port": taken},
        {"master_port": taken},
        {"broker_web_port": taken},
        {"master_web_port": taken},
    ):
        named = rf"^\[TUBEMQ_LISTEN_FAILED\] .*; set {next(iter(ports))} to another port, or to 0 "
        with pytest.raises(TubeMQConnectionError, match=named):
            EmbeddedTubeMQ(tmp_path, **ports)
        assert opened(tmp_path) == before
    start(tmp_path)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            errno.ENOSPC,
            r"_UNUSABLE.FULL] The disk of the directory .*; free space there, or choose",
        ),
        (errno.EACCES, r"_UNUSABLE] The directory .* cannot be used: .*; choose a directory that this user"),
    ],
)
def test_a_directory_that_cannot_be_made_is_told_with_what_to_do(tmp_path, monkeypatch, number, said):
    def failing(_path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(server_module, "make_directory", failing)
    with pytest.raises(OptionError, match=said):
        EmbeddedTubeMQ(tmp_path / "data")


def test_offsets_that_cannot_be_read_leave_nothing_open(tmp_path, start, connect):
    server = start(tmp_path)
    connect(server).send(b"1")
    server.close()
    (tmp_path / "offsets.json").write_text("{")
    before = opened(tmp_path)
    with pytest.raises(DataLossError) as refused:
        EmbeddedTubeMQ(tmp_path)
    assert opened(tmp_path) == before, f"closed, not collected with {refused}"


def test_a_bad_topic_leaves_nothing_open(tmp_path, start):
    with pytest.raises(OptionError, match=r"^\[TUBEMQ_BAD_TOPIC_NAME\]"):
        EmbeddedTubeMQ(tmp_path, {"good": (1, 1), "b-a-d": (1, 1)})
    assert set(start(tmp_path, {}).topics()) == {"good"}


def test_a_damaged_store_is_refused_leaves_nothing_open_and_is_not_touched(tmp_path, start, connect):
    settings = EmbeddedSettings(data_segment_bytes=1, index_segment_bytes=1)
    server = start(tmp_path, settings=settings)
    for payload in (b"1", b"2", b"3"):
        connect(server).send(payload)
    server.close()
    for suffix in (".index", ".tube"):
        path = sorted((tmp_path / "stores").rglob(f"*{suffix}"))[1]
        content = path.read_bytes()
        path.unlink()
        before = psutil.Process().num_fds()
        with pytest.raises(DataLossError, match=r"^\[TUBEMQ_STORE_DAMAGED\]"):
            EmbeddedTubeMQ(tmp_path)
        assert psutil.Process().num_fds() == before
        path.write_bytes(content)
    broker = connect(start(tmp_path, settings=settings))
    broker.register()
    assert broker.drain() == [b"1", b"2", b"3"]


def test_a_disk_that_fails_later_does_not_stop_other_stores_or_the_end(start, connect, monkeypatch, caplog):
    server = start(
        topics={"bad": (1, 1), "good": (1, 1)}, settings=EmbeddedSettings(flush_check_ms=3_600_000)
    )
    broker = connect(server)
    for topic in ("bad", "good"):
        broker.send(b"x", topic=topic)
    bad, good = (server._state.stores.all()[topic, 0] for topic in ("bad", "good"))
    bad._settings = good._settings = StoreSettings(flush_messages=1)

    failing, sync = bad._data.segments[-1].fd, os.fsync

    def broken(fd):
        if fd == failing:
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", broken)
    server._state.stores.flush_due()
    server._state.stores.flush_due()
    assert (bad.bounds.flushed, good.bounds.flushed) == (0, 28)
    server._state.stores.expire()
    server.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"{what} store bad-0 failed: [Errno 5] the disk did not keep the data of store bad-0 "
        "([Errno 5] Input/output error); check the disk and restart the server"
        for what in ("Flushing", "Deleting old data of", "Flushing at the end")
    ]


def test_topics_grow_and_never_shrink(start, connect):
    server = start()
    assert connect(server).try_send(partition_id=10_000).errCode == 403
    server.add_topic("demo", stores=2, partitions=3)
    assert connect(server).try_send(partition_id=10_002).success
    with pytest.raises(OptionError, match="can only grow"):
        server.add_topic("demo", stores=1, partitions=3)


def test_a_topic_that_grows_keeps_its_other_rules_and_one_made_anew_does_not(start):
    server = start(
        topics={"demo": TopicSpec(retention_ms=5000, accept_publish=False, accept_subscribe=False)}
    )
    server.add_topic("demo", stores=2)
    assert server.topics()["demo"] == TopicSpec(
        2, 1, accept_publish=False, accept_subscribe=False, retention_ms=5000
    )
    closed = dataclasses.replace(server.topics()["demo"], status=TopicStatus.SOFT_DELETED)
    server._state.set_topic("demo", closed)
    server.add_topic("demo", stores=2)
    assert server.topics()["demo"] == TopicSpec(2, 1)


def test_the_advertised_host_is_what_clients_are_told(start, closing):
    server = start(host="0.0.0.0", advertised_host="localhost", settings=EmbeddedSettings(admin_token="mine"))
    assert {server.master, server.broker} == {
        f"localhost:{server.master.rpartition(':')[2]}",
        f"localhost:{server.broker.rpartition(':')[2]}",
    }
    master = closing.enter_context(MasterClient(server.master))
    assert list(master.register_producer().brokerInfos) == [f"1:{server.broker}"]
    settings = EmbeddedSettings(admin_token="mine")
    assert start(host="0.0.0.0", settings=settings).master.startswith("127.0.0.1:")


def test_an_address_that_the_protocol_cannot_carry_is_refused():
    with pytest.raises(OptionError, match=r"^\[TUBEMQ_BAD_ADDRESS\]"):
        EmbeddedTubeMQ(advertised_host="::1")


def test_the_traffic_is_counted(start, connect):
    server = start()
    assert server.stats() == Traffic()
    broker = connect(server)
    broker.send(b"four", b"five!")
    broker.register()
    for _ in range(2):
        broker.fetch()
    assert server.stats() == Traffic(messages_in=2, bytes_in=9, messages_out=4, bytes_out=18)
    server._state.set_topic("demo", TopicSpec(status=TopicStatus.REMOVED))
    assert server.stats() == Traffic(messages_in=2, bytes_in=9, messages_out=4, bytes_out=18)
    assert server.broker_id == 1
    names = ("master", "broker", "master_web", "broker_web")
    assert server.addresses == {name: getattr(server, name) for name in names}


def test_retention_by_age_takes_whole_files_only(start, connect):
    server = start(settings=EmbeddedSettings(data_segment_bytes=1, index_segment_bytes=1))
    server._state.set_topic("demo", TopicSpec(retention_ms=1))
    broker = connect(server)
    for payload in (b"1", b"2", b"3"):
        broker.send(payload)
    time.sleep(0.02)
    server.apply_retention("nosuch")
    server.apply_retention("demo")
    assert broker.register(currOffset=0).currOffset == 56
    assert broker.drain() == [b"3"], "the last file stays"
    server.apply_retention("demo", older_than_ms=0)
    assert broker.register(currOffset=0).currOffset == 84


def test_old_data_go_by_themselves(start, connect):
    settings = EmbeddedSettings(data_segment_bytes=1, index_segment_bytes=1, retention_check_ms=10)
    server = start(topics={"demo": TopicSpec(retention_ms=1)}, settings=settings)
    broker = connect(server)
    for payload in (b"1", b"2", b"3"):
        broker.send(payload)
    wait_until(lambda: broker.register(currOffset=0).currOffset == 56)
    assert broker.drain() == [b"3"]


def test_flushing_and_saving_go_by_themselves(tmp_path, start, connect):
    settings = EmbeddedSettings(flush_check_ms=10, offsets_save_ms=10)
    server = start(tmp_path, {"demo": TopicSpec(flush_messages=1)}, settings=settings)
    broker = connect(server)
    broker.register(qryPriorityId=101)
    broker.send(b"x")
    wait_until(lambda: broker.fetch().success)
    broker.commit()
    partition = OffsetKey("group", "demo", 0)

    def is_saved():
        saved = OffsetTable(tmp_path / "offsets.json").find(partition)
        return saved is not None and saved.committed == 28

    wait_until(is_saved)


def test_a_topic_half_removed_is_removed_at_the_next_start(tmp_path, start, connect):
    server = start(tmp_path, {"demo": (1, 1), "other": (1, 1)})
    connect(server).send(b"x")
    server.close()
    catalog = (tmp_path / "topics.json").read_text()
    (tmp_path / "topics.json").write_text(catalog.replace('"status": 0', '"status": 2', 1))
    server = start(tmp_path, {"demo": (1, 1)})
    broker = connect(server)
    assert broker.register().maxOffset == 0
    assert set(server.topics()) == {"demo", "other"}


def test_a_topic_under_removal_gets_no_store_again(start):
    server = start()
    removed = dataclasses.replace(server.topics()["demo"], status=TopicStatus.REMOVED)
    server._state.catalog.add("demo", removed)
    with pytest.raises(KeyError):
        server._state.stores.open("demo", 0)


def test_a_store_on_disk_is_known_before_anybody_uses_it(tmp_path, start, connect):
    server = start(tmp_path)
    connect(server).send(b"x")
    server.close()
    assert set(start(tmp_path)._state.stores.all()) == {("demo", 0)}


# --- kill -9


@contextlib.contextmanager
def killed_at_the_end(data):
    command = [sys.executable, "-m", crash_server.__name__, str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGKILL)


class Load(threading.Thread):
    """Sends windows of messages to one partition until the server ends; keeps what was acknowledged."""

    def __init__(self, address, partition_id, seed):
        super().__init__(name=f"load-{partition_id}")
        self.address, self.partition_id = address, partition_id
        self.random = random.Random(seed)
        self.acknowledged = {}
        self.sent = []

    def run(self):
        with contextlib.suppress(ConnectionError), BrokerClient(self.address) as client:
            while True:
                window = [self.random.randbytes(self.random.randint(1, 3000)) for _ in range(20)]
                self.sent += window
                requests = [send_request(payload, partition_id=self.partition_id) for payload in window]
                for payload, answer in zip(window, client.exchange(*requests), strict=True):
                    self.acknowledged[send_answer(answer).appendOffset] = payload


@pytest.mark.parametrize("run", range(2))
def test_nothing_acknowledged_is_lost_when_the_process_is_killed_under_load(tmp_path, connect, start, run):
    with killed_at_the_end(tmp_path) as address:
        loads = [Load(address, partition_id, (run, partition_id).__hash__()) for partition_id in (0, 10_000)]
        with BrokerClient(address) as reader:
            for load in loads:
                load.start()
            reader.register(0)
            last_read = 0
            while any(len(load.acknowledged) < 200 * (1 + run) for load in loads):
                answer = reader.fetch(0, lastPackConsumed=True)
                last_read = max(last_read, answer.currOffset)
    for load in loads:
        load.join()
    server = start(tmp_path, {}, settings=crash_server.SETTINGS)
    broker = connect(server, group="after")
    for load in loads:
        latest = broker.register(load.partition_id).maxOffset
        assert latest > max(load.acknowledged), "offsets never go back below what was acknowledged"
        stored = broker.drain(load.partition_id)
        assert len(stored) == latest // 28
        for offset, payload in load.acknowledged.items():
            assert stored[offset // 28] == payload
        assert stored == load.sent[: len(stored)], "in order, nothing twice, nothing else"
    mine = connect(server)
    assert mine.register(0).currOffset <= last_read, "at most a moment of commits is read again"


def test_a_killed_server_leaves_its_directory_free(tmp_path, start):
    with killed_at_the_end(tmp_path) as address:
        assert address
        with pytest.raises(OptionError, match=r"^\[TUBEMQ_DATA_DIR_IN_USE\]"):
            EmbeddedTubeMQ(tmp_path)
    assert set(start(tmp_path, {}).topics()) == {"demo"}
