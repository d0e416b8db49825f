"""A server with several brokers: addresses, data, and brokers that go away and return."""

import socket

import pytest

from tests.embedded.wire import TIMEOUT_S, BrokerClient, MasterClient, is_closed, send_request
from tubemq_spark.embedded.nodes import nth_host
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ, TopicSpec
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.net.listener import Listener
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.testing.client import TopicClient

IMPATIENT = EmbeddedSettings(broker_timeout_ms=0)
"""The master stops listing a broker as soon as it is silent."""


@pytest.fixture
def three(start):
    return start(brokers=3)


@pytest.fixture
def client(closing):
    """Return a client of a server, which sends and reads whole topics."""

    def connect(server):
        return closing.enter_context(TopicClient(server.master, "group"))

    return connect


@pytest.fixture
def at_master(closing):
    def connect(server):
        return closing.enter_context(MasterClient(server.master))

    return connect


def routes(master, topic="demo"):
    """Return where the master tells a producer to send a topic."""
    master.register_producer(topics=[topic])
    return [text.removesuffix("#") for text in master.producer_heartbeat(topics=[topic]).topicInfos]


def layout(master, topic="demo"):
    """Return what the master tells a consumer about a topic's partitions."""
    master.register_consumer(topics=[topic])
    return list(master.layout().topicMetaInfoList)


def spread(server, client, count=60):
    """Send the same number of messages to each of the three brokers, and return their values."""
    values = [f"{number}".encode() for number in range(count)]
    for number, value in enumerate(values):
        client.send("demo", value, partition=(1 + number % 3, 0))
    return values


def test_each_broker_has_an_address_of_its_own_and_the_same_port(three):
    port = three.broker.partition(":")[2]
    assert three.brokers == {1: f"127.0.0.1:{port}", 2: f"127.0.0.2:{port}", 3: f"127.0.0.3:{port}"}
    assert [web.partition(":")[0] for web in three.broker_webs.values()] == [
        "127.0.0.1",
        "127.0.0.2",
        "127.0.0.3",
    ]
    assert three.broker == three.brokers[1]


@pytest.mark.parametrize(
    ("host", "advertised"), [("0.0.0.0", "127.0.0.1"), ("10.1.2.3", "10.1.2.3"), ("localhost", "here")]
)
def test_several_brokers_need_loopback_addresses(host, advertised):
    with pytest.raises(OptionError, match="TUBEMQ_BROKER_ADDRESSES"):
        nth_host(host, advertised, 2)


def test_addresses_are_counted_from_the_first():
    assert nth_host("localhost", "localhost", 3) == "127.0.0.3"
    assert nth_host("127.0.1.255", "127.0.1.255", 2) == "127.0.2.0"


def test_a_server_without_brokers_is_refused():
    with pytest.raises(OptionError, match="brokers is 0"):
        EmbeddedTubeMQ(brokers=0)


def test_clients_learn_all_brokers_and_their_partitions(three, at_master):
    infos = [f"{number}:{address}" for number, address in three.brokers.items()]
    master = at_master(three)
    assert list(master.register_producer(topics=["demo"]).brokerInfos) == infos
    assert routes(master) == ["demo#1:1:1,2:1:1,3:1:1"]
    assert layout(master) == ["demo#1:1:1:1,2:1:1:1,3:1:1:1"]
    assert list(master.layout().brokerConfigList) == infos


def test_messages_go_through_all_brokers(three, client):
    connected = client(three)
    values = spread(three, connected)
    assert sorted(connected.values("demo")) == sorted(values)
    assert {place.broker_id for place in three.overview().stores} == {1, 2, 3}
    assert (three.stats().messages_in, three.stats().messages_out) == (60, 60)


