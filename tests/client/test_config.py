import dataclasses
import pickle

import pytest

from tests.cases import in_one_test
from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig, default_reader_groups
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
