"""The status page and what is served beside it; the page is parsed, not searched."""

import contextlib
import http.client
import itertools
import re
import socket
import threading
from html.parser import HTMLParser

import pytest

from tests.gateway.running import PlainClient, gateway, tubemq
from tests.waiting import wait_until
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.gateway import overview, web
from tubemq_spark.gateway.overview import Flow, GatewayOverview, Rates, RouteRow, SessionRow
from tubemq_spark.gateway.web import WebServer, render
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import sends
from tubemq_spark.protocol.send_batch import SendBatch

pytestmark = pytest.mark.usefixtures("nothing_left_behind_by_the_module")

_NO_END = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Tables by their ids, as rows of texts; every element must be closed where it was opened."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.references, self.tags = {}, [], []
        self._open, self._cell = [], None
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        self.references += [value for name, value in attrs.items() if name in {"src", "href", "action"}]
        if tag not in _NO_END:
            self._open.append(tag)
        if tag == "table":
            self._rows = self.tables[attrs["id"]] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in {"td", "th"}:
            self._cell = ""

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        if tag in {"td", "th"}:
            self._rows[-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data


@pytest.fixture(scope="module")
def served(nothing_left_behind_by_the_module):
    # Each look sees what the test has just changed.
    with (
        pytest.MonkeyPatch.context() as patch,
        tubemq(demo=(1, 1)) as server,
        gateway(server, metrics=Endpoint("127.0.0.1", 0)) as running,
    ):
        patch.setattr(web, "_PAGE_S", 0)
        yield running


def request(running, path, method="GET", **headers):
    return request_at(running.server.metrics_address, path, method, **headers)


def request_at(address, path, method="GET", **headers):
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_the_status_page_shows_sessions_routes_rates_and_waits(served):
    with PlainClient(served.address, "reader <b>&amp;") as client:
        client.open(group="readers")
        client("PublishStream", batch=sends.to_proto(SendBatch.of("demo", [b"x" * 100] * 50)), name="test")
        client("QueryRoute", topics=["demo"])
        status, headers, text = request(served, "/")
        client("CloseSession")

    page = Page(text)

    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    facts = dict(page.tables["gateway"])
    assert (facts["state"], facts["address"]) == ("serving", served.address)
    session = dict(zip(*page.tables["sessions"], strict=True))
    assert (session["client"], session["group"]) == ("reader <b>&amp;", "readers")
    assert (session["calls"], session["running"]) == ("2", "0")
    assert [row[:4] for row in page.tables["routes"][1:]] == [["demo", "readers", "3", "3"]]
    rates = {row[0]: row[1:] for row in page.tables["rates"]}
    assert rates["published"][2] == "50"
    assert float(rates["published"][0].replace(",", "")) > 0
    assert rates["read"][2] == "0"
    assert dict(page.tables["waits"][1:])["Open sessions"] == "1"
    assert dict(page.tables["waits"][1:])["Fetches that wait for messages"] == "0"
    assert not [name for name, _ in page.tables["waits"] if name.startswith("Whether")], (
        "a number is no answer"
    )


def test_the_status_page_needs_nothing_from_elsewhere(served):
    page = Page(request(served, "/")[2])
    assert page.references == ["/metrics"]
    assert not {"script", "link", "img", "iframe", "form"} & set(page.tags)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("POST", "/", 405), ("DELETE", "/metrics", 405), ("HEAD", "/", 200)],
)
def test_the_status_page_has_no_other_paths_and_changes_nothing(served, method, path, status):
    assert request(served, path, method)[0] == status


def test_metrics_are_beside_the_status_page(served):
    status, headers, text = request(served, "/metrics")
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert "tubemq_gateway_waiting_calls 0.0" in text
    assert 'tubemq_gateway_limit{setting="sessions"} 10000.0' in text


def test_health_fails_while_the_gateway_drains(served):
    assert request(served, "/health")[::2] == (200, "serving\n")
    served.server._calls.draining = True
    try:
        assert request(served, "/health")[::2] == (503, "draining\n")
        assert dict(Page(request(served, "/")[2]).tables["gateway"])["state"] == "about to stop"
    finally:
        served.server._calls.draining = False


def test_a_gateway_stops_although_a_client_is_connected_to_its_page(served):
    """A client that sends no request holds a connection open."""
    with tubemq(demo=(1, 1)) as server, gateway(server, metrics=Endpoint("127.0.0.1", 0)) as running:
        host, port = running.server.metrics_address.split(":")
        silent = http.client.HTTPConnection(host, int(port))
        silent.connect()
        wait_until(lambda: request(running, "/health")[0] == 200)
        running.stop(0)
        silent.close()


