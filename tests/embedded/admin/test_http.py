"""The web ports: same names, JSON and error texts as TubeMQ's."""

import contextlib
import http.client
import json
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.embedded.web import TOKEN, ask
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.embedded.server import EmbeddedSettings


@pytest.fixture
def server(start):
    return start(topics={"demo": (2, 3)})


@pytest.fixture
def master_admin(server):
    return MasterAdmin(server.master_web, token="abc")


# --- the frame of every call


@pytest.mark.parametrize(
    ("web", "method", "text"),
    [
        ("master_web", "nosuch", "Bad request from client, unsupported method!"),
        ("master_web", None, "Bad request from client, Please take with method parameter!"),
        ("broker_web", "nosuch", "Unsupported method nosuch"),
        ("broker_web", None, "Please take with method parameter! "),
        ("broker_web", "admin_query_group_offset", "Parameter topicName is missing or value is blank!"),
    ],
)
def test_failures(server, web, method, text):
    answer = ask(getattr(server, web), **({} if method is None else {"method": method}))
    assert answer == {"result": False, "errCode": 400, "errMsg": text}


def test_get_and_post_and_aliases_are_the_same(server):
    query = urlencode({"method": "admin_query_group_offset", "topic": "demo", "group": "gg", "pid": "1"})
    with urlopen(f"http://{server.broker_web}/anything?{query}", timeout=5) as response:
        by_get = json.loads(response.read())
    with urlopen(f"http://{server.broker_web}/webapi.htm", query.encode(), 5) as response:
        by_post = json.loads(response.read())
    assert by_get == by_post
    assert by_get["result"]


def test_of_several_values_the_first_counts(server):
    query = "method=admin_query_server_version&method=nosuch"
    with urlopen(f"http://{server.master_web}/webapi.htm?{query}", b"method=other", 5) as response:
        assert json.loads(response.read())["result"]


@pytest.mark.parametrize(("web", "wraps"), [("master_web", True), ("broker_web", False)])
def test_the_master_wraps_answers_in_a_call(server, web, wraps):
    def get(query):
        with urlopen(f"http://{getattr(server, web)}/webapi.htm?{query}", timeout=5) as response:
            return response.headers.get_content_type(), response.read().decode()

    kind, text = get("callback=tell&method=admin_query_server_version")
    assert kind == ("text/plain" if wraps else "text/html")
    assert text.startswith('tell({"result"') is wraps
    assert "tell" not in get("callback=tell&method=nosuch")[1]
    refused = get("callback=tell&method=admin_query_topic_info&brokerId=x")[1]
    assert ("tell" in refused) is (wraps and "illegal value" in refused)


@pytest.mark.parametrize(("web", "field"), [("master_web", "data"), ("broker_web", "dataSet")])
def test_each_server_lists_its_calls(server, web, field):
    answer = ask(getattr(server, web), method="admin_get_methods")
    calls = {item["method"]: item["needAuth"] for item in answer[field]}
    assert calls["admin_get_methods"] is calls["admin_query_server_version"] is False
    assert calls.get("admin_modify_topic_info", True) is True
    assert (answer["result"], answer["errCode"]) == (True, 0)
    assert answer["errMsg"] == {"data": "OK", "dataSet": "Success!"}[field]
    assert answer[{"data": "count", "dataSet": "totalCnt"}[field]] == len(calls)


def test_a_master_that_does_not_lead_sends_callers_on(server):
    server.faults.become_standby()
    host, _, port = server.master_web.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/webapi.htm?method=admin_query_topic_info&topicName=demo")
        response = connection.getresponse()
        assert (response.status, response.read()) == (302, b"")
    path = "/webapi.htm?method=admin_query_topic_info&topicName=demo"
    assert response.headers["Location"] == f"http://{server.master_web}{path}"
    assert ask(server.broker_web, method="admin_query_pubinfo")["result"], "the broker goes on"
    server.faults.become_active()
    assert ask(server.master_web, method="admin_query_topic_info")["count"] == 1


def test_a_wrong_token_is_refused(start):
    server = start(settings=EmbeddedSettings(admin_token="secret"))
    parameters = {**TOKEN, "method": "admin_modify_topic_info", "topicName": "demo", "brokerId": "1"}
    answer = ask(server.master_web, **parameters)
    assert answer["errMsg"] == "Bad request from client, illegal access, unauthorized request!"
    assert ask(server.master_web, **{**parameters, "confModAuthToken": "secret"})["result"]


def test_the_token_is_not_in_logs_and_reprs(server, caplog):
    caplog.set_level("DEBUG")
    ask(server.master_web, method="admin_query_topic_info", confModAuthToken="very-secret")
    ask(server.master_web, method="admin_delete_topic_info", topicName="x", **TOKEN)
    assert "/webapi.htm" in caplog.text
    assert "very-secret" not in caplog.text
    assert "confModAuthToken" not in caplog.text
    assert "very-secret" not in repr(EmbeddedSettings(admin_token="very-secret"))


def test_a_call_that_breaks_is_500(server, monkeypatch, caplog):
    monkeypatch.setattr(type(server._state.stores), "all", lambda _: 1 / 0)
    answer = ask(server.broker_web, method="admin_query_pubinfo")
    assert (answer["result"], answer["errCode"], answer["errMsg"]) == (False, 500, "division by zero")
    assert "admin_query_pubinfo failed" in caplog.text


# --- what is no call
