"""The status page and what is served beside it; the page is parsed, not searched."""

import http.client
import itertools
from html.parser import HTMLParser

import pytest

from tests.gateway.running import PlainClient, gateway, tubemq
from tests.waiting import wait_until
from tubemq_spark.gateway.operate.overview import Flow, Overview, Rates, SessionRow
from tubemq_spark.gateway.operate.status_page import render
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import sends
from tubemq_spark.protocol.send_batch import SendBatch

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
    with tubemq(demo=(1, 1)) as server, gateway(server, metrics=Endpoint("127.0.0.1", 0)) as running:
        yield running


def request(running, path, method="GET"):
    connection = http.client.HTTPConnection(running.server.metrics_address, timeout=10)
    try:
        connection.request(method, path)
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


def test_health_fails_while_the_gateway_drains(served):
    assert request(served, "/health")[::2] == (200, "serving\n")
    served.server.observer.draining = True
    try:
        assert request(served, "/health")[::2] == (503, "draining\n")
        assert dict(Page(request(served, "/")[2]).tables["gateway"])["state"] == "about to stop"
    finally:
        served.server.observer.draining = False


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


def test_many_sessions_are_counted_and_not_all_listed():
    row = SessionRow("c", "g", "p", "l", "v", age_ms=3_700_000, silent_ms=65_000, calls=1, running=0)
    seen = Overview("g", "c", "v", "a", ("m",), 1, True, {}, {}, (row,), 12_345, ())
    text = render(seen)
    assert "12,344 more sessions are not listed." in text
    assert Page(text).tables["sessions"][1][5:7] == ["1 h 1 min", "1 min 5 s"]