def test_a_topic_can_be_on_some_brokers_only(three, at_master, client):
    three.add_topic("some", 2, 3, brokers=[1, 3])
    assert routes(at_master(three), "some") == ["some#1:3:2,3:3:2"]
    assert "some" not in three.topics_of(2)
    three.add_topic("some", 4, 3)
    assert [three.topics_of(number).get("some") for number in (1, 2, 3)] == [
        TopicSpec(4, 3),
        None,
        TopicSpec(4, 3),
    ], "it grows where it is"
    connected = client(three)
    connected.send("some", *"abcdef")
    assert len(connected.values("some")) == 6


def test_a_topic_grows_on_one_broker(three, at_master):
    three.add_topic("demo", 2, 2, brokers=[2])
    assert routes(at_master(three)) == ["demo#1:1:1,2:2:2,3:1:1"]
    assert three.topics()["demo"] == TopicSpec(1, 1), "as on the first broker"


def test_a_broker_that_is_not_there_is_named(three):
    for call in (
        lambda: three.add_topic("some", brokers=[4]),
        lambda: three.topics_of(4),
        lambda: three.faults.stop_broker(4),
    ):
        with pytest.raises(OptionError, match="Broker 4 does not exist; the broker ids are: 1, 2, 3"):
            call()


def test_a_broker_is_added_while_all_goes_on(start, at_master, client):
    server = start()
    master, connected = at_master(server), client(server)
    known = master.register_producer(topics=["demo"]).brokerCheckSum
    assert server.add_broker() == 2
    again = master.producer_heartbeat(topics=["demo"], checksum=known)
    assert list(again.brokerInfos) == [f"1:{server.brokers[1]}", f"2:{server.brokers[2]}"]
    assert list(again.topicInfos) == ["demo#1:1:1#"], "it has no topics"
    server.add_topic("demo", brokers=[2])
    assert routes(master) == ["demo#1:1:1,2:1:1"]
    connected.send("demo", "there", partition=(2, 0))
    assert connected.values("demo") == [b"there"]


def port_of(address):
    return int(address.rpartition(":")[2])


def test_a_broker_has_another_port_where_that_of_the_first_is_taken(start, closing):
    server = start()
    taken = closing.enter_context(socket.create_server(("127.0.0.2", port_of(server.brokers[1]))))
    server.add_broker()
    server.add_topic("demo", brokers=[2])
    assert port_of(server.brokers[2]) != taken.getsockname()[1]
    with BrokerClient(server.brokers[2]) as broker:
        assert broker.try_send().success


def test_a_port_that_was_asked_for_is_that_of_all_brokers(start, closing):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start(broker_port=port)
    closing.enter_context(socket.create_server(("127.0.0.2", port)))
    with pytest.raises(TubeMQConnectionError, match=rf"LISTEN_FAILED.*127\.0\.0\.2:{port}"):
        server.add_broker()
    assert list(server.brokers) == [1]


def test_faults_reach_a_broker_that_was_added_later(start):
    server = start()
    rule = server.faults.answer(Method.SEND_MESSAGE, ErrCode.SERVICE_UNAVAILABLE)
    server.add_broker()
    server.add_topic("demo", brokers=[2])
    with BrokerClient(server.brokers[2]) as broker:
        assert broker.try_send().errCode == ErrCode.SERVICE_UNAVAILABLE
    assert rule.hits == 1


def test_a_fault_can_be_for_one_broker(three):
    rule = three.faults.answer(Method.SEND_MESSAGE, ErrCode.SERVICE_UNAVAILABLE, broker=2)
    answers = []
    for address in three.brokers.values():
        with BrokerClient(address) as broker:
            answers.append(broker.try_send().errCode)
    assert answers == [200, 503, 200]
    assert rule.hits == 1


def test_each_broker_keeps_its_data_in_a_directory_of_its_own(start, client, tmp_path):
    server = start(tmp_path, brokers=2)
    client(server).send("demo", "one", partition=(1, 0))
    client(server).send("demo", "two", partition=(2, 0))
    server.close()
    names = {"broker-2", "controls.json", "lock", "offsets.json", "stores", "topics.json"}
    assert {path.name for path in tmp_path.iterdir()} <= names | {"broker.json"}
    assert (tmp_path / "stores" / "demo-0").is_dir()
    assert (tmp_path / "broker-2" / "stores" / "demo-0").is_dir()


