"""Snapshots of groups' offsets in ``__offset_history__``, and the web calls that read them."""

import json
import time

import pytest

from tests.embedded.web import ask
from tests.embedded.wire import MasterClient
from tubemq_spark.embedded.broker.history import OffsetHistory
from tubemq_spark.embedded.server import EmbeddedSettings
from tubemq_spark.errors import OptionError
from tubemq_spark.protocol.payload import FLAG_ATTRIBUTES, decode_payload, java_hash

TOPIC = "__offset_history__"
NEVER_BY_ITSELF = EmbeddedSettings(offset_history_period_ms=3_600_000)
SAME_HASH = ("Aa", "BB")
DATE = "%Y%m%d%H%M%S"


def moment(seconds=0.0):
    """Return a time some seconds from now, in the form of web calls."""
    return time.strftime(DATE, time.localtime(time.time() + seconds))


@pytest.fixture
def server(start):
    return start(topics={"demo": (2, 2)}, settings=NEVER_BY_ITSELF)


@pytest.fixture
def history(server):
    return OffsetHistory(server._state)


@pytest.fixture
def reader(server, connect):
    """A consumer of the partition with the snapshots of ``group``."""
    client = connect(server, group="reader", topic=TOPIC)
    client.partition = abs(java_hash("group")) % 10
    client.register(client.partition)
    return client


def snapshots(reader):
    answer = reader.fetch(reader.partition, lastPackConsumed=True)
    assert all(message.flag == FLAG_ATTRIBUTES for message in answer.messages)
    return [decode_payload(message.payLoadData, message.flag) for message in answer.messages]


def test_a_snapshot_has_tubemqs_form(server, history, reader, connect):
    client = connect(server)
    client.send(b"x" * 48, b"y" * 48)
    client.register(0, currOffset=28, filterCondStr=["kind"])
    client.register(10_001)
    history.write()
    (message,) = [found for found in snapshots(reader) if found.attributes["$groupName$"] == "group"]
    content = json.loads(message.value)
    assert message.value == json.dumps(content, separators=(",", ":")).encode()
    minute = time.strftime("%Y%m%d%H%M", time.localtime(content["dt"] / 1000))
    assert message.attributes == {
        "$msgType$": str(java_hash("group")),
        "$msgTime$": minute,
        "$groupName$": "group",
    }
    heard_at = content["clients"][0].pop("lstTm")
    assert abs(heard_at / 1000 - time.time()) < 60
    del content["dt"]
    assert content == {
        "bId": 1,
        "ver": 3,
        "group": "group",
        "on": 1,
        "flt": 1,
        "clients": [{"recId": 0, "cltId": "consumer-1"}],
        "records": [
            {
                "topic": "demo",
                "offsets": [
                    {
                        "storeId": 0,
                        "iMin": 0,
                        "iMax": 56,
                        "dMin": 0,
                        "dMax": 200,
                        "parts": [{"partId": 0, "iCfm": 28, "iFlt": 0, "recId": 0}],
                    },
                    {
                        "storeId": 1,
                        "iMin": 0,
                        "iMax": 0,
                        "dMin": 0,
                        "dMax": 0,
                        "parts": [{"partId": 10_001, "iCfm": 0, "iFlt": 0, "recId": 0}],
                    },
                ],
            }
        ],
    }


def test_a_group_without_consumers_is_offline(server, history, reader, connect):
    client = connect(server)
    client.register()
    client.unregister()
    history.write()
    content = json.loads(snapshots(reader)[-1].value)
    assert (content["on"], content["flt"], content["clients"]) == (0, 0, [])
    assert content["records"][0]["offsets"][0]["parts"] == [{"partId": 0, "iCfm": 0, "iFlt": 0}]


def test_snapshots_are_written_by_themselves_and_at_the_end(start, connect, tmp_path):
    server = start(tmp_path, settings=EmbeddedSettings(offset_history_period_ms=10))
    connect(server).register()
    deadline = time.monotonic() + 5
    while (TOPIC, 0) not in server._state.stores.all():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    server.close()
    again = start(tmp_path, settings=NEVER_BY_ITSELF)
    before = again._state.stores.all()[TOPIC, 0].bounds.latest
    again.close()
    third = start(tmp_path, settings=NEVER_BY_ITSELF)
    assert third._state.stores.all()[TOPIC, 0].bounds.latest == before + 28


