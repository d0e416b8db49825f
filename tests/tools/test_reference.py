"""The reference of the Python API shows defaults as values, and calls that are made of others."""

import pytest

from testkit.git import ROOT

griffe = pytest.importorskip("griffe", reason="needs the packages of make site")


@pytest.fixture(scope="module")
def package():
    extensions = griffe.load_extensions(ROOT / "tools" / "reference.py")
    loader = griffe.GriffeLoader(extensions=extensions, search_paths=[ROOT], allow_inspection=False)
    return loader.load("tubemq_spark")


def test_a_setting_has_its_default_and_says_what_it_takes(package):
    config = package["client.config.ClientConfig"]
    parameters = config.parameters

    assert str(parameters["rpc_timeout_ms"].default) == "10000"
    assert str(parameters["partitioner"].default) == "BuiltInPartitioner.ROUND_ROBIN"
    assert parameters["masters"].default is None
    assert config["linger_ms"].docstring.value.endswith("It takes a whole number from 0 to 86400000.")
    assert [each.name for each in parameters if "setting(" in str(each.default)] == []


def test_a_default_that_is_a_constant_is_its_value(package):
    assert str(package["client.tubemq.TubeMQClient.connect"].parameters["group"].default) == "'tubemq_spark'"


def test_a_call_that_is_awaited_has_the_signature_and_the_text_of_the_one_that_blocks(package):
    call = package["client.aio.client.AsyncMasterAdmin.topics"]
    blocking = package["client.metadata.admin.MasterAdmin.topics"]

    assert call.is_function
    assert "async" in call.labels
    assert (call.parameters, call.docstring) == (blocking.parameters, blocking.docstring)


def test_a_class_that_a_client_makes_shows_no_constructor(package):
    assert "__init__" not in package["client.consumer.consumer.GroupConsumer"].all_members
