"""The pages about consumers: their examples run as they stand, and their tables are those of the code."""

import dataclasses
import re
from pathlib import Path

from tubemq_spark.client import (
    AssignedConsumer,
    ClientConfig,
    ConsumePosition,
    ConsumerConfig,
    TubeMQClient,
    urls,
)
from tubemq_spark.client.consumer.flow_control import parse_flow_rules
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.settings.fields import settings_of

PAGES = Path(__file__).resolve().parents[3] / "docs" / "client"
CONNECTS = re.compile(r'TubeMQClient\.connect\("127\.0\.0\.1:8715", group="(\w+)"\)')
TEXT = (PAGES / "which-consumer.md").read_text(encoding="utf-8")
WHOLE_NUMBER = "a whole number from "


def rows(heading):
    """The rows of the first table of a section."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def program_of(page):
    """Return the examples of a page, one after the other."""
    program = "\n".join(
        re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)
    )
    assert "127.0.0.1:8715" in program
    return program


def run(program, page):
    """Return the names that a program leaves."""
    names = {}
    try:
        exec(compile(program, page, "exec"), names)
    finally:
        if "client" in names:
            names["client"].close()
    return names


def test_the_examples_of_both_kinds_run(capsys):
    program = program_of("which-consumer.md")
    # Partitions come with heartbeats.
    program = program.replace("consume_position=first", "consume_position=first&heartbeat_period_ms=50")
    topics, settings = {"clicks": (1, 1), "orders": (1, 1)}, EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics=topics, brokers=3, settings=settings) as server:
        run(program.replace("127.0.0.1:8715", server.master), "which-consumer.md")
    topics, consumed, read, first = capsys.readouterr().out.splitlines()
    assert first == "b'1 book'"
    assert topics == "('clicks', 'orders')"
    assert re.fullmatch(r"orders/\d:0 b'1 book'", consumed)
    assert read == consumed.replace(" b'", " 0 b'")


def test_the_settings_are_those_of_consumers():
    usual = ConsumerConfig()
    expected = {}
    for field in dataclasses.fields(ConsumerConfig):
        default = getattr(usual, field.name)
        expected[field.name] = str(getattr(default, "value", default))
    page = rows("Settings of consumers")
    assert {row[0].strip("`"): row[1].strip("`") for row in page} == expected
    ranges = {row[0].strip("`"): row[2] for row in page if " to " in row[2]}
    kinds = {name: each.kind.expected for name, each in settings_of(ConsumerConfig).items()}
    numbers = {name: text for name, text in kinds.items() if text.startswith(WHOLE_NUMBER)}
    assert ranges == {name: text.removeprefix(WHOLE_NUMBER) for name, text in numbers.items()}


def test_the_positions_are_those_that_there_are():
    named = [re.match(r"`(\w+)`", row[0])[1] for row in rows("Where a consumer begins")]
    assert named == [position.value for position in ConsumePosition]


def test_the_keys_of_a_url_are_those_that_there_are():
    named = {key for row in rows("All settings in one URL") for key in re.findall(r"`([\w.]+)`", row[0])}
    settings = {field.name for kind in (ClientConfig, ConsumerConfig) for field in dataclasses.fields(kind)}
    assert named - settings - {"message_types.orders"} == set(urls._KINDS) - settings - {"tls"}
    assert hasattr(TubeMQClient, "from_url")


def test_the_rules_of_flow_control_have_these_fields():
    """What the page names is read, and all of it: a rule with one field less is refused."""
    values = {"start": '"08:00"', "end": '"09:00"', "dltInM": "21", "freqInMs": "200"}
    for kind, fields, _ in rows("How fast a consumer may read"):
        names = re.findall(r"`(\w+)`", fields)
        rule = {name: values.get(name, "7") for name in names}
        if int(kind) in {0, 1, 3}:
            assert parse_flow_rules(text(kind, rule)).problems == ()
        for name in names if int(kind) in {0, 1} else ():
            assert parse_flow_rules(text(kind, {key: rule[key] for key in rule if key != name})).problems


def text(kind, rule):
    fields = ",".join(f'"{name}":{value}' for name, value in rule.items())
    return f'[{{"type":{kind},"rule":[{{{fields}}}]}}]'


def test_the_examples_of_assigned_consumers_do_what_they_say():
    with EmbeddedTubeMQ(topics={"orders": (2, 2)}, brokers=3) as server:
        program = program_of("assigned-consumer.md").replace("127.0.0.1:8715", server.master)
        names = run(program, "assigned-consumer.md")
    assert sorted(names["read"]) == sorted(b"order %d" % number for number in range(1000))
    assert sorted(names["read_by_coroutine"]) == sorted(names["read"])
    first, second = names["shares"]
    assert len({*first, *second}) == len(first) + len(second) == 12
    assert names["confirmed"].offset > names["batch"].offset == 0


def test_the_page_about_assigned_consumers_names_what_there_is():
    for name in re.findall(r"`(\w+)\(", (PAGES / "assigned-consumer.md").read_text(encoding="utf-8")):
        assert hasattr(AssignedConsumer, name), name


def test_the_examples_of_group_consumers_do_what_they_say():
    settings = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics={"orders": (2, 2)}, brokers=3, settings=settings) as server:
        # Partitions come with heartbeats, which are 13 s apart otherwise.
        url = rf"tubemq://{server.master}?group=\1&heartbeat_period_ms=100"
        program, count = CONNECTS.subn(f'TubeMQClient.from_url("{url}")', program_of("group-consumer.md"))
        assert count == 2
        names = run(program, "group-consumer.md")
    assert sorted(names["read"]) == sorted(b"order %d" % number for number in range(1000))
    assert sorted(record.value for record in names["handled"]) == sorted(b"more %d" % n for n in range(30))
    everything = names["read"] + [record.value for record in names["handled"]]
    assert sorted(record.value for record in names["awaited"]) == sorted(everything)
