"""Logs that are known to be whole by what their brokers' administration API tells, and by nothing less."""

import contextlib
import json
import types

import pytest

from tests.client.metadata.test_admin import NOBODY, web_server
from tubemq_spark.client.metadata import admin_questions as module
from tubemq_spark.client.metadata.admin_questions import whole_logs
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
        assert whole_logs([NOBODY, master], BEGINS) == {PLACE}
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
