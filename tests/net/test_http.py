"""Requests over HTTP: what comes too late is not served, however much of it is there."""

import socket

from tubemq_spark.net.http import HttpRequest


class Served(HttpRequest):
    """Notes what became of requests."""

    def __init__(self, connected, whole_s):
        self.said = []
        super().__init__(connected, whole_s)

    def do_GET(self):  # noqa: N802
        self.said.append(self.path)
        self.send_response(200)

    def late(self):
        self.said.append("late")


def said_of(request, whole_s):
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as connected,
    ):
        client.sendall(request)
        return Served(connected, whole_s).said


def test_a_request_is_served_in_its_time_and_not_behind_it():
    request = b"GET /topics HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert said_of(request, 60) == ["/topics"]
    assert said_of(request, 0) == ["late"]
    assert said_of(request[:-2], 0.05) == ["late"]