def test_a_directory_keeps_its_brokers(start, client, tmp_path):
    server = start(tmp_path, brokers=3)
    values = spread(server, client(server))
    server.close()
    again = start(tmp_path, topics={})
    assert list(again.brokers) == [1, 2, 3]
    assert sorted(client(again).values("demo")) == sorted(values)


def test_a_directory_of_one_broker_gets_more_of_them(start, client, tmp_path, at_master):
    server = start(tmp_path)
    client(server).send("demo", "before")
    server.close()
    again = start(tmp_path, brokers=2)
    assert routes(at_master(again)) == ["demo#1:1:1"], "a known topic stays where it is"
    assert client(again).values("demo") == [b"before"]


def test_all_brokers_come_back_on_their_ports(start, closing, tmp_path):
    server = start(tmp_path, brokers=2)
    server.close()
    again = closing.enter_context(server.reopened())
    assert (again.brokers, again.broker_webs) == (server.brokers, server.broker_webs)


def test_a_stopped_broker_hangs_up_and_refuses(three):
    with BrokerClient(three.brokers[2]) as broker, BrokerClient(three.brokers[1]) as other:
        three.faults.stop_broker(2)
        assert is_closed(broker.socket)
        with pytest.raises(ConnectionRefusedError):
            BrokerClient(three.brokers[2])
        assert other.try_send().success
    assert three.overview().brokers == {1: "running", 2: "stopped", 3: "running"}


def test_the_master_lists_a_stopped_broker_until_it_was_silent_for_too_long(three, at_master):
    three.faults.stop_broker(2)
    assert routes(at_master(three)) == ["demo#1:1:1,2:1:1,3:1:1"]
    assert layout(at_master(three)) == ["demo#1:1:1:1,2:1:1:1,3:1:1:1"]


def test_the_master_gives_a_silent_broker_up(start, at_master):
    server = start(brokers=3, settings=IMPATIENT)
    master = at_master(server)
    before = layout(master)
    number = master.layout().topicMetaInfoId
    server.faults.stop_broker(2)
    assert routes(master) == ["demo#1:1:1,3:1:1"]
    after = master.layout(layout=number)
    assert list(after.topicMetaInfoList) == ["demo#1:1:1:1,2:1:1:0,3:1:1:1"]
    assert len(after.brokerConfigList) == 3, "its address stays known"
    server.faults.start_broker(2)
    assert routes(master) == ["demo#1:1:1,2:1:1,3:1:1"]
    assert layout(master) == before


def test_a_broker_that_says_good_bye_is_given_up_at_once(three, at_master):
    three.faults.stop_broker(2, graceful=True)
    assert routes(at_master(three)) == ["demo#1:1:1,3:1:1"]


def test_a_broker_that_was_given_up_takes_its_time_to_be_published_again(start, at_master):
    settings = EmbeddedSettings(broker_timeout_ms=0, broker_startup_ms=3_600_000)
    server = start(brokers=2, settings=settings)
    master = at_master(server)
    assert routes(master) == ["demo#1:1:1,2:1:1"], "not at the start of the whole"
    server.faults.stop_broker(2)
    server.faults.start_broker(2)
    assert routes(master) == ["demo#1:1:1"]
    assert layout(master) == ["demo#1:1:1:1,2:1:1:0"]
    with BrokerClient(server.brokers[2]) as broker:
        assert broker.try_send().success, "the broker itself serves already"


def test_a_stopped_broker_comes_back_with_all_it_has_acknowledged(three, client):
    connected = client(three)
    values = spread(three, connected)
    three.faults.stop_broker(2)
    three.faults.start_broker(2)
    assert sorted(connected.values("demo")) == sorted(values)
    assert three.stats().messages_in == 60, "counted over the stop"


