"""Addresses given as a master's that are not: the error says what they are, and which port is meant."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from testkit.connections import opened
from tests.client.scripted_master import STANDBY, ScriptedMaster, balance, config_for
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method


@pytest.fixture
def broker(tmp_path):
    with EmbeddedTubeMQ(tmp_path) as server:
        yield Endpoint.parse(server.broker)


@pytest.fixture
def web():
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Endpoint("127.0.0.1", server.server_address[1])
        server.shutdown()
        thread.join()


def _refusal(connections, *masters):
    with pytest.raises(OptionError) as caught:
        run(balance(config_for(*masters), connections).open())
    assert not caught.value.retriable
    return str(caught.value)


def test_a_broker_given_as_a_master_is_named(connections, broker):
    assert _refusal(connections, broker) == (
        f"[TUBEMQ_NOT_A_MASTER] {broker} is a TubeMQ broker, not a TubeMQ master; correct the masters' "
        "addresses (in Spark: tubemq.master.servers); masters listen on port 8715 by default."
    )


def test_a_web_port_given_as_a_master_is_named(connections, web):
    assert f"{web} is an HTTP server, not a TubeMQ master" in _refusal(connections, web)


def test_the_first_of_several_wrong_addresses_is_named(connections, broker, web):
    assert f"{web} is an HTTP server" in _refusal(connections, web, broker)


def test_a_wrong_address_beside_a_master_does_no_harm(connections, broker, web, master):
    with opened(balance(config_for(web, broker, master), connections)) as session:
        assert session.visit_token == 7


def test_a_wrong_address_beside_a_master_that_is_away_is_told_with_it(connections, broker):
    with ScriptedMaster(balance_register=STANDBY) as standing_by:
        config = config_for(broker, standing_by, register_attempts=1)
        with pytest.raises(TubeMQConnectionError, match=f"{broker} is a TubeMQ broker") as caught:
            run(balance(config, connections).open())
    assert caught.value.retriable
    assert "is not master now" in str(caught.value)


@pytest.fixture
def damaging(tmp_path):
    """Return a master whose answers to registrations cannot be read."""
    with EmbeddedTubeMQ(tmp_path, topics={"demo": (1, 1)}) as server:
        server.faults.corrupt(Method.BALANCE_REGISTER, at=-3)
        yield Endpoint.parse(server.master)


def test_a_master_whose_answer_cannot_be_read_is_passed_over(connections, damaging, master):
    with opened(balance(config_for(damaging, master), connections)) as session:
        assert session.visit_token == 7


def test_an_answer_that_cannot_be_read_is_asked_for_again(connections, tmp_path):
    with EmbeddedTubeMQ(tmp_path, topics={"demo": (1, 1)}) as server:
        damage = server.faults.corrupt(Method.BALANCE_REGISTER, at=-3, times=1)
        with opened(balance(config_for(Endpoint.parse(server.master)), connections)) as session:
            assert run(session.layout()).partitions
        assert damage.hits == 1


def test_the_only_master_s_answer_that_cannot_be_read_is_told(connections, damaging):
    with pytest.raises(TubeMQConnectionError, match=r"TUBEMQ_NO_MASTER.*TUBEMQ_BAD_ANSWER") as caught:
        run(balance(config_for(damaging, register_attempts=1), connections).open())
    assert caught.value.retriable