def test_rates_are_those_of_the_last_moments():
    ticks = itertools.count(0, 10)
    rates = Rates(clock=lambda: next(ticks))
    rates.mark({"read": (1_000, 5_000), "published": (0, 0)})
    assert rates.flows({"read": (2_000, 6_000), "published": (0, 0)})["read"] == Flow(2_000, 6_000, 100, 300)
    rates.mark({"read": (2_000, 6_000), "published": (0, 0)})
    found = rates.flows({"read": (2_000, 6_000), "published": (0, 0)})
    assert found["read"] == Flow(2_000, 6_000, 1_000 / 30, 1_000 / 30)


def seen(sessions=(), routes=(), **changes):
    values = {
        "name": "g",
        "cluster": "c",
        "version": "v",
        "address": "a",
        "masters": ("m",),
        "uptime_ms": 1,
        "draining": False,
        "degraded": False,
        "flows": {},
        "history": {"read": (), "published": ()},
        "numbers": {},
        "sessions": tuple(sessions),
        "session_count": len(sessions),
        "routes": tuple(routes),
    }
    return GatewayOverview(**{**values, **changes})


def row(text="c"):
    return SessionRow(text, text, text, text, text, age_ms=3_700_000, silent_ms=65_000, calls=1, running=0)


def test_many_sessions_are_counted_and_not_all_listed():
    text = render(seen([row()], session_count=12_345))
    assert "<caption>12,345 sessions</caption>" in text
    assert "<caption>1 session</caption>" in render(seen([row()]))
    assert "12,344 more sessions are not listed." in text
    assert Page(text).tables["sessions"][1][5:7] == ["1 h 1 min", "1 min 5 s"]


def test_the_page_is_bounded_whatever_clients_name(served, monkeypatch):
    long = "<" * 1_000_000
    text = render(
        seen([row(long)] * overview.SHOWN, [RouteRow(long, long, 1, 1, 1)] * overview.SHOWN, name=long)
    )
    assert len(text) < 2_000_000
    monkeypatch.setattr(overview, "SHOWN", 2)
    clients = [PlainClient(served.address, f"client-{number}") for number in range(4)]
    for client in clients:
        client.open(group="readers")
    tables = Page(request(served, "/")[2]).tables
    for client in clients:
        client("CloseSession")
        client.channel.close()
    assert [line[0] for line in tables["sessions"]] == ["client", "client-0", "client-1"]


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "a\u202eb", "\ud800"], ids=ascii)
def test_what_is_not_printable_is_not_on_the_page(text):
    page = render(seen([row(text)]))
    page.encode()
    assert page.isprintable() or set(page) - {"\n"} == {one for one in page if one.isprintable()}
    assert "\N{REPLACEMENT CHARACTER}" in Page(page).tables["sessions"][1][0]


@pytest.mark.parametrize(
    ("changes", "mood", "words"),
    [
        ({}, "good", "serving"),
        ({"degraded": True}, "warning", "serving, but no master answers"),
        ({"draining": True, "degraded": True}, "bad", "about to stop"),
    ],
    ids=["serving", "degraded", "draining"],
)
def test_the_state_has_words_and_a_colour(changes, mood, words):
    page = render(seen(**changes))
    assert f'<strong class="state {mood}">{words}</strong>' in page
    assert f".{mood}{{background:" in page


def test_the_chart_has_the_rates_of_the_last_minutes_and_ends_now():
    history = {"read": tuple(float(n) for n in range(60)), "published": (0.0, 100.0)}
    page = render(seen(history=history))
    points = {
        name: [tuple(map(float, point.split(","))) for point in text.split()]
        for name, text in re.findall(r'<polyline class="(\w+)" points="([^"]+)"/>', page)
    }
    assert "<span>100</span>" in page
    assert len(points["read"]) == 60
    assert (points["read"][0], points["read"][-1]) == ((0, 100), (600, 41))
    assert points["published"][-1] == (600, 0)
    assert points["published"][0] == (points["read"][-2][0], 100)


def test_the_history_of_rates_is_that_of_five_minutes():
    ticks = itertools.count(0, 5)
    rates = Rates(clock=lambda: next(ticks))
    for number in range(1, 101):
        rates.mark({"read": (number * number, 0), "published": (0, 0)})
    history = rates.history()
    assert len(history["read"]) == 60
    assert history["read"][-1] == (100**2 - 99**2) / 5
    assert set(history["published"]) == {0}


