"""What every cluster has to do, however it is reached: the same questions to all of them.

A new implementation is one more entry of ``CLUSTERS``. Where the environment names servers (``GIVEN``), these
are asked instead of embedded ones: so the Java TubeMQ is.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pickle
import zlib

import numpy as np
import pytest

from testkit.certificates import Authority
from testkit.connections import opened_connections
from testkit.message_sender import single
from tests.memory_cluster import MemoryCluster
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.gateways import close_process_gateways
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.kept_producers import KeptProducers
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.cluster.transport_cluster import TransportCluster
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, OptionError, ProduceError, RpcError
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint, OffsetBounds, OffsetRange
from tubemq_spark.net.tls import ServerTls, TlsConfig
from tubemq_spark.offsets.loss import LossRecorder, fail_on_loss
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch

TOPICS = {"plain": (2, 1), "shared": (1, 3), "empty": (1, 1)}
ROW = 28
GIVEN = json.loads(os.environ.get("TUBEMQ_CONTRACT_SERVERS", "null"))
"""Two addresses, ``master`` and ``web``, and for how many ``tests`` there are topics: ``plain_0`` and on."""
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Names:
    """What belongs to one test only."""

    plain: str = "plain"
    shared: str = "shared"
    empty: str = "empty"
    group: str = "contract"


@pytest.fixture
def names():
    if GIVEN is None:
        return Names()
    number = next(_numbers)
    assert number < GIVEN["tests"], "no topics are left"
    return Names(*(f"{field.name}_{number}" for field in dataclasses.fields(Names)))


@contextlib.contextmanager
def given_directly(_directory, names):
    config = ClientConfig((Endpoint.parse(GIVEN["master"]),), names.group, checksums=True).validate()
    # Connections of its own: those of the process would outlive the test.
    with opened_connections() as connections, contextlib.closing(Producers(connections)) as producers:
        transport = DirectTransport(config, connections, lambda: (Endpoint.parse(GIVEN["web"]),))
        yield TransportCluster(transport, lambda: producers)


@contextlib.contextmanager
def given_through_gateways(_directory, names):
    settings = {
        "master_servers": (Endpoint.parse(GIVEN["master"]),),
        "master_web": (Endpoint.parse(GIVEN["web"]),),
    }
    with contextlib.ExitStack() as running:
        addresses = two_gateways(running, settings)
        config = ClientConfig((), names.group, checksums=True)
        yield open_cluster(ClusterConfig(config, addresses).validate())


class Producers(KeptProducers):
    def close(self):
        self.close_idle()


def two_gateways(running, settings):
    """Start them until the end of ``running``, and return their addresses."""
    made = [
        BackgroundGateway(GatewaySettings(listen=Endpoint("127.0.0.1", 0), **settings).validate())
        for _ in range(2)
    ]
    addresses = tuple(Endpoint.parse(running.enter_context(one).address) for one in made)
    running.callback(close_process_gateways)
    return addresses


@contextlib.contextmanager
def direct(_directory, _names, server_tls=None, tls=None):
    settings = EmbeddedSettings(tls=server_tls)
    with EmbeddedTubeMQ(topics=TOPICS, brokers=3, settings=settings) as server:
        master = Endpoint.parse(server.master)
        config = ClientConfig((master,), "contract", tls=tls, rpc_timeout_ms=2_000, checksums=True)
        yield open_cluster(ClusterConfig(config, web=(Endpoint.parse(server.master_web),)).validate())


def direct_over_tls(directory, names):
    """Servers and clients have to show certificates, so a connection without TLS comes to nothing."""
    authority = Authority(directory)
    server, client = authority.issue("server"), authority.issue("client")
    server_tls = ServerTls(str(server.cert), str(server.key), client_ca_file=str(authority.cert))
    tls = TlsConfig(str(authority.cert), str(client.cert), str(client.key))
    return direct(directory, names, server_tls, tls)


@contextlib.contextmanager
def through_gateways(_directory, _names, authority=None):
    """Sessions, ranges and messages go to the first of two gateways, and masters are known to it only."""
    server_tls = client_tls = None
    settings = {"session_bytes": 1 << 20, "housekeeping_ms": 100}
    if authority is not None:
        server, client = authority.issue("server"), authority.issue("client")
        server_tls = ServerTls(str(server.cert), str(server.key), client_ca_file=str(authority.cert))
        client_tls = TlsConfig(str(authority.cert), str(client.cert), str(client.key))
        settings |= {
            "tls_cert": str(server.cert),
            "tls_key": str(server.key),
            "tls_client_ca": str(authority.cert),
            "master_tls": True,
            "master_tls_ca": str(authority.cert),
            "master_tls_cert": str(client.cert),
            "master_tls_key": str(client.key),
        }
    with contextlib.ExitStack() as running:
        embedded = EmbeddedSettings(tls=server_tls)
        tubemq = running.enter_context(EmbeddedTubeMQ(topics=TOPICS, brokers=3, settings=embedded))
        settings |= {
            "master_servers": (Endpoint.parse(tubemq.master),),
            "master_web": (Endpoint.parse(tubemq.master_web),),
        }
        addresses = two_gateways(running, settings)
        config = ClientConfig((), "contract", tls=client_tls, rpc_timeout_ms=2_000, checksums=True)
        yield open_cluster(ClusterConfig(config, addresses).validate())


def through_gateways_over_tls(directory, names):
    """Every connection shows a certificate: to the gateway and from there to the servers."""
    return through_gateways(directory, names, Authority(directory))


@contextlib.contextmanager
def memory(_directory, _names):
    yield MemoryCluster(checksums=True, **TOPICS)


CLUSTERS = {
    "direct": direct,
    "direct over TLS": direct_over_tls,
    "remote": through_gateways,
    "remote over TLS": through_gateways_over_tls,
    "memory": memory,
}
if GIVEN is not None:
    CLUSTERS = {"direct": given_directly, "remote": given_through_gateways}


_BY_NIGHT = {"direct over TLS", "remote over TLS"}
"""Those whose tests but one wait for the night: what is asked is the same, and so is who asks."""
each_cluster = pytest.mark.parametrize("cluster", CLUSTERS, indirect=True)


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.nightly] if name in _BY_NIGHT else []) for name in CLUSTERS]
)
def cluster(request, tmp_path, names):
    with CLUSTERS[request.param](tmp_path, names) as opened:
        yield opened


def send(cluster, topic, *values, **how):
    with cluster.sender("contract") as sender:
        for value in values:
            sender.send_batch(single(topic, value, **how))
        sender.flush()
        return sender.receipts()


def whole(cluster, topic):
    """Return the layout, and for each partition what its store holds now."""
    layout = cluster.layout([topic])
    bounds = cluster.bounds(layout).complete()
    return layout, {partition: bounds[partition.store_id] for partition in layout.partitions}


def read(cluster, layout, partition, start, end, on_loss=fail_on_loss):
    request = pickle.loads(pickle.dumps(layout.request(OffsetRange(partition, start, end))))
    batches = list(cluster.read_range(request, on_loss))
    for batch in batches:
        assert batch.partition == partition
        assert start <= batch.start < batch.next <= end
    return [batch.columns.message(row) for batch in batches for row in range(len(batch.columns))]


def test_a_layout_lists_the_partitions_of_all_topics_in_order(cluster, names):
    layout = cluster.layout([names.plain, names.shared])

    assert list(layout.partitions) == sorted(layout.partitions)
    assert {one.topic for one in layout.partitions} == {names.plain, names.shared}
    assert layout.missing_topics == frozenset()
    assert {store.topic for store in layout.stores} == {names.plain, names.shared}


def test_a_topic_that_does_not_exist_is_refused_or_named(cluster, names):
    with pytest.raises(RpcError) as refused:
        cluster.layout([names.plain, "nowhere"])
    assert refused.value.code == 431

    layout = cluster.layout([names.plain, "nowhere"], missing_ok=True)
    assert layout.missing_topics == {"nowhere"}
    assert {one.topic for one in layout.partitions} == {names.plain}


def test_all_topics_are_listed(cluster, names):
    listed = set(cluster.topics())
    assert {names.plain, names.shared, names.empty} <= listed
    assert "nowhere" not in listed


def test_a_group_stands_where_it_was_moved_to(cluster, names):
    """And at the beginning before that."""
    send(cluster, names.shared, b"one", b"two", b"three", partition=(1, 0))
    layout, _ = whole(cluster, names.shared)
    first, second, *others = layout.partitions
    assert cluster.group_positions(layout) == dict.fromkeys(layout.partitions, 0)

    assert cluster.move_group(layout, {first: 2 * ROW, second: 3 * ROW}) == {}

    assert cluster.group_positions(layout) == {
        first: 2 * ROW,
        second: 3 * ROW,
        **dict.fromkeys(others, 0),
    }


def test_offsets_of_a_group_are_read_without_joining_it(cluster, names):
    """Brokers tell with a delay."""
    layout = cluster.layout([names.plain])
    moved = dict.fromkeys(layout.partitions, 0)
    assert cluster.move_group(layout, moved) == {}

    def stored():
        return {one.partition: one for one in cluster.stored_offsets(names.group).offsets}

    wait_until(lambda: stored().keys() == moved.keys(), 30)
    assert {(one.group, one.committed, one.in_flight, one.consumer) for one in stored().values()} == {
        (names.group, 0, 0, None)
    }
    assert cluster.stored_offsets(names.group).failures == {}


def test_an_empty_store_has_equal_bounds(cluster, names):
    layout, held = whole(cluster, names.empty)

    assert set(held.values()) == {OffsetBounds(0, 0)}
    assert cluster.first_readable(layout, held) == dict.fromkeys(held, 0)


def test_bounds_are_of_the_stores_asked_for(cluster, names):
    layout = cluster.layout([names.plain])
    store = next(iter(layout.stores))

    answer = cluster.bounds(layout, [store], timeout_ms=1_000)

    assert (set(answer.by_store), answer.failures) == ({store}, {})


def test_flushed_bounds_lie_within_the_bounds_of_a_store(cluster, names):
    send(cluster, names.shared, *[b"x"] * 20)
    layout = cluster.layout([names.shared])
    on_disk = cluster.bounds(layout, flushed=True).complete()
    for store, held in cluster.bounds(layout).complete().items():
        assert on_disk[store].earliest == held.earliest
        assert held.earliest <= on_disk[store].latest <= held.latest


@each_cluster
@pytest.mark.parametrize("kind", ["plain", "shared"])
def test_sent_messages_are_read_once_and_receipted(cluster, names, kind):
    topic = getattr(names, kind)
    sent = {b"value %d" % number for number in range(40)}
    receipts = send(cluster, topic, *sent)

    layout, held = whole(cluster, topic)
    found = {one: read(cluster, layout, one, *bounds) for one, bounds in held.items()}

    assert {message.value for messages in found.values() for message in messages} == sent
    assert {one.partition: one.count for one in receipts} == {
        partition: len(messages) for partition, messages in found.items() if messages
    }
    for receipt in receipts:
        assert 0 <= receipt.first_offset <= receipt.last_offset < held[receipt.partition].latest
        bodies = [message.value for message in found[receipt.partition]]
        assert receipt.bytes == sum(map(len, bodies))
        assert receipt.checksum == sum(map(zlib.crc32, bodies))


def test_a_message_keeps_its_attributes_type_and_time(cluster, names):
    named = next(iter(cluster.layout([names.plain]).partitions))
    send(
        cluster,
        names.plain,
        b"body",
        attributes={"a": "1"},
        message_type="red",
        message_time="202401020304",
        partition=(named.broker_id, named.partition_id),
    )

    layout, held = whole(cluster, names.plain)
    (message,) = read(cluster, layout, named, *held[named])

    assert message.value == b"body"
    assert message.attributes == {"a": "1", "$msgType$": "red", "$msgTime$": "202401020304"}


def test_equal_keys_share_a_partition(cluster, names):
    receipts = send(cluster, names.plain, *[b"x"] * 20, key=b"the key")

    assert [one.count for one in receipts] == [20]


def test_a_batch_is_sent_as_its_messages_one_by_one(cluster, names):
    first, second = list(cluster.layout([names.plain]).partitions)[:2]
    header = MessageHeader({"a": "1"}, "red", "202401020304")
    batch = SendBatch(
        Coded((names.shared, names.plain), np.array([1, 1, 1, 0])),
        BytesColumn(b"zeroonetwothree", np.array([0, 4, 7, 10, 15])),
        Coded((MessageHeader(), header), np.array([0, 1, 0, 0])),
        BytesColumn(b"k", np.array([0, 0, 0, 0, 1]), np.array([True, True, True, False])),
        Coded((first[1:], second[1:], None), np.array([0, 1, 0, 2])),
    )
    with cluster.sender("contract") as sender:
        sender.send_batch(batch)
        sender.flush()
        receipts = sender.receipts()

    _, held = whole(cluster, names.plain)
    layout = cluster.layout([names.plain])
    found = {one: read(cluster, layout, one, *held[one]) for one in (first, second)}
    assert [message.value for message in found[first]] == [b"zero", b"two"]
    assert [message.attributes for message in found[second]] == [
        {"a": "1", "$msgType$": "red", "$msgTime$": "202401020304"}
    ]
    assert [(one.partition.topic, one.count) for one in receipts] == [
        (names.plain, 2),
        (names.plain, 1),
        (names.shared, 1),
    ]


def test_refused_messages_are_told_by_their_place_and_the_others_are_stored(cluster, names):
    values = [b"0", b"", b"2", b"3", b"4", b"5", b"6"]
    topics = Coded((names.plain, "nowhere"), np.array([0, 0, 0, 1, 0, 1, 0]))
    headers = Coded((MessageHeader(),), np.zeros(7, np.int64))
    batch = SendBatch(topics, BytesColumn.of(values), headers, first_row=11)
    with cluster.sender("contract") as sender:
        refused = []
        sender.send_batch(batch, lambda row, error: refused.append((row, error.condition)))
        sender.flush()
        receipts = sender.receipts()

    assert refused == [(1, "TUBEMQ_BAD_MESSAGE"), (3, "TUBEMQ_TOPIC_UNKNOWN"), (5, "TUBEMQ_TOPIC_UNKNOWN")]
    assert sum(receipt.count for receipt in receipts) == 4
    assert sum(receipt.bytes for receipt in receipts) == 4


def test_the_messages_before_the_first_refused_one_are_accepted(cluster, names):
    """Without anything that takes refusals, the first is raised."""
    batch = SendBatch.of(names.plain, [b"0", b"1", b"", b"3"])
    with cluster.sender("contract") as sender:
        with pytest.raises(OptionError, match="its value is empty") as refused:
            sender.send_batch(batch)
        sender.flush()
        receipts = sender.receipts()
    assert refused.value.row == 2
    assert sum(receipt.count for receipt in receipts) == 2


def test_ranges_cut_a_partition_without_gaps_and_repeats(cluster, names):
    named = next(iter(cluster.layout([names.plain]).partitions))
    values = [b"%d" % number for number in range(10)]
    send(cluster, names.plain, *values, partition=(named.broker_id, named.partition_id))
    layout, _ = whole(cluster, names.plain)

    pieces = [read(cluster, layout, named, ROW * a, ROW * b) for a, b in ((0, 3), (3, 3), (3, 10))]

    assert [[message.value for message in piece] for piece in pieces] == [values[:3], [], values[3:]]


def test_a_range_beyond_the_end_is_a_loss_by_the_policy(cluster, names):
    named = next(iter(cluster.layout([names.plain]).partitions))
    send(cluster, names.plain, b"0", b"1", partition=(named.broker_id, named.partition_id))
    layout, _ = whole(cluster, names.plain)
    recorder = LossRecorder()

    assert len(read(cluster, layout, named, 0, 5 * ROW, recorder)) == 2
    assert [(one.loss.value, one.start, one.end) for one in recorder.records] == [("TRUNCATED", 56, 140)]
    with pytest.raises(DataLossError):
        read(cluster, layout, named, 0, 5 * ROW)


def test_a_topic_that_does_not_exist_is_refused_when_writing(cluster, names):
    cluster.refuse_unknown_topic(names.plain)
    with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNKNOWN"):
        cluster.refuse_unknown_topic("nowhere")


def test_a_topic_that_can_be_published_to_is_not_waited_for(cluster, names):
    cluster.await_publishable(names.plain)
    with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNKNOWN"):
        cluster.await_publishable("nowhere")


def test_masters_and_gateways_exclude_each_other():
    here = Endpoint("127.0.0.1", 1)
    with pytest.raises(OptionError, match="TUBEMQ_MASTERS_AND_GATEWAYS"):
        ClusterConfig(ClientConfig((here,), "group"), (here,)).validate()
