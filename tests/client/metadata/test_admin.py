"""What the administration client says of answers that are not TubeMQ's."""

import contextlib
import http.server
import socket
import threading
import urllib.parse

import pytest

from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.metadata.topics import existing_topics
from tubemq_spark.errors import AdminError, TubeMQConnectionError
from tubemq_spark.model import Endpoint


@contextlib.contextmanager
def web_server(answer, asked=None):
    """Run a web server that gives every request the same answer, and lists them; yield its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if asked is not None:
                asked.append(urllib.parse.parse_qs(body.decode()))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            """Stay silent."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"[]", "its answer is not a JSON object"),
        (b"<html>", "Expecting value"),
        (b"", "Expecting value"),
        (b"[" * 100_000, "maximum recursion depth exceeded"),
    ],
    ids=["list", "page", "nothing", "deep"],
)
def test_what_is_not_an_answer_of_tubemq_is_no_answer(answer, said):
    with web_server(answer) as address, pytest.raises(TubeMQConnectionError, match=said):
        MasterAdmin(address).call("admin_query_topic_info")


TOPICS = b"""{"result": true, "errCode": 0, "data": [
    {"topicName": "demo", "topicInfo": [{"topicStatusId": 1}, {"topicStatusId": 0}]},
    {"topicName": "deleted", "topicInfo": [{"topicStatusId": 1}]}
]}"""
UNUSED = Endpoint("127.0.0.1", 1)


def test_a_proxy_of_the_environment_is_not_told_of_the_token(monkeypatch):
    told, asked = [], []
    answer = b'{"result": true, "errCode": 0, "data": []}'
    with web_server(answer, told) as proxy, web_server(answer, asked) as address:
        monkeypatch.setenv("http_proxy", f"http://{proxy}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        MasterAdmin(address, token="abc").add_topic("demo", [1])
    assert [call["confModAuthToken"] for call in asked] == [["abc"]]
    assert told == []


def test_a_server_that_goes_on_sending_blanks_does_not_keep_its_caller():
    over = threading.Event()

    def trickle():
        with listening.accept()[0] as connected, contextlib.suppress(OSError):
            connected.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not over.wait(0.02):
                connected.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=trickle)
        serving.start()
        admin = MasterAdmin(f"127.0.0.1:{listening.getsockname()[1]}", timeout_s=0.3)
        give_up = threading.Timer(30, over.set)  # so that the test fails and does not hang
        give_up.start()
        try:
            with pytest.raises(TubeMQConnectionError, match=r"no whole answer came within 0\.3 s"):
                admin.topics()
        finally:
            give_up.cancel()
            over.set()
            serving.join()
            give_up.join()


def test_many_topics_are_created_a_hundred_at_a_time():
    """Servers refuse longer lists."""
    names, asked = [f"t{number}" for number in range(201)], []
    with web_server(b'{"result": true, "errCode": 0, "data": []}', asked) as address:
        MasterAdmin(address, token="abc").add_topic(names, iter([1, 2]))
    created = [call["topicName"][0].split(",") for call in asked]
    assert created == [names[:100], names[100:200], names[200:]]
    assert [call["brokerId"] for call in asked] == [["1,2"]] * 3


def test_the_first_master_that_answers_lists_the_topics():
    """A topic that was deleted on every broker is none of them."""
    with web_server(TOPICS) as address:
        assert existing_topics([UNUSED, Endpoint.parse(address)], timeout_s=5) == {"demo"}


def test_without_an_answer_the_error_says_what_to_do():
    with pytest.raises(TubeMQConnectionError) as caught:
        existing_topics([UNUSED], timeout_s=5)
    assert caught.value.condition == "TUBEMQ_TOPICS_NOT_LISTED"
    assert "127.0.0.1:1" in str(caught.value)
    assert "'tubemq.master.web'" in str(caught.value)


def test_a_master_that_does_not_lead_is_passed_over():
    """Java's sends the caller to the one that leads, but without the question, which that refuses."""
    refusal = b'{"result": false, "errCode": 400, "errMsg": "Please take with method parameter!"}'
    with web_server(refusal) as standby, web_server(TOPICS) as active:
        servers = [Endpoint.parse(standby), Endpoint.parse(active)]
        assert existing_topics(servers, timeout_s=5) == {"demo"}
        with pytest.raises(AdminError, match="Please take with method parameter"):
            existing_topics([servers[0], UNUSED], timeout_s=5)
