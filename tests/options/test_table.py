import re

import pytest

from tests.cases import in_one_test
from tools.gen_docs import options
from tubemq_spark.errors import CONDITIONS, OptionError
from tubemq_spark.options.rules import ENGINE_KEYS, REFUSED
from tubemq_spark.options.table import FIELDS, NAMED
from tubemq_spark.options.values import Mode


def test_each_option_has_a_heading_and_a_link_to_it():
    page = options()
    headings = re.findall(r"^###? (.*)$", page, re.MULTILINE)
    anchors = [re.sub(r"[^\w\s-]", "", heading).replace(" ", "-").lower() for heading in headings]
    assert len(anchors) == len(set(anchors)) > len(NAMED)
    for option in NAMED.values():
        assert headings.count(f"`{option.name}`") == 1, option.name
        assert f"[`{option.name}`](#{anchors[headings.index(f'`{option.name}`')]})" in page


each_option = in_one_test("option", NAMED.values())


@each_option
def test_every_option_is_documented(option):
    assert option.modes, "an option belongs to batch reads, streams or writes: modes=..."
    assert option.modes <= set(Mode)
    assert option.doc.endswith("."), "the text of an option is one or more sentences"
    told = option.doc + option.default_doc + option.kind.expected
    assert "|" not in told, "the texts of an option stand in a table, whose cells end with |"


@each_option
def test_defaults_and_examples_are_values_of_their_kind(option):
    if option.default is not None and not option.default_doc:
        shown = option.kind.show(option.default)
        assert option.read(shown) == option.default, "the page shows the default, and users copy it"
    if option.example:
        assert option.read(option.example)


@each_option
def test_a_number_has_its_unit_in_its_name(option):
    if "whole number" in option.kind.expected:
        units = "Ms|Bytes|Messages|Offsets|Partitions|Ranges|Records|Retries|size"
        assert re.search(units, option.name), f"a number says in its name what it counts: one of {units}"


def test_names_differ_from_each_other_and_from_what_is_not_an_option():
    options = [option for by_field in FIELDS.values() for option in by_field.values()]
    # The time zone is a setting of reads, views and writes.
    assert len({option.name.lower() for option in options}) == len(NAMED) == len(options) - 2
    assert not {name.lower() for name in NAMED} & (ENGINE_KEYS | {name.lower() for name in REFUSED})


def test_options_named_in_errors_and_advice_exist():
    """What a message tells the user to set must be there."""
    known = NAMED.keys()
    texts = [*CONDITIONS.values(), *REFUSED.values()]
    for text in texts:
        for name in re.findall(r"\b(?:tubemq|readerGroups|fetchOffset)\.\w+(?:\.\w+)?", text):
            assert name in known
        for name in re.findall(r"\b(?:[a-z]+Offsets|failOnDataLoss|include\w+)\b", text):
            assert name in known


def test_a_secret_is_never_shown():
    assert NAMED["tubemq.password"].show("hidden") == "***"
    secrets = ["tubemq.gateway.token", "tubemq.password", "tubemq.tls.keyPassword"]
    assert sorted(name for name, option in NAMED.items() if option.secret) == secrets
    with pytest.raises(OptionError, match=r"'tubemq.password' is '\*\*\*', but must be some text"):
        NAMED["tubemq.password"].read("")
