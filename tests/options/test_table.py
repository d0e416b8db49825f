import importlib.util
import re
from pathlib import Path

import pytest

from tubemq_spark.errors import CONDITIONS, OptionError
from tubemq_spark.options import table
from tubemq_spark.options.table import ENGINE_KEYS, REFUSED, TABLE, Mode, find

ROOT = Path(__file__).resolve().parents[2]


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_page_is_up_to_date():
    """Run ``make docs`` when this fails."""
    tool = load_tool("gen_option_docs")
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page()


each_spec = pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.name)


@each_spec
def test_every_option_is_found_in_any_case(spec):
    for key in (spec.name, spec.name.lower(), spec.name.upper()):
        assert find(key) is spec


@each_spec
def test_every_option_is_documented(spec):
    assert spec.modes <= set(Mode)
    assert spec.modes
    assert spec.doc.endswith(".")
    assert "|" not in spec.doc + spec.default_doc + spec.kind.expected
    assert spec.default_doc or spec.default is not None or spec.example or spec.name.startswith("tubemq.")


@each_spec
def test_defaults_and_examples_are_values_of_their_kind(spec):
    if spec.default is not None:
        assert spec.read(spec.kind.show(spec.default)) == spec.default
    if spec.example:
        assert spec.read(spec.example)


@each_spec
def test_a_number_has_its_unit_in_its_name(spec):
    if "whole number" in spec.kind.expected:
        assert re.search("Ms|Bytes|Messages|Offsets|Partitions|Ranges|Records|Retries|size", spec.name)


def test_the_module_lists_every_spec_once():
    specs = [value for value in vars(table).values() if isinstance(value, table.OptionSpec)]
    assert sorted(specs, key=lambda spec: spec.name) == sorted(TABLE, key=lambda spec: spec.name)
    names = [spec.name.lower() for spec in TABLE]
    assert len(names) == len(set(names))
    assert not set(names) & (ENGINE_KEYS | {name.lower() for name in REFUSED})


def test_options_named_in_errors_and_advice_exist():
    """What a message tells the user to set must be there."""
    known = {spec.name for spec in TABLE}
    texts = [*CONDITIONS.values(), *REFUSED.values()]
    for text in texts:
        for name in re.findall(r"\b(?:tubemq|readerGroups|fetchOffset)\.\w+(?:\.\w+)?", text):
            assert name in known
        for name in re.findall(r"\b(?:[a-z]+Offsets|failOnDataLoss|include\w+)\b", text):
            assert name in known


@pytest.mark.parametrize("key", [*ENGINE_KEYS, "queryName", "option.subscribe", "__internal"])
def test_keys_of_spark_are_let_through(key):
    assert find(key) is None


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_kafka_are_refused_with_the_alternative(name):
    with pytest.raises(OptionError) as caught:
        find(name.lower())
    assert caught.value.condition == "TUBEMQ_OPTION_UNSUPPORTED"
    assert str(caught.value).endswith(f"Option '{name}' is not supported by this release; {REFUSED[name]}.")


@pytest.mark.parametrize("key", ["kafka.sasl.mechanism", "Kafka.X"])
def test_all_settings_of_a_kafka_client_are_refused(key):
    with pytest.raises(OptionError, match="Kafka client settings have no meaning here"):
        find(key)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("startingoffset", "did you mean 'startingOffsets'?"),
        ("subscibe", "did you mean 'subscribe'?"),
        ("maxoffsetpertrigger", "did you mean 'maxOffsetsPerTrigger'?"),
        ("tubemq.master", "did you mean 'tubemq.master.servers'?"),
        ("group", "did you mean 'tubemq.group'?"),
        ("rpctimeoutms", "did you mean 'tubemq.rpcTimeoutMs'?"),
        ("tubemq.user", "did you mean 'tubemq.username'?"),
        ("zzz", "see docs/reference/options.md for all options."),
        ("", "see docs/reference/options.md for all options."),
    ],
)
def test_an_unknown_option_names_the_nearest(key, advice):
    with pytest.raises(OptionError) as caught:
        find(key)
    assert caught.value.condition == "TUBEMQ_OPTION_UNKNOWN"
    assert str(caught.value).endswith(f"Option '{key}' is not known; {advice}")


def test_a_wrong_value_is_shown_with_what_it_must_be():
    with pytest.raises(OptionError) as caught:
        table.MAX_OFFSETS.read("many")
    assert caught.value.condition == "TUBEMQ_OPTION_VALUE"
    assert "Option 'maxOffsetsPerTrigger' is 'many', but must be a whole number from 1 to" in str(
        caught.value
    )


def test_a_secret_is_never_shown():
    assert table.PASSWORD.show("hidden") == "***"
    secrets = ["tubemq.gateway.token", "tubemq.password", "tubemq.tls.keyPassword"]
    assert [spec.name for spec in TABLE if spec.secret] == secrets
    with pytest.raises(OptionError, match=r"'tubemq.password' is '\*\*\*', but must be some text"):
        table.PASSWORD.read("")
