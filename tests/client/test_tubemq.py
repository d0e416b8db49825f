"""The public client: what a user without Spark does, on a server of three brokers."""

import pytest

import tubemq_spark.client
from tests.gateway.running import gateway
from tubemq_spark.client import BrokerAdmin, TubeMQClient
from tubemq_spark.client.transport import client_base
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import (
    AdminError,
    DataLossError,
    OptionError,
    ProduceError,
    RpcError,
    TubeMQConnectionError,
)
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint, OffsetRange, TopicPartition
from tubemq_spark.offsets.loss import LossRecorder


@pytest.fixture(scope="module", params=["direct", "gateway"])
def way(request):
    return request.param


@pytest.fixture(scope="module")
def server(way):
    with EmbeddedTubeMQ(
        topics={"plain": (1, 1), "ranged": (1, 1), "shared": (1, 2), "left": (1, 1)}, brokers=3
    ) as running:
        yield running


@pytest.fixture
def address(way, server):
    """What the client is given: the same calls have the same answers with each of them."""
    if way == "direct":
        yield server.master
        return
    with gateway(server) as first, gateway(server) as second:
        yield f"gateway://{first.address},{second.address}"


@pytest.fixture
def client(address):
    with TubeMQClient.connect(address) as opened:
        yield opened


@pytest.fixture
def writer(server):
    with TubeMQClient.connect(server.master) as opened:
        yield opened


def test_every_public_name_can_be_imported():
    for name in tubemq_spark.client.__all__:
        assert getattr(tubemq_spark.client, name).__name__ == name
    assert set(tubemq_spark.client.__all__) <= set(dir(tubemq_spark.client))
    absent = "nothing"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(tubemq_spark.client, absent)


@pytest.mark.parametrize("form", ["{}", "tubemq://{}", "127.0.0.1:1,{}"])
def test_a_cluster_is_named_by_addresses_or_a_url(server, form):
    with TubeMQClient.connect(form.format(server.master)) as client:
        assert len(client.layout("plain").partitions) == 3


def test_masters_may_be_a_list_of_addresses(server):
    with TubeMQClient.connect([server.master, "127.0.0.1:1"]) as client:
        assert len(client.layout("plain").partitions) == 3


def test_a_name_that_is_no_text_is_refused(client, server):
    """Python's form of bytes that are not UTF-8, as arguments of a command may have them."""
    name = "plain\udcfe"
    with pytest.raises(OptionError, match=r"TUBEMQ_BAD_SETTING.*names of 2 to 64"):
        next(client.read(name))
    with client.producer() as producer:
        with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_NAME"):
            producer.send(name, b"x").result(30)
        assert producer.send("left", b"x").result(30)
    with pytest.raises(OptionError, match=r"TUBEMQ_BAD_SETTING.*password"):
        TubeMQClient.connect(server.master, username="me", password=name)


def test_produced_messages_are_read(client, writer):
    with writer.producer() as producer:
        for number in range(3 * 32):
            producer.send("plain", b"%d" % number, attributes={"n": str(number)})

    records = list(client.read("plain"))

    assert sorted(int(record.value) for record in records) == list(range(3 * 32))
    for record in records:
        assert record.topic == "plain"
        assert record.attributes == {"$msgTime$": record.message_time, "n": record.value.decode()}
        assert (
            client.bounds(client.layout("plain")).by_store[record.partition.store_id].latest > record.offset
        )
    by_partition = {record.partition for record in records}
    assert len(by_partition) == 3
    for partition in by_partition:
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(0, 28 * len(offsets), 28))


def test_offsets_in_a_shared_store_are_not_told(client, writer):
    with writer.producer() as producer:
        for _ in range(12):
            producer.send("shared", b"x")

    records = list(client.read("shared"))

    assert len(records) == 12
    assert {record.offset for record in records} == {None}


