"""Requests over HTTP: what comes too late is not served, however much of it is there."""

import contextlib
import socket
from http import HTTPStatus

import pytest

from tubemq_spark.model import Endpoint
from tubemq_spark.net.http_server import Answer, HttpServer


class Served(HttpServer):
    """Notes what became of requests."""

    def __init__(self, request_s=10):
        self.said = []
        methods = {"GET": self.get, "HEAD": self.get, "POST": self.post}
        super().__init__(
            "web",
            Endpoint("127.0.0.1", 0),
            methods,
            names={"web.example"},
            request_s=request_s,
            connections=8,
            setting="web_port",
        )

    def get(self, request):
        request.refuse_foreign()
        self.said.append(request.path)
        return Answer("found", "text/plain", headers={"X-More": "1"})

    def post(self, request):
        return Answer(request.form(4), "text/plain", HTTPStatus.CREATED)

    def refusal(self, status, why):
        self.said.append(status.phrase)
        return None if status is HTTPStatus.REQUEST_TIMEOUT else Answer(why, "text/plain", status)


@pytest.fixture
def served():
    servers = []

    def serve(request_s=10):
        servers.append(Served(request_s))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def answer_of(server, request):
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 10) as client:
        client.sendall(request)
        answer = b""
        # What a server has not read when it closes resets the connection.
        with contextlib.suppress(ConnectionResetError):
            while more := client.recv(1 << 16):
                answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body.decode()


def test_a_request_is_served_in_its_time_and_not_behind_it(served):
    request = b"GET /topics HTTP/1.1\r\nConnection: close\r\n\r\n"
    for data, request_s, said in (
        (request, 60, ["/topics"]),
        (request, 0, ["Request Timeout"]),
        (request[:-2], 0.05, ["Request Timeout"]),
    ):
        server = served(request_s)
        head, body = answer_of(server, data)
        assert server.said == said
        assert (head == [""], body) == ((True, "") if "Request Timeout" in said else (False, "found"))


def test_an_answer_has_its_headers_and_the_one_to_head_no_content(served):
    server = served()
    for method, content in (("GET", "found"), ("HEAD", "")):
        (status, *headers), body = answer_of(server, f"{method} / HTTP/1.1\r\n\r\n".encode())
        assert status == "HTTP/1.0 200 OK"
        assert {
            "Content-Type: text/plain",
            "Content-Length: 5",
            "X-Content-Type-Options: nosniff",
            "X-More: 1",
        } < set(headers)
        assert body == content


@pytest.mark.parametrize(
    ("request_", "status", "content"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nform", "201 Created", "form"),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            "413 Request Entity Too Large",
            "a form has at most 4 bytes",
        ),
        (
            b"GET / HTTP/1.1\r\nOrigin: http://evil.example\r\n\r\n",
            "403 Forbidden",
            "a browser sent it for another page (Origin: 'http://evil.example')",
        ),
        (b"GET / HTTP/1.1\r\nHost: web.example\r\n\r\n", "200 OK", "found"),
        (b"PUT / HTTP/1.1\r\n\r\n", "501 Unsupported method ('PUT')", None),
        (b"TRACE / HTTP/1.1\r\n\r\n", "501 Unsupported method ('TRACE')", None),
    ],
    ids=["form", "long form", "foreign", "name", "no handler", "unknown method"],
)
def test_a_request_is_carried_out_or_refused(served, request_, status, content):
    (first, *_), body = answer_of(served(), request_)
    assert first.removeprefix("HTTP/1.0 ") == status.replace(
        "Request Entity Too Large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE.phrase
    )
    assert content is None or body == content
