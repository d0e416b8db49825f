"""What brokers tell by their administration API: which logs are whole, and where groups stand."""

import contextlib
import json
import types

import pytest
from hypothesis import given, strategies as st

from tests.client.metadata.test_admin import UNUSED, web_server
from tubemq_spark.client.metadata import admin_questions as module
from tubemq_spark.client.metadata.admin import BrokerAdmin
from tubemq_spark.client.metadata.admin_questions import _places, whole_logs
from tubemq_spark.errors import AdminError
from tubemq_spark.model import Endpoint, OffsetBounds, TopicPartition

ROW = 28
PLACE = TopicPartition("demo", 1, 10_000)
BEGINS = {PLACE: OffsetBounds(2 * ROW, 9 * ROW)}


@pytest.fixture(autouse=True)
def nothing_rests(monkeypatch):
    monkeypatch.setattr(module, "_resting", {})


def told(earliest=2, latest=9, data_min=0, topic="demo", partition=10_000):
    """Return a broker's answer about one partition."""
    place = {
        "partitionId": partition,
        "offsetMin": ROW * earliest,
        "offsetMax": ROW * latest,
        "dataMin": data_min,
        "dataMax": 1 << 40,
    }
    return {"result": True, "dataSet": [{"topicName": topic, "offsetInfo": [place]}]}


@contextlib.contextmanager
def servers(answer, broker_id=1, asked=None):
    """Run a broker's web server, and that of a master which knows where it is; yield the latter."""
    with web_server(json.dumps(answer).encode(), asked) as broker:
        where = Endpoint.parse(broker)
        item = {"brokerId": broker_id, "brokerIp": where.host, "brokerWebPort": where.port}
        with web_server(json.dumps({"result": True, "data": [item]}).encode()) as master:
            yield Endpoint.parse(master)


@pytest.mark.parametrize("answer", [told(), told(latest=10)])
def test_a_log_whose_data_begins_at_0_is_whole(answer):
    asked = []
    with servers(answer, asked=asked) as master:
        assert whole_logs([UNUSED, master], BEGINS) == {PLACE}
    assert asked == [{"method": ["admin_query_pubinfo"], "topicName": ["demo"]}]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(told(data_min=1), id="retention took data"),
        pytest.param(told(earliest=3), id="its index begins elsewhere"),
        pytest.param(told(latest=8), id="it ends earlier: it is another log"),
        pytest.param(told(partition=0), id="of another store"),
        pytest.param(told(topic="other"), id="of another topic"),
        pytest.param({"result": True, "dataSet": []}, id="not open"),
        pytest.param({"result": False, "errCode": 400, "errMsg": "no"}, id="a refusal"),
        pytest.param({"result": True, "status": "UP"}, id="a server of something else"),
        pytest.param({"result": True, "dataSet": [None]}, id="odd"),
    ],
)
def test_of_no_other_log_that_is_known(answer):
    with servers(answer) as master:
        assert whole_logs([master], BEGINS) == set()


def test_brokers_that_the_master_does_not_list_are_not_asked():
    asked = []
    with servers(told(), broker_id=2, asked=asked) as master:
        assert whole_logs([master], BEGINS) == set()
    assert asked == []
    assert whole_logs([], BEGINS) == set()


def test_a_server_without_an_answer_is_asked_again_after_ten_minutes(monkeypatch):
    now, asked = [0.0], []
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    with web_server(b"", asked) as address:
        for seconds, times in ((0, 1), (599, 1), (600, 2), (601, 2)):
            now[0] = seconds
            assert whole_logs([Endpoint.parse(address)], BEGINS) == set()
            assert len(asked) == times


def test_many_topics_of_a_broker_are_asked_for_a_hundred_at_a_time():
    begins, asked = {TopicPartition(f"t{number:03}", 1, 0): OffsetBounds(0, ROW) for number in range(101)}, []
    with servers({"result": True, "dataSet": []}, asked=asked) as master:
        whole_logs([master], begins)
    assert [len(call["topicName"][0].split(",")) for call in asked] == [100, 1]


class PartlyRefusing(BrokerAdmin):
    """The API of a broker that refuses each question about some groups, as a Java broker does."""

    def __init__(self, booked, refused):
        super().__init__("127.0.0.1:1")
        self.booked = booked
        self.refused = refused
        self.calls = 0

    def call(self, method, **parameters):
        self.calls += 1
        if method == "admin_query_group":
            return {
                "dataSet": [{"type": "online", "groupName": []}, {"type": "all", "groupName": self.booked}]
            }
        asked = parameters["groupName"].split(",") if "groupName" in parameters else self.booked
        if not asked or self.refused.intersection(asked):
            raise AdminError("TUBEMQ_ADMIN_REFUSED", server="b:8081", method=method, code=400, reason="null")
        offsets = [{"partitionId": 0, "curOffset": 28}]
        info = [{"topicName": "demo", "offsets": offsets}]
        return {"dataSet": [{"groupName": group, "subInfo": info} for group in asked]}


@given(st.integers(1, 400), st.data())
def test_one_group_keeps_no_other_from_being_told(count, data):
    booked = [f"g{number}" for number in range(count)]
    refused = data.draw(st.frozensets(st.sampled_from(booked), max_size=min(count, 20)))
    admin, refusals = PartlyRefusing(booked, refused), {}
    places = _places(admin, [], [], refusals)
    assert sorted(group for group, _, _ in places) == sorted(set(booked) - refused)
    assert refusals.keys() == refused
    assert admin.calls <= 2 + len(refused) * 30


def test_a_broker_that_refuses_everything_is_not_asked_for_each_group():
    booked = [f"g{number}" for number in range(1000)]
    admin = PartlyRefusing(booked, frozenset(booked))
    with pytest.raises(AdminError, match="TUBEMQ_ADMIN_REFUSED"):
        _places(admin, [], [], {})
    assert admin.calls < 300


def test_a_refusal_is_no_empty_answer():
    with pytest.raises(AdminError, match="TUBEMQ_ADMIN_REFUSED"):
        _places(PartlyRefusing([], frozenset()), [], [], {})
