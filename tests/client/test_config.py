"""The client's settings, and consumer groups that have the names of reads."""

import dataclasses
import logging
import pickle

import pytest

from tests.cases import in_one_test
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.config import (
    BuiltInPartitioner,
    ClientConfig,
    check_consumer_group,
    default_reader_groups,
    group_of_reader,
)
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint

MASTER = Endpoint("10.1.2.3", 8715)


def config(**changes):
    return ClientConfig(**{"masters": (MASTER,), "group": "etl", **changes})


def test_the_defaults_are_good():
    usual = config()
    assert usual.validate() == usual
    more = {"masters", "group", "reader_groups", "consumer"}
    defaults = {field.name: getattr(usual, field.name) for field in dataclasses.fields(usual)}
    assert {name: value for name, value in defaults.items() if name not in more} == {
        "username": None,
        "password": None,
        "tls": None,
        # Those of TubeMQ's clients.
        "rpc_timeout_ms": 10_000,
        "connect_timeout_ms": 3_000,
        "heartbeat_period_ms": 13_000,
        "register_attempts": 5,
        "register_retry_ms": 1_000,
        # Our own.
        "message_types": (),
        "lease_wait_ms": 45_000,
        "fetch_timeout_ms": 600_000,
        "delivery_timeout_ms": 120_000,
        "retry_ambiguous": True,
        "keep_order": False,
        "partitioner": BuiltInPartitioner.ROUND_ROBIN,
        "max_in_flight": 512,
        "max_in_flight_bytes": 16 << 20,
        "linger_ms": 1,
        "stamp_message_time": True,
        "message_time_zone": "UTC",
        "checksums": False,
    }


def test_a_dead_reader_s_lease_is_outlived():
    """It ends 35 s after the last fetch, at a scan each second; the broker refuses once more then."""
    assert config().lease_wait_ms >= 40_000


def test_reader_groups_are_made_from_the_group():
    assert config().reader_groups == default_reader_groups("etl", 16)
    assert config().reader_groups[0] == "etl_r00"
    assert config().reader_groups[-1] == "etl_r15"
    assert config(reader_groups=("a1", "b2")).reader_groups == ("a1", "b2")


def test_the_password_is_not_shown():
    secret = config(username="me", password="hush")

    assert "hush" not in repr(secret)
    assert pickle.loads(pickle.dumps(secret)) == secret


@in_one_test(
    ("changes", "named"),
    [
        ({"masters": ()}, "masters"),
        ({"group": ""}, "group"),
        ({"group": "a:b"}, "group"),
        ({"group": "a" * 1025, "reader_groups": ("fine",)}, "group"),
        ({"reader_groups": ("fine", "not:fine")}, "group"),
        ({"username": "me"}, "username"),
        ({"password": "hush"}, "username"),
        ({"message_types": ("a#b",)}, "message_types"),
        ({"message_types": tuple(f"t{n}" for n in range(501))}, "message_types"),
        ({"rpc_timeout_ms": 86_400_001}, "rpc_timeout_ms"),
        ({"rpc_timeout_ms": "10000"}, "rpc_timeout_ms"),
        ({"retry_ambiguous": "false"}, "retry_ambiguous"),
        ({"rpc_timeout_ms": 0}, "rpc_timeout_ms"),
        ({"register_retry_ms": -1}, "register_retry_ms"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight_bytes": 0}, "max_in_flight_bytes"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(changes, named):
    with pytest.raises(OptionError, match=f"setting {named} is") as caught:
        config(**changes).validate()
    assert "hush" not in str(caught.value)


@in_one_test(
    "changes",
    [
        {"group": "ab"},
        {"group": "A-b_9"},
        {"group": "a" * 1019},
        {"group": "a" * 1024, "reader_groups": ("ab",)},
        {"username": "me", "password": "hush"},
        {"register_retry_ms": 0},
        {"lease_wait_ms": 0},
        {"delivery_timeout_ms": 1},
        {"rpc_timeout_ms": 1, "register_attempts": 1, "max_in_flight": 1, "max_in_flight_bytes": 1},
    ],
)
def test_settings_at_their_bounds_are_good(changes):
    config(**changes).validate()


def test_a_copy_keeps_its_reader_groups():
    assert dataclasses.replace(config(), rpc_timeout_ms=5).reader_groups == config().reader_groups


def test_heartbeats_come_before_servers_forget_a_client():
    assert config(heartbeat_period_ms=29_000).validate()
    with pytest.raises(OptionError, match="heartbeat_period_ms"):
        config(heartbeat_period_ms=30_000).validate()


NOWHERE = Endpoint("127.0.0.1", 9)


def client_of(way, group, **settings):
    """Return a client that reaches no server."""
    if way == "gateways":
        return TubeMQClient(ClientConfig((), group, **settings), gateways=(NOWHERE,))
    client = TubeMQClient(ClientConfig((NOWHERE,), group, **settings))
    return AsyncTubeMQClient(client) if way == "aio" else client


def make(client, kind):
    return getattr(client, f"{kind}_consumer")("demo")


ways = pytest.mark.parametrize("way", ["direct", "gateways", "aio"])
kinds = pytest.mark.parametrize("kind", ["group", "assigned"])


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def test_every_name_of_a_read_is_known():
    config = ClientConfig((NOWHERE,), "et-l_r1")
    assert {group_of_reader(name) for name in config.probe_groups} == {"et-l_r1"}
    assert len(config.probe_groups) == 17


@in_one_test("name", ["etl", "etl_r0", "etl_r", "_r00", "_probe", "etl_r00x", "etl-r00", "etl_probes", "r00"])
def test_other_names_are_no_names_of_reads(name):
    assert group_of_reader(name) is None


@ways
@kinds
def test_a_consumer_group_that_is_named_like_a_reader_group_is_warned_of_once(way, kind, warnings):
    group = f"{kind}{way}_r07"
    client = client_of(way, group)
    for _ in range(2):
        make(client, kind)
    make(client_of(way, group), kind)
    (warning,) = warnings()
    assert warning.startswith(f"the consumer group '{group}' is named like a reader group of '{kind}{way}': ")
    assert "choose another name, unless" in warning


@ways
@kinds
def test_a_consumer_group_that_its_own_client_reads_under_is_refused(way, kind, warnings):
    client = client_of(way, "etl", reader_groups=("one", "etl"))
    with pytest.raises(
        OptionError, match=r"'etl' is one of the reader groups \(etl, one\) too.*name"
    ) as refused:
        make(client, kind)
    assert refused.value.condition == "TUBEMQ_GROUP_OF_READERS"
    assert not warnings()


def test_other_groups_are_good(warnings):
    check_consumer_group("etl", ClientConfig((NOWHERE,), "etl").reader_groups)
    assert not warnings()
