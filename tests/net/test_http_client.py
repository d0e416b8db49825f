"""Asking over HTTP, of scripted servers: what counts as an answer, and how long one may take."""

import contextlib
import socket
import ssl
import threading
import urllib.parse

import pytest

from testkit.certificates import Authority
from tubemq_spark.net.http_client import fetch

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
SECRET = "open sesame"


class Server:
    """A web server that reads each request and then follows a script; ``requests`` are those it read."""

    def __init__(self, script, context=None):
        self.requests = []
        self.over = threading.Event()
        self._script = script
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    @contextlib.contextmanager
    def served(self):
        serving = threading.Thread(target=self._serve)
        serving.start()
        try:
            yield self
        finally:
            self.over.set()
            self._listening.shutdown(socket.SHUT_RDWR)
            serving.join()
            self._listening.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                with connected, contextlib.suppress(OSError):
                    self._serve_one(connected)

    def _serve_one(self, connected):
        if self._context is not None:
            connected = self._context.wrap_socket(connected, server_side=True)
        with connected, connected.makefile("rb") as reader:
            head = b"".join(iter(reader.readline, b"\r\n"))
            length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
            self.requests.append((head, reader.read(int(length or 0))))
            self._script(connected, self)


def answering(answer):
    return Server(lambda connected, _: connected.sendall(answer)).served()


def endless(head, piece, pause_s):
    def send(connected, server):
        connected.sendall(head)
        while not server.over.wait(pause_s):
            connected.sendall(piece)

    return Server(send).served()


def test_a_form_goes_in_the_body_and_a_question_without_one_has_none():
    with answering(WHOLE) as server:
        assert fetch(f"http://{server.address}/page", 30, 100, {"token": SECRET, "ä": "1&2"}) == b"fine"
        assert fetch(f"http://{server.address}?a=b c&d=%20", 30, 4) == b"fine"
        (posted, form), (got, nothing) = server.requests
    assert posted.startswith(b"POST /page HTTP/1.1\r\n")
    assert f"\r\nHost: {server.address}\r\n".encode() in posted
    assert urllib.parse.parse_qs(form.decode()) == {"token": [SECRET], "ä": ["1&2"]}
    assert got.startswith(b"GET /?a=b%20c&d=%20 HTTP/1.1\r\n")
    assert nothing == b""


def test_proxies_of_the_environment_are_not_told(monkeypatch):
    with answering(WHOLE) as server, answering(WHOLE) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "10.0.0.0/8")
        assert fetch(f"http://{server.address}/", 30, 100, {"token": SECRET}) == b"fine"
        assert len(server.requests) == 1
        assert proxy.requests == []


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nx: ", b"y"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["head", "body", "chunks", "go on"],
)
def test_bytes_that_trickle_postpone_nothing(head, piece):
    with endless(head, piece, 0.02) as server, pytest.raises(TimeoutError, match=r"within 0\.3 s"):
        fetch(f"http://{server.address}/", 0.3, 1 << 20)


def test_a_server_that_reads_nothing_is_given_up():
    """The request is longer than what two sockets hold."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(TimeoutError, match="within"):
            fetch(f"http://{address}/", 0.3, 100, {"a": "x" * (64 << 20)})


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"]
)
def test_an_answer_has_a_longest_length(head):
    with endless(head, b"x" * 1000, 0) as server, pytest.raises(OSError, match="longer than 5000 bytes"):
        fetch(f"http://{server.address}/", 30, 5000)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", "status 302, a redirect"),
        (b"HTTP/1.1 403 No\x1b\r\nContent-Length: 0\r\n\r\n", "status 403$"),
        (WHOLE[:-1], "ended 1 bytes early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfine", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nlong\r\nfine", "no answer over HTTP"),
        (b"SSH-2.0-\x1b[2J" + b"x" * 1000 + b"\r\n", r"BadStatusLine\('SSH-2.0-\\x1b\[2Jx{1,100}$"),
        (b"", "closed connection without response"),
    ],
    ids=repr,
)
def test_what_is_no_answer(answer, text):
    with answering(answer) as server:
        with pytest.raises(OSError, match=text) as refused:
            fetch(f"http://{server.address}/?{SECRET}", 30, 100, {"token": SECRET})
        assert len(server.requests) == 1
    assert SECRET not in str(refused.value)


def test_a_name_that_cannot_be_one_is_no_answer():
    with pytest.raises(OSError, match=r"a{64}|label"):
        fetch(f"http://{'a' * 64}.invalid/", 30, 100)


def test_over_tls_the_certificate_is_checked(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    pair = authority.issue("server", "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    with Server(lambda connected, _: connected.sendall(WHOLE), context).served() as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch(f"https://{server.address}/", 30, 100)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
        assert fetch(f"https://{server.address}/", 30, 100) == b"fine"
