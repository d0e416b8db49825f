"""The gateway finds out where the masters are, and its sessions go on."""

import contextlib
import logging

import pytest

from testkit.forwarder import Forwarder
from tests.gateway.running import PlainClient, RefusedError, gateway, settings, tubemq
from tests.gateway.web_page import WebPage
from tests.waiting import wait_until
from tubemq_spark.client.master import identity
from tubemq_spark.errors import GatewayError
from tubemq_spark.model import Endpoint

pytestmark = pytest.mark.usefixtures("nothing_left_behind_by_the_module")

QUICKLY = {"master_discovery_ms": 50, "route_refresh_ms": 50}


@pytest.fixture
def page():
    with WebPage() as page:
        yield page


@pytest.fixture(scope="module")
def server(nothing_left_behind_by_the_module):
    with tubemq(demo=(2, 1), other=(1, 1)) as running:
        yield running


def by_http(page, first):
    return {
        "master_servers": (Endpoint.parse(first),),
        "master_discovery": "http",
        "master_discovery_url": page.url,
        **QUICKLY,
    }


@contextlib.contextmanager
def served_with(server, **changes):
    """A gateway that does not know the server's master by itself, and a client with a session."""
    with gateway(server, **changes) as running, PlainClient(running.address) as client:
        client.open()
        yield client


def topic_is_known(client, topic):
    with contextlib.suppress(RefusedError):
        return len(client("QueryRoute", topics=[topic]).partitions) > 0
    return False


def test_masters_that_move_are_followed_and_sessions_go_on(server, page, caplog):
    with Forwarder(server.master) as before, Forwarder(server.master) as after:
        page.text = before.address
        with served_with(server, **by_http(page, before.address)) as client:
            assert topic_is_known(client, "demo")
            with caplog.at_level(logging.INFO, "tubemq_spark.gateway.upstream"):
                page.text = f"{after.address}\n"
                page.await_more()
            before.close_port()
            # No call has asked for that one.
            wait_until(lambda: topic_is_known(client, "other"), 10)
        assert f"the masters are {after.address} now, and were {before.address} before" in caplog.text


def test_a_proxy_of_the_environment_is_not_asked_for_the_list(server, page, monkeypatch):
    with Forwarder(server.master) as gone:
        first = gone.address
    monkeypatch.setenv("http_proxy", f"http://{first}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_grpc_proxy", "127.0.0.1")  # for the client of this test
    page.text = server.master
    with served_with(server, **by_http(page, server.master)):
        page.await_more()


def test_the_list_at_the_start_counts_before_anything_is_asked(server, page):
    with Forwarder(server.master) as gone:
        first = gone.address
    page.text = f"{first}, {server.master};"
    with served_with(server, **by_http(page, first)) as client:
        assert topic_is_known(client, "demo")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (500, ""),
        (200, ""),
        (200, "no address:at all"),
        (200, "<html>\n<body>"),
        (200, "127.0.0.1:00001\n" * 10_000),
    ],
    ids=["error", "nothing", "text", "page", "long"],
)
def test_the_last_good_list_stays_when_the_next_one_is_no_use(server, page, caplog, status, text):
    page.text = server.master
    with (
        caplog.at_level(logging.WARNING, "tubemq_spark.gateway.upstream"),
        served_with(server, **by_http(page, server.master)) as client,
    ):
        page.status, page.text = status, text
        page.await_more()
        page.await_more()
        assert topic_is_known(client, "other")
        told = [record.message for record in caplog.records if "the masters" in record.message]
    assert len(told) == 1, "once per row of failures"
    assert f"the masters stay {server.master}" in told[0]


def test_a_name_stands_for_all_its_addresses(server):
    name = f"localhost:{Endpoint.parse(server.master).port}"
    with served_with(
        server, master_servers=(Endpoint.parse(name),), master_discovery="dns", **QUICKLY
    ) as client:
        assert topic_is_known(client, "demo")
        assert Endpoint.parse(server.master) in identity.current_masters((Endpoint.parse(name),))


@pytest.mark.parametrize(
    "changes",
    [
        {"master_discovery": "http"},
        {"master_discovery": "dns", "master_discovery_url": "http://somewhere/masters"},
        {"master_discovery_url": "http://somewhere/masters"},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_together_are_refused(server, changes):
    with pytest.raises(GatewayError, match="master_discovery_url"):
        settings(server, **changes)


def test_sessions_ask_the_administration_api_of_the_masters_of_now(server, page):
    """Without ``master_web`` it is at the usual port of each master, also for a session opened before."""
    port = server.master.rpartition(":")[2]
    page.text = f"127.0.0.1:{port}"
    with served_with(server, **by_http(page, page.text), master_web=None) as client:
        with pytest.raises(RefusedError, match=r"127\.0\.0\.1:8080"):
            client("ListTopics")
        page.text = f"localhost:{port}"
        page.await_more()
        with pytest.raises(RefusedError, match=r"localhost:8080"):
            client("ListTopics")


def test_a_login_in_the_url_is_refused_and_not_repeated(server):
    with pytest.raises(GatewayError, match="without a user and a password") as refused:
        settings(server, master_discovery="http", master_discovery_url="http://me:hush@masters/")
    assert "hush" not in str(refused.value)