def test_a_killed_broker_sends_again_what_was_not_confirmed(three):
    with BrokerClient(three.brokers[2]) as broker:
        broker.send(b"first")
        broker.register()
        assert broker.fetch().messages
        three.faults.stop_broker(2)
    three.faults.start_broker(2)
    with BrokerClient(three.brokers[2]) as broker:
        assert broker.fetch().errCode == ErrCode.HB_NO_NODE, "no consumer holds the partition"
        assert broker.register().currOffset == 0
        assert len(broker.fetch().messages) == 1


def test_a_broker_that_is_told_to_end_confirms_what_is_in_flight(three):
    with BrokerClient(three.brokers[2]) as broker:
        broker.send(b"first")
        broker.register()
        assert broker.fetch().messages
        three.faults.stop_broker(2, graceful=True)
    three.faults.start_broker(2)
    with BrokerClient(three.brokers[2]) as broker:
        assert broker.register().currOffset == 28


def test_a_crash_loses_what_was_not_flushed_on_that_broker_only(start, client):
    server = start(brokers=2, settings=EmbeddedSettings(flush_check_ms=3_600_000))
    connected = client(server)
    connected.send("demo", "kept", partition=(1, 0))
    connected.send("demo", "lost", partition=(2, 0))
    server.faults.crash_broker(2)
    server.faults.start_broker(2)
    assert connected.values("demo") == [b"kept"]


def test_messages_can_be_lost_on_one_broker(three, client):
    connected = client(three)
    spread(three, connected, 6)
    assert three.faults.lose_messages("demo", 1, broker=3) == 28
    assert sorted(connected.values("demo")) == [b"0", b"1", b"2", b"3", b"4"]


def test_leases_can_be_lost_on_one_broker(three):
    for number in (1, 2):
        with BrokerClient(three.brokers[number]) as broker:
            broker.register()
    assert three.faults.forget_leases(broker=2) == 1
    assert three.faults.forget_leases() == 1


def test_a_frozen_broker_accepts_and_is_silent_until_it_goes_on(three):
    with BrokerClient(three.brokers[2]) as broker, BrokerClient(three.brokers[1]) as other:
        three.faults.freeze_broker(2)
        broker.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            broker.try_send()
        with BrokerClient(three.brokers[2]) as late:
            late.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                late.try_send()
            assert other.try_send().success
            assert three.overview().brokers[2] == "frozen"
            three.faults.start_broker(2)
            late.socket.settimeout(TIMEOUT_S)
            assert late.socket.recv(1), "the answer comes, however late"
        broker.socket.settimeout(TIMEOUT_S)
        assert broker.socket.recv(1)
    assert three.overview().brokers[2] == "running"


def test_a_frozen_broker_does_not_take_what_is_sent_to_it():
    taken = []
    listener = Listener("test", "127.0.0.1", 0, lambda requests: taken.extend(requests) or [])
    try:
        listener.freeze()
        with BrokerClient(str(listener.endpoint)) as client:
            client.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                client.socket.sendall(bytes(256 << 20))
    finally:
        listener.close()
    assert taken == []


def test_the_master_gives_a_frozen_broker_up(start, at_master):
    server = start(brokers=2, settings=IMPATIENT)
    server.faults.freeze_broker(2)
    assert routes(at_master(server)) == ["demo#1:1:1"]
    server.faults.start_broker(2)
    assert routes(at_master(server)) == ["demo#1:1:1,2:1:1"]


def test_a_stopped_broker_cannot_be_frozen_and_loses_nothing(three):
    three.faults.stop_broker(2)
    for call in (
        lambda: three.faults.freeze_broker(2),
        lambda: three.faults.lose_messages("demo", broker=2),
    ):
        with pytest.raises(OptionError, match="Broker 2 is stopped"):
            call()