def test_phones_and_dark_screens_have_their_form():
    page = render(seen())
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "prefers-color-scheme:dark" in page


# Who asks, and how long, and how often.

FOREIGN = {
    "rebinding": {"Host": "evil.example.com"},
    "a page of another site": {"Sec-Fetch-Site": "cross-site"},
    "another origin": {"Origin": "http://evil.example.com"},
}


@pytest.mark.parametrize("path", ["/", "/metrics"])
@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_request_that_another_site_may_have_sent_is_refused(served, path, headers):
    with PlainClient(served.address, "secret-name") as client:
        client.open()
        status, _, text = request(served, path, **headers)
        client("CloseSession")
    assert status == 403
    assert "metrics_hosts" in text
    assert "secret-name" not in text


@pytest.fixture
def web_server():
    """A web server alone, and how often it asked for an overview."""
    opened = []

    def start(names=(), look=seen, **more):
        asked = []

        def counted():
            asked.append(None)
            return look()

        opened.append(
            WebServer(Endpoint("127.0.0.1", 0), names, counted, lambda: "numbers", lambda: True, **more)
        )
        return opened[-1], asked

    yield start
    for server in opened:
        server.close()


def test_a_port_in_use_is_an_error_that_names_the_setting(web_server):
    taken = web_server()[0].endpoint
    with pytest.raises(TubeMQConnectionError, match=r"; set metrics \(--metrics\) to another port, or to 0 "):
        WebServer(taken, (), seen, lambda: "numbers", lambda: True)


def test_a_name_of_the_settings_is_served(web_server):
    server, _ = web_server(names=["gateway1.example.com"])
    assert request_at(str(server.endpoint), "/", Host="gateway1.example.com:9191")[0] == 200
    assert request_at(str(server.endpoint), "/", Host="localhost")[0] == 200
    assert request_at(str(server.endpoint), "/", Host="gateway2.example.com")[0] == 403
    # Load balancers ask for names of their own.
    assert request_at(str(server.endpoint), "/health", Host="gateway2.example.com")[0] == 200


def test_the_page_is_made_once_a_second_and_health_looks_at_nothing(web_server, monkeypatch):
    monkeypatch.setattr(web, "_PAGE_S", 1.0)
    now = [100.0]
    server, asked = web_server(clock=lambda: now[0])
    for _ in range(3):
        assert request_at(str(server.endpoint), "/health")[0] == 200
    assert len(asked) == 0
    for _ in range(3):
        assert request_at(str(server.endpoint), "/")[0] == 200
    assert len(asked) == 1
    now[0] += 1
    request_at(str(server.endpoint), "/")
    assert len(asked) == 2


def test_a_mistake_is_in_the_log_and_not_on_the_page(web_server, caplog):
    def fail():
        raise TimeoutError("the event loop does not answer")

    server, _ = web_server(look=fail)
    status, _, text = request_at(str(server.endpoint), "/")
    assert (status, "event loop" in text) == (500, False)
    assert any(entry.exc_info and entry.exc_info[0] is TimeoutError for entry in caplog.records)


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\nX: "], ids=["nothing", "a line"])
def test_a_request_that_never_ends_is_given_up_however_its_bytes_come(web_server, monkeypatch, beginning):
    monkeypatch.setattr(web, "_REQUEST_S", 0.3)
    server, _ = web_server()
    over = threading.Event()
    with socket.create_connection(("127.0.0.1", server.endpoint.port), 10) as slow:
        slow.sendall(beginning)

        def drip():
            while not over.wait(0.05):
                try:
                    slow.sendall(b"x")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            while slow.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        finally:
            over.set()
            dripping.join()


def test_connections_are_bounded(web_server, monkeypatch):
    monkeypatch.setattr(web, "_MOST_CONNECTIONS", 3)
    server, _ = web_server()
    silent = [socket.create_connection(("127.0.0.1", server.endpoint.port), 10) for _ in range(3)]
    wait_until(lambda: server.connection_count == 3)
    with (
        socket.create_connection(("127.0.0.1", server.endpoint.port), 10) as further,
        contextlib.suppress(ConnectionError),
    ):
        further.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert further.recv(1) == b""
    for one in silent:
        one.close()
    wait_until(lambda: server.connection_count == 0)
    assert request_at(str(server.endpoint), "/health")[0] == 200
