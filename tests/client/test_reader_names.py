"""Consumer groups that have the names of reads: warned of, or refused where they meet for certain."""

import logging

import pytest

from tests.cases import in_one_test
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.config import check_consumer_group, group_of_reader
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint

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