def test_snapshots_are_no_traffic(server, history, connect):
    client = connect(server)
    client.send(b"12345")
    client.register()
    history.write()
    assert (server.stats().messages_in, server.stats().bytes_in) == (1, 5)


def test_without_period_nothing_is_written(start, connect):
    server = start(settings=EmbeddedSettings(offset_history_period_ms=0))
    connect(server).register()
    server.close()
    assert list((server.data / "stores").glob(f"{TOPIC}*")) == []


def test_nothing_is_written_while_writes_are_stopped(server, history, connect):
    connect(server).register()
    server._state.writes.stop()
    history.write()
    assert (TOPIC, 0) not in server._state.stores.all()


def test_the_topic_is_closed_to_producers_and_nobody_can_change_it(server, connect):
    broker = connect(server)
    answer = broker.try_send(topic=TOPIC)
    assert (answer.errCode, answer.errMsg) == (
        403,
        f"topicName {TOPIC} does not allow producers to send data!",
    )
    with pytest.raises(OptionError, match="TUBEMQ_BAD_TOPIC_NAME"):
        server.add_topic(TOPIC, 2, 20)
    server._state.catalog.remove(TOPIC)
    assert server._state.catalog.get(TOPIC).partitions == 10
    assert TOPIC not in server.topics()


def test_consumers_can_have_the_topic(server, closing):
    client = closing.enter_context(MasterClient(server.master))
    assert client.register_consumer(topics=[TOPIC]).errCode == 200
    client.consumer_heartbeat()
    assert list(client.layout().topicMetaInfoList) == [f"{TOPIC}#1:1:10:1"]


def test_a_broken_disk_is_logged(server, history, connect, monkeypatch, caplog):
    connect(server).register()

    def broken(*_):
        raise OSError(28, "No space left on device")

    store = server._state.stores.open(TOPIC, 0)
    monkeypatch.setattr(store, "append", broken)
    for _ in range(4):
        history.write()
    assert "could not be written to the history" in caplog.text
    assert server._state.writes.stopped


# --- the web calls


def query(server, group="group", **parameters):
    method = "admin_get_group_history_offset"
    return ask(
        server.broker_web, method=method, **{"groupName": group, "recordTime": moment(-60), **parameters}
    )


def go_back(server, group="group", **parameters):
    defaults = {"groupName": group, "modifyUser": "me", "recordTime": moment(-60)}
    return ask(server.broker_web, method="admin_set_offset_by_time", **{**defaults, **parameters})


@pytest.fixture
def moved(server, history, connect):
    """A group with three snapshots at 0, 28 and 56 bytes, and a clock that advances in between."""
    client = connect(server)
    client.send(*(b"x" for _ in range(5)))
    for offset in (0, 28, 56):
        client.register(currOffset=offset)
        history.write()
    client.register(currOffset=140)
    return client


def test_the_history_of_a_group(server, moved):
    answer = query(server, "group,nobody", msgCount=2)
    assert (answer["result"], answer["errMsg"], answer["count"]) == (True, "OK", 2)
    known, unknown = answer["data"]
    assert (known["groupName"], known["errMsg"], known["recordCount"]) == ("group", "ok", 2)
    offsets = [record["records"][0]["offsets"][0]["parts"][0]["iCfm"] for record in known["records"]]
    assert offsets == [0, 28]
    assert unknown == {"groupName": "nobody", "result": False, "errMsg": "Could not find record!"}
    assert query(server)["data"][0]["recordCount"] == 1
    assert query(server, msgCount=9)["data"][0]["recordCount"] == 3


def test_what_was_before_is_left_out(server, moved):
    first = query(server)["data"][0]["records"][0]["dt"]
    assert query(server, recordTime=moment(60))["data"][0]["result"] is False
    store = server._state.stores.all()[TOPIC, 0]
    assert store.first_since(first) == 0
    assert store.first_since(first + 3_600_000) == store.bounds.latest == 84


