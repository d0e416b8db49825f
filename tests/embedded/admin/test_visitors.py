"""Pages of other sites cannot use the web ports through a browser on this machine."""

import http.client
import json
import logging
import time

import pytest

from tests.cases import in_one_test
from tests.embedded.web import TOKEN, ask
from tests.embedded.wire import connect
from tubemq_spark.embedded.admin import http as admin_http
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import OptionError
from tubemq_spark.net import http_server

DELETE = (
    "/webapi.htm?method=admin_delete_topic_info&topicName=demo&brokerId=1&modifyUser=x&confModAuthToken=abc"
)
VERSION = "/webapi.htm?method=admin_query_server_version"


def get(address, path=VERSION, **headers):
    """Send a request with these headers; return the status and the text of the answer."""
    host, _, port = address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


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
    host, _, port = getattr(tubemq, web).partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request("GET", "/webapi.htm?method=%3Cscript%3Ealert(1)%3C/script%3E%26amp%3B")
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()

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
    host, _, port = tubemq.master_web.partition(":")
    for length, status in ((1 << 20, 200), ((1 << 20) + 1, 413)):
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            form = b"method=admin_query_server_version&padding=".ljust(length, b"x")
            connection.putrequest("POST", "/webapi.htm")
            connection.putheader("Content-Length", str(length))
            connection.endheaders()
            if status == 200:
                connection.send(form)
            response = connection.getresponse()
            assert response.status == status
            assert json.loads(response.read())["result"] is (status == 200)
        finally:
            connection.close()


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