def test_the_end_of_the_server_ends_a_frozen_and_a_stopped_broker_too(start):
    server = start(brokers=3)
    with BrokerClient(server.brokers[2]) as broker:
        server.faults.freeze_broker(2)
        server.faults.stop_broker(3)
        server.close()
        assert is_closed(broker.socket)


def test_clear_brings_all_brokers_back(three):
    three.faults.stop_broker(1)
    three.faults.freeze_broker(2)
    three.faults.clear()
    assert set(three.overview().brokers.values()) == {"running"}


def test_a_rule_holds_for_a_broker_that_was_started_meanwhile(three):
    with three.faults.answer(Method.SEND_MESSAGE, ErrCode.SERVICE_UNAVAILABLE, broker=2):
        three.faults.stop_broker(2)
        three.faults.start_broker(2)
        with BrokerClient(three.brokers[2]) as broker:
            assert broker.try_send().errCode == ErrCode.SERVICE_UNAVAILABLE


def test_a_topic_is_closed_removed_and_made_again(three, at_master, client):
    connected = client(three)
    spread(three, connected, 6)
    master = at_master(three)
    three.close_topic("demo")
    assert routes(master) == []
    assert layout(master) == ["demo#1:1:1:0,2:1:1:0,3:1:1:0"]
    three.remove_topic("demo")
    assert "demo" not in three.topics()
    three.add_topic("demo")
    assert connected.values("demo") == []
    connected.send("demo", "new", partition=(3, 0))
    assert connected.values("demo") == [b"new"]


def test_a_stopped_broker_removes_a_topic_when_it_starts(three, client):
    connected = client(three)
    spread(three, connected, 6)
    three.faults.stop_broker(2)
    three.remove_topic("demo")
    assert "demo" in three.topics_of(2), "it does not know of the change"
    with pytest.raises(OptionError, match="broker 2 is stopped and has not removed the old topic yet"):
        three.add_topic("demo", brokers=[2])
    three.faults.start_broker(2)
    assert "demo" not in three.topics_of(2)
    three.add_topic("demo")
    assert connected.values("demo") == []


def test_a_topic_that_is_not_there_cannot_be_closed_or_removed(three):
    three.add_topic("some", brokers=[1])
    for change in (three.close_topic, three.remove_topic):
        with pytest.raises(OptionError, match="Broker 1 has no topic nosuch"):
            change("nosuch")
        with pytest.raises(OptionError, match="Broker 2 has no topic some"):
            change("some", brokers=[2])


def test_no_other_process_gets_the_ports_of_a_stopped_broker(three):
    address = three.brokers[2]
    three.faults.stop_broker(2)
    with pytest.raises(ConnectionRefusedError):
        BrokerClient(address)
    host, _, port = address.partition(":")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))
    three.faults.start_broker(2)
    BrokerClient(address).socket.close()


def test_a_producer_goes_on_with_the_brokers_that_the_master_lists(start, client):
    server = start(brokers=3, settings=IMPATIENT)
    connected = client(server)
    server.faults.stop_broker(2)
    connected.send("demo", *(str(number) for number in range(200)))
    server.faults.start_broker(2)
    assert len(connected.values("demo")) == 200
    held = {place.broker_id: bounds.latest for place, bounds in server.overview().stores.items()}
    assert held[2] == 0 < min(held[1], held[3])


def test_a_broker_stops_though_a_request_to_it_is_held(three):
    with (
        three.faults.hold(Method.SEND_MESSAGE) as held,
        BrokerClient(three.brokers[2]) as broker,
        BrokerClient(three.brokers[3]) as other,
    ):
        for client in (broker, other):
            client.connection.send_request(*send_request(b"x"), 10_000)
            client.socket.sendall(client.connection.data_to_send())
        assert held.wait_for_hits(2)
        three.faults.stop_broker(2)
        assert is_closed(broker.socket)
        three.faults.start_broker(2)
        assert three.stats().messages_in == 0, "what was held is lost with its broker"
        held.release()
        assert other.socket.recv(1), "a request to another broker goes on"