def test_groups_whose_names_have_the_same_hash_are_told_apart(server, history, connect):
    for group in SAME_HASH:
        connect(server, group=group).register()
    history.write()
    for group in SAME_HASH:
        (found,) = query(server, group, msgCount=5)["data"]
        assert [record["group"] for record in found["records"]] == [group]


def test_a_history_longer_than_one_read(start, connect):
    """Each read of the topic counts as one try."""
    server = start(settings=EmbeddedSettings(offset_history_period_ms=3_600_000, max_entries=1))
    others = [f"g{number}" for number in range(200) if abs(java_hash(f"g{number}")) % 10 == 3][:3]
    for group in others:
        connect(server, group=group).register()
    OffsetHistory(server._state).write()
    last = others[-1]
    assert query(server, last, maxRetryCnt=2)["data"][0]["result"] is False
    assert query(server, last, maxRetryCnt=3)["data"][0]["recordCount"] == 1
    assert go_back(server, last, maxRetryCnt=2)["errMsg"] == "Not found record in required search range"
    assert go_back(server, last, maxRetryCnt=3)["result"]


def test_going_back(server, moved):
    moved.fetch()
    answer = go_back(server)
    assert (answer["result"], answer["count"]) == (True, 1)
    (change,) = answer["data"]
    assert change["groupName"] == "group"
    offsets = [change[when][0]["offsets"][0]["curOffset"] for when in ("before", "after")]
    assert offsets == [140, 0]
    assert (change["after"][0]["topicName"], change["after"][0]["partCount"]) == ("demo", 4)
    assert moved.commit().currOffset == 0


def test_going_back_in_some_topics_only(server, moved):
    assert go_back(server, topicName="demo")["result"]
    answer = go_back(server, topicName="nosuch")
    assert answer["errMsg"] == "Not found required topics [nosuch] in history offset value!"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"groupName": ""}, "Parameter groupName is missing or value is blank!"),
        ({"modifyUser": ""}, "Parameter modifyUser is missing or value is blank!"),
        ({"recordTime": ""}, "Parameter recordTime is missing or value is blank!"),
        (
            {"recordTime": "20260101"},
            "Parameter recordTime's value 20260101 parse error, required value format is yyyyMMddHHmmss",
        ),
        ({"endTime": "20200101000000"}, "Parameter endTime value must >= recordTime"),
        ({"maxRetryCnt": 0}, "Parameter maxRetryCnt value must >= 1"),
        ({"maxRetryCnt": 101}, "Parameter maxRetryCnt value must <= 100"),
        ({"groupName": "nobody"}, "Not found record in required search range"),
    ],
)
def test_going_back_wrongly(server, moved, parameters, text):
    answer = go_back(server, **parameters)
    assert (answer["result"], answer["errCode"], answer["errMsg"]) == (False, 400, text)


def test_a_snapshot_after_the_end_does_not_count(server, moved):
    answer = go_back(server, recordTime=moment(-7200), endTime=moment(-3600))
    assert answer["errMsg"].startswith("Over required endTime range, current time is 2")
    assert go_back(server, recordTime=moment(-7200), endTime=moment(60))["result"]
    assert not go_back(server, recordTime=moment(-7200))["result"], "5 minutes, if nothing is said"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"groupName": ""}, "Parameter groupName is missing or value is blank!"),
        ({"msgCount": 0}, "Parameter msgCount value must >= 1"),
        ({"maxRetryCnt": 31}, "Parameter maxRetryCnt value must <= 30"),
        ({"recordTime": ""}, "Parameter recordTime is missing or value is blank!"),
    ],
)
def test_querying_wrongly(server, parameters, text):
    assert query(server, **parameters)["errMsg"] == text


def test_stopped_reads_are_told(server):
    server._state.reads.stop()
    for answer in (query(server), go_back(server)):
        assert answer["errMsg"] == "Read StoreService temporary unavailable!"