def test_a_range_is_read_alone(client, writer):
    layout = client.layout("ranged")
    partition = next(iter(layout.partitions))
    with writer.producer() as producer:
        for number in range(5):
            producer.send(
                "ranged", b"ranged %d" % number, partition=(partition.broker_id, partition.partition_id)
            )
    end = client.bounds(layout).by_store[partition.store_id].latest

    records = client.read_range(layout, OffsetRange(partition, end - 56, end))

    assert [record.value for record in records] == [b"ranged 3", b"ranged 4"]


def test_losses_go_to_the_policy(client):
    layout = client.layout("plain")
    partition = next(iter(layout.partitions))
    end = client.bounds(layout).by_store[partition.store_id].latest
    recorder = LossRecorder()

    with pytest.raises(DataLossError):
        list(client.read_range(layout, OffsetRange(partition, end, end + 28)))
    assert list(client.read_range(layout, OffsetRange(partition, end, end + 28), on_loss=recorder)) == []
    assert len(recorder.records) == 1


def test_a_read_that_is_under_way_ends_with_its_client(address, writer):
    with writer.producer() as producer:
        for number in range(3 * 32):
            producer.send("left", b"%d" % number)
    with TubeMQClient.connect(address) as client:
        layout = client.layout("left")
        records, of_a_range = client.read("left"), client.read_range(layout, whole(client, layout))
        next(records)

    for reading in (records, of_a_range):
        with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CLIENT_CLOSED"):
            list(reading)


def whole(client, layout):
    """Return the range of a topic's first partition."""
    partition = min(layout.partitions)
    return OffsetRange(partition, *client.bounds(layout).complete()[partition.store_id])


def test_a_partition_of_another_topic_is_refused(client):
    wanted = OffsetRange(TopicPartition("other", 1, 0), 0, 28)
    with pytest.raises(OptionError, match="TUBEMQ_PARTITION_NOT_LISTED"):
        client.read_range(client.layout("plain"), wanted)


def test_an_unknown_topic_is_an_error(client):
    with pytest.raises(RpcError) as refused:
        list(client.read("nowhere"))
    assert refused.value.code == 431


def test_the_error_of_an_unknown_topic_names_the_one_that_was_perhaps_meant(client, way, server, monkeypatch):
    """A client of a gateway may have no right to know of it."""
    webs = [Endpoint("127.0.0.1", 1), Endpoint.parse(server.master_web)]
    monkeypatch.setattr(client_base, "usual_web_servers", lambda _masters: webs)
    monkeypatch.setattr(GatewaySettings, "web_servers", lambda _settings: webs)
    for ask in client.read, client.layout:
        with pytest.raises(RpcError, match=r"\] Topic 'plane' does not exist, as ") as refused:
            list(ask("plane"))
        assert ("(did you mean 'plain'?)." in str(refused.value)) is (way == "direct")


def test_the_partitions_that_can_be_published_to_are_told(client):
    assert len(client.publishable("plain")) == 3
    with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNKNOWN"):
        client.publishable("nowhere")


@pytest.mark.parametrize("masters", ["", "host:port", "http://host:1/x y"])
def test_masters_that_are_no_address_are_refused(masters):
    with pytest.raises(OptionError):
        TubeMQClient.connect(masters)


def test_topics_are_administered(server, client):
    admin = client.admin(server.master_web, token="abc")
    admin.add_topic("made", [1, 2], partitions=2)

    assert admin.topic_brokers("made") == {1, 2}
    assert len(client.layout("made").partitions) == 4


def test_a_change_without_the_token_is_refused_here(server, client):
    with pytest.raises(OptionError, match="TUBEMQ_ADMIN_NO_TOKEN"):
        client.admin(server.master_web).add_topic("made", [1])


def test_a_refusal_names_the_call_and_never_the_token(server, client):
    with pytest.raises(AdminError) as refused:
        client.admin(server.master_web, token="wrong-secret").add_topic("made", [1])
    assert "admin_add_new_topic_record" in str(refused.value)
    assert "wrong-secret" not in str(refused.value)


def test_a_web_server_that_is_not_there_is_a_connection_error():
    with pytest.raises(TubeMQConnectionError, match="TUBEMQ_ADMIN_NO_ANSWER"):
        BrokerAdmin("127.0.0.1:1").pubinfo()
