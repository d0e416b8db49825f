"""The page for users of TubeMQ's own clients: what it names here is there, and nothing is left out."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import tubemq_spark.client
from tests.cases import in_one_test
from tubemq_spark import errors
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TlsConfig, urls
from tubemq_spark.client.producer.messages import MessageFields

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client" / "sdk-names.md"
_NAME = re.compile(r"`([A-Z]\w+)(?:\.(\w+))?(?:\((\w+)\))?`")


def tables():
    """The tables of the page, each as its rows, a row by the names of its columns."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()
        ]
        found.append([dict(zip(header, row, strict=True)) for row in rows])
    return found


ROWS = [row for table in tables() for row in table]
NAMED = sorted({match for row in ROWS for match in _NAME.findall(row["here"])})


def test_every_row_says_what_is_here():
    assert len(ROWS) > 50
    for row in ROWS:
        assert _NAME.search(row["here"]) or row["here"].startswith(
            ("not needed: ", "an error ", "one callable", "Python's")
        )


@in_one_test(("owner", "member", "argument"), NAMED)
def test_each_listed_name_exists_and_is_public(owner, member, argument):
    public = owner in tubemq_spark.client.__all__
    thing = getattr(tubemq_spark.client if public else errors, owner)
    if member:
        assert member in {*dir(thing), *getattr(thing, "__dataclass_fields__", ())}
    if argument:
        parameters = inspect.signature(getattr(thing, member)).parameters
        assert argument in {*parameters, *(MessageFields.__annotations__ if "fields" in parameters else ())}


@pytest.mark.parametrize("owner", [ConsumerConfig, TlsConfig])
def test_every_setting_is_on_the_page(owner):
    named = {member for name, member, _ in NAMED if name == owner.__name__}
    extra = {"min_version"}  # which no client of TubeMQ can set
    assert named == {field.name for field in dataclasses.fields(owner)} - extra


def test_every_position_is_on_the_page():
    assert {member for name, member, _ in NAMED if name == "ConsumePosition"} == set(
        ConsumePosition.__members__
    )


@in_one_test("row", [row for row in ROWS if row.get("default", "").startswith("`")])
def test_the_defaults_are_those_of_the_settings(row):
    owner, name, _ = _NAME.findall(row["here"])[0]
    default = inspect.signature(getattr(tubemq_spark.client, owner)).parameters[name].default
    if name == "group":
        default = "tubemq_spark"  # of TubeMQClient.connect and from_url
    text = re.match("`(.*?)`", row["default"])[1]
    assert text == str(getattr(default, "value", default))


def test_the_keys_of_go_are_those_that_a_url_explains():
    """A URL with a key of Go's names the one of ours that the page does."""
    ours = {}
    for row in ROWS:
        keys = re.findall(r"`(\w+)`", row.get("Go (key of the address)") or row.get("Go", ""))
        ours.update({key: _NAME.findall(row["here"]) for key in keys})
    told = {key: name for key, name in urls.GO_KEYS.items() if ours.get(key)}
    for key, name in told.items():
        members = {member for _, member, _ in ours[key]} | {argument for _, _, argument in ours[key]}
        assert name.removeprefix("tls_") in members or key == "boundConsume"
    assert set(urls.GO_KEYS) <= set(ours)
