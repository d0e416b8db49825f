"""The web ports: names, JSON and error texts are TubeMQ's; calls of foreign pages are refused."""

import contextlib
import http.client
import json
import logging
import re
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.cases import in_one_test
from tests.embedded.web import TOKEN, ask
from tests.embedded.wire import connect
from tubemq_spark.embedded.admin import http as admin_http
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import OptionError
from tubemq_spark.net import http_server

VERSION = "/webapi.htm?method=admin_query_server_version"


@contextlib.contextmanager
def requested(address, path=VERSION, form=None, **headers):
    """Send a request with these headers; give the response."""
    host, _, port = address.partition(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=5)) as connection:
        connection.putrequest("GET" if form is None else "POST", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(form)
        yield connection.getresponse()


def get(address, path=VERSION, **how):
    """Send a request; return the status and the text of the answer."""
    with requested(address, path, **how) as response:
        return response.status, json.loads(response.read())


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
    path = "/webapi.htm?method=admin_query_topic_info&topicName=demo"
    with requested(server.master_web, path) as response:
        assert (response.status, response.read()) == (302, b"")
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


DELETE = (
    "/webapi.htm?method=admin_delete_topic_info&topicName=demo&brokerId=1&modifyUser=x&confModAuthToken=abc"
)
FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:8780"},
    {"Host": ""},
    {"Host": "[::1"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:4040"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
    {"Referer": "http://evil.example/page"},
]


@in_one_test("headers", FOREIGN)
@in_one_test("web", ["master_web", "broker_web"])
def test_a_call_of_a_foreign_page_is_refused_with_a_sentence(tubemq, web, headers):
    status, answer = get(getattr(tubemq, web), DELETE, **headers)

    assert (status, answer["result"], answer["errCode"]) == (403, False, 403)
    assert answer["errMsg"].startswith("refused: ")
    assert tubemq.topics()["demo"].status.name == "NORMAL"


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST:{port}", "127.0.0.1:{port}", "10.1.2.3", "[::1]:{port}"]
)
def test_programs_and_typed_addresses_are_let_in(tubemq, name):
    port = tubemq.master_web.rpartition(":")[2]
    host = name.format(port=port)

    assert get(tubemq.master_web, Host=host)[0] == 200
    own_page = {"Origin": f"http://{host}", "Referer": f"http://{host}/x", "Sec_Fetch_Site": "same-origin"}
    assert get(tubemq.master_web, Host=host, **own_page)[0] == 200
    assert get(tubemq.master_web, Host=host, Sec_Fetch_Site="none")[0] == 200


def test_the_advertised_name_is_one_of_the_servers(start):
    server = start(advertised_host="tubemq.internal")
    port = server.master_web.rpartition(":")[2]

    assert get(f"127.0.0.1:{port}", Host=f"tubemq.internal:{port}")[0] == 200
    assert get(f"127.0.0.1:{port}", Host="other.internal")[0] == 403


def test_refusals_are_logged_once(tubemq, caplog):
    for _ in range(3):
        get(tubemq.master_web, Origin="http://evil.example")

    said = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert said == [
        "master-web refused a request: a browser sent it for another page (Origin: 'http://evil.example')"
    ]


@pytest.mark.parametrize("web", ["master_web", "broker_web"])
def test_answers_are_harmless_where_they_are_taken_for_html(tubemq, web):
    script = "<script>alert(1)</script>&amp;"
    path = "/webapi.htm?method=%3Cscript%3Ealert(1)%3C/script%3E%26amp%3B"
    with requested(getattr(tubemq, web), path) as response:
        body = response.read()

    assert b"<" not in body
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    text = json.loads(body)["errMsg"]
    assert text == f"Unsupported method {script}" if web == "broker_web" else "unsupported method" in text


def test_other_machines_are_let_in_with_a_token_of_ones_own_only(tmp_path):
    host = "0.0.0.0"
    with pytest.raises(OptionError, match=r"TUBEMQ_OPEN_TO_ALL.*set your own \(--token-file"):
        EmbeddedTubeMQ(tmp_path, host=host)

    with EmbeddedTubeMQ(tmp_path, host=host, settings=EmbeddedSettings(admin_token="mine")) as server:
        changing = {**TOKEN, "method": "admin_modify_topic_info", "topicName": "x", "brokerId": "1"}
        assert "unauthorized" in ask(server.master_web, **changing)["errMsg"]


# --- what is endless


def test_a_form_has_a_limit(tubemq):
    for length, status in ((1 << 20, 200), ((1 << 20) + 1, 413)):
        form = b"method=admin_query_server_version&padding=".ljust(length, b"x") if status == 200 else b""
        said = get(tubemq.master_web, "/webapi.htm", form=form, Content_Length=str(length))
        assert (said[0], said[1]["result"]) == (status, status == 200)


def test_a_request_has_a_thousand_fields_at_most(tubemq):
    path = "/webapi.htm?method=admin_query_server_version"
    assert get(tubemq.master_web, path + "&x" * 999)[0] == 200
    status, answer = get(tubemq.master_web, path + "&x" * 1000)
    assert (status, answer["errMsg"]) == (413, "refused: a request has at most 1000 fields")


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /", b"GET / HTTP/1.1\r\nA: ", b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\nmeth"],
    ids=["nothing", "line", "header", "form"],
)
def test_a_request_that_never_ends_is_cut_off_however_its_bytes_come(start, monkeypatch, caplog, beginning):
    monkeypatch.setattr(admin_http, "_REQUEST_TIMEOUT_S", 0.3)
    server = start()
    with connect(server.broker_web) as connected:
        connected.sendall(beginning)
        said = b""
        connected.settimeout(0.02)
        deadline = time.monotonic() + 20
        while b"408" not in said:
            assert time.monotonic() < deadline
            try:
                connected.sendall(b"x" if beginning else b"")
                if not (more := connected.recv(1000)):
                    break
                said += more
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert b"408" in said or b"\r\n" not in beginning
    assert "broker-web refused a request: it was not complete after 0.3 s" in caplog.text
    assert ask(server.broker_web, method="admin_query_server_version")["result"]


def test_why_foreign_bears_any_text():
    for text in ("", " ", "http://", "[", "http://[", "a:b:c", "\0", "é", "http://a:99999999"):
        for name in ("Host", "Origin", "Referer", "Sec-Fetch-Site"):
            assert http_server.why_foreign({name: text}.get, {"127.0.0.1"}) is not None


PAGE = Path(__file__).parents[3] / "docs" / "testing" / "admin-api.md"


def table(section):
    """Return the rows of a section's table: method, token, parameters, note."""
    lines = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("| `")]


@pytest.mark.parametrize(
    ("section", "web", "field"), [("Master", "master_web", "data"), ("Broker", "broker_web", "dataSet")]
)
def test_the_page_lists_all_calls(tubemq, section, web, field):
    answer = ask(getattr(tubemq, web), method="admin_get_methods")
    rows = table(section)
    names = [name.strip("`") for name, *_ in rows]
    assert names == sorted(names)
    assert {token for _, token, _, _ in rows} <= {"token", ""}
    assert all(note.endswith(".") for *_, note in rows)
    documented = {name.strip("`"): token == "token" for name, token, _, _ in rows}
    assert documented == {item["method"]: item["needAuth"] for item in answer[field]}
    others = {name for _, _, parameters, _ in rows for name in re.findall(r"^as `(\w+)`", parameters)}
    assert others <= set(documented)
