"""What a key of Spark's map stands for."""

import pytest

from tests.cases import in_one_test
from tubemq_spark.errors import OptionError
from tubemq_spark.options.rules import ENGINE_KEYS, REFUSED, find
from tubemq_spark.options.table import NAMED


@in_one_test("option", NAMED.values())
def test_every_option_is_found_in_any_case(option):
    for key in (option.name, option.name.lower(), option.name.upper()):
        assert find(key) is option


@in_one_test("key", [*ENGINE_KEYS, "queryName", "option.subscribe", "__internal"])
def test_keys_of_spark_are_let_through(key):
    assert find(key) is None


@in_one_test("name", REFUSED)
def test_options_of_kafka_are_refused_with_the_alternative(name):
    with pytest.raises(OptionError) as caught:
        find(name.lower())
    assert caught.value.condition == "TUBEMQ_OPTION_UNSUPPORTED"
    assert str(caught.value).endswith(
        f"Option '{name}' is one of Spark's Kafka source, and not of this one; {REFUSED[name]}."
    )


@pytest.mark.parametrize("key", ["kafka.sasl.mechanism", "Kafka.X"])
def test_all_settings_of_a_kafka_client_are_refused(key):
    with pytest.raises(OptionError, match="Kafka client settings have no meaning here"):
        find(key)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("startingoffset", "did you mean 'startingOffsets'?"),
        ("tubemq.masters", "did you mean 'tubemq.master.servers'?"),
        ("masters", "did you mean 'tubemq.master.servers'?"),
        ("tubemq.master", "did you mean 'tubemq.master.servers'?"),
        ("group", "did you mean 'tubemq.group'?"),
        ("zzz", "see docs/reference/options.md for all options."),
        ("", "see docs/reference/options.md for all options."),
    ],
)
def test_an_unknown_option_names_the_nearest(key, advice):
    with pytest.raises(OptionError) as caught:
        find(key)
    assert caught.value.condition == "TUBEMQ_OPTION_UNKNOWN"
    assert str(caught.value).endswith(f"Option '{key}' is not known; {advice}")
