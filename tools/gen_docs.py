"""Fills the marked places of the pages in ``docs`` with what the package says of itself.

A place is ``<!-- table: NAME -->`` ... ``<!-- end -->``, and ``TABLES`` has what goes there. All else
on a page is written by hand.
"""

import argparse
import dataclasses
import functools
import re
import string
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import Metric

from tubemq_spark.cli.connection import TITLE
from tubemq_spark.cli.main import build_parser
from tubemq_spark.cli.parser import CommandParser
from tubemq_spark.client.names.others import ARGUMENTS, ATTRIBUTES, SETTINGS as A_SETTING, OtherName
from tubemq_spark.errors import CONDITIONS
from tubemq_spark.gateway.server import LIMITS, GatewayServer
from tubemq_spark.gateway.sessions import ENDS
from tubemq_spark.gateway.settings import SETTINGS, GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.options import ViewName
from tubemq_spark.options.option import Option
from tubemq_spark.options.rules import ENGINE_KEYS, REFUSED
from tubemq_spark.options.table import NAMED
from tubemq_spark.options.values import CLUSTER_VIEWS, Mode
from tubemq_spark.protocol.errcodes import refusals
from tubemq_spark.source.views.reader import VIEWS
from tubemq_spark.spark.columns import READ, UNPACKED, WRITTEN

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
_PLACE: Final = re.compile(r"(<!-- table: ([\w-]+) -->\s*)(.*?)(\s*<!-- end -->)", re.DOTALL)


def written() -> Iterator[tuple[Path, str]]:
    """Yield each page that has marked places, and its text with what goes there."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if _PLACE.search(text):
            yield page, _PLACE.sub(lambda place: place[1] + TABLES[place[2]]() + place[4], text)


def rows(*headings: str, of: Iterable[Iterable[str]]) -> str:
    """Return a table."""
    lines = (f"| {' | '.join(cells)} |" for cells in of)
    head = f"| {' | '.join(headings)} |".replace("  ", " ")
    return "\n".join([head, "|---" * len(headings) + "|", *lines])


def code(names: Iterable[str]) -> str:
    """Return names as code."""
    return ", ".join(f"`{name}`" for name in names)


# Options.

MODES: Final = {
    Mode.BATCH_READ: "batch",
    Mode.STREAM_READ: "stream",
    Mode.WRITE: "write",
    Mode.PARTITIONS_VIEW: "`partitions`",
    Mode.LAG_VIEW: "`lag`",
    Mode.GROUPS_VIEW: "`groups`",
    Mode.LOSSES_VIEW: "`losses`",
    Mode.RECEIPTS_VIEW: "`receipts`",
}
_ALL_VIEWS: Final = ", ".join(MODES[mode] for mode in MODES if mode in CLUSTER_VIEWS)
_POSITION: Final = re.compile(r"starting|ending|timestampSearch|availableNow")
_LIMIT: Final = re.compile(r"(?:min|max)(?:Offsets|Bytes|Partitions|Records|Ranges|Trigger)")
SECTIONS: Final[dict[str, Callable[[Option], object]]] = {
    "TLS": lambda option: option.name.startswith("tubemq.tls."),
    "Connection": lambda option: option.name.startswith("tubemq."),
    "Writing": lambda option: option.modes <= {Mode.WRITE, Mode.RECEIPTS_VIEW},
    "Sizes of micro-batches and tasks": lambda option: _LIMIT.match(option.name),
    "Where a query begins and ends": lambda option: _POSITION.match(option.name),
    "Topics and messages": lambda _: True,
}
"""Which options a section has that none before it has; the page has them from the last one to the first."""


def options() -> str:
    """Return all options, by what they are about."""
    members: dict[str, list[Option]] = {title: [] for title in reversed(SECTIONS)}
    for option in NAMED.values():
        members[next(title for title, has in SECTIONS.items() if has(option))].append(option)
    for some in members.values():
        some.sort(key=lambda option: not option.example)  # what is required comes first
    overview = [f"- **{title}**: {', '.join(map(_link, some))}\n" for title, some in members.items()]
    sections = [f"\n## {title}\n{''.join(map(_option, some))}" for title, some in members.items()]
    return "".join([*overview, *sections]).strip()


def _link(option: Option) -> str:
    """Return a link to an option's heading, on the site and where the repository is looked at."""
    return f"[`{option.name}`](#{option.name.replace('.', '').lower()})"


def _option(option: Option) -> str:
    where = ", ".join(word for mode, word in MODES.items() if mode in option.modes)
    meaning = f"{option.doc} For example `{option.example}`." if option.example else option.doc
    usual = option.default_doc or ("none" if option.default is None else f"`{option.show(option.default)}`")
    default = "**required**" if option.example else f"*default:* {usual}"
    about = f"*Value:* {option.kind.expected} · {default} · *in:* {where.replace(_ALL_VIEWS, 'views')}"
    return f"\n### `{option.name}`\n\n{meaning}\n\n{about}\n"


# Errors.

_END_OF_CAUSE: Final = re.compile(r"(?:;|\.|\{suggestion\}) (?=[\w'{])")
_DEMAND: Final = re.compile(r"\bmust\b|\{suggestion\}")
_ADVICE: Final = ("*hint*", "*advice*", "*fate*")
"""Values that say what to do, by what was seen."""
_AS_SAID: Final = "Do what the message says."
_HEADING: Final = re.compile(r"^## (.*TUBEMQ_.*)$", re.MULTILINE)
_NAMED: Final = re.compile(r"\[(TUBEMQ_\w+(?:\.[A-Z_]+)*)(\.{3})?\]")


def errors() -> str:
    """Return what happened and what to do, of each condition."""
    places = _explained()
    return "".join(_error(condition, text, places) for condition, text in sorted(CONDITIONS.items())).strip()


def _error(condition: str, text: str, places: list[tuple[str, str]]) -> str:
    cause, cure = _halves(condition, text)
    place = next(
        (anchor for named, anchor in places if condition == named or condition.startswith(f"{named}.")), ""
    )
    more = f"[More](troubleshooting.md#{place})." if place else ""
    if not cure and not more:
        raise ValueError(
            f"the text of {condition} does not say what to do, and troubleshooting.md does not either"
        )
    return f"\n## `{condition}`\n\n{cause}\n\n*What to do:* {' '.join(filter(None, (cure, more)))}\n"


def _halves(condition: str, text: str) -> tuple[str, str]:
    """Return what happened and what to do, each as a sentence."""
    answer = refusals().get(condition)
    if answer is not None:
        return _sentence(answer.meaning), _sentence(answer.hint)
    end = _END_OF_CAUSE.search(text)
    if end is None:
        return _sentence(text), _AS_SAID if _DEMAND.search(text) else ""
    return _sentence(text[: end.start()]), _sentence(text[end.end() :])


def _sentence(template: str) -> str:
    """Return the text in Markdown, with its values in italics."""
    parts = []
    for words, name, _, _ in string.Formatter().parse(template):
        parts.append(words.replace("<", "&lt;").replace("*", "\\*"))
        if name is not None:
            parts.append(f"*{name.replace('_', ' ')}*")
    text = "".join(parts).strip().rstrip(".")
    if text in _ADVICE:
        return _AS_SAID
    text = text.replace("**", "* *")
    if text.startswith("*hint*"):
        text = text.replace("*hint*", _AS_SAID.rstrip("."), 1)
    return f"{text[:1].upper()}{text[1:]}."


def _explained() -> list[tuple[str, str]]:
    """Return the conditions that troubleshooting.md explains, and the anchors of their sections."""
    places = []
    text = (DOCS / "reference" / "troubleshooting.md").read_text(encoding="utf-8")
    for heading in _HEADING.findall(text):
        anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        places += [(condition, anchor) for condition, _ in _NAMED.findall(heading)]
    return sorted(places, reverse=True)


# Commands, by their parsers.


def commands() -> str:
    """Return a list of all commands, and a section of each."""
    overview = rows("command", "", of=map(_overview_row, leaves(build_parser())))
    return f"{overview}\n{''.join(_command(command) for command, _ in leaves(build_parser()))}".strip()


def leaves(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[tuple[CommandParser, str]]:
    """Yield the commands that do something, each with its summary."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    if not groups:
        assert isinstance(parser, CommandParser)
        yield parser, summary
    for group in groups:
        summaries = {choice.dest: choice.help for choice in group._choices_actions}  # noqa: SLF001
        for name, child in group.choices.items():
            yield from leaves(child, summaries[name] or "")


def name_of(command: CommandParser) -> str:
    """Return the words of a command."""
    return command.prog.partition(" ")[2]


def _overview_row(command: tuple[CommandParser, str]) -> tuple[str, str]:
    parser, summary = command
    return f"[`{name_of(parser)}`](#{_anchor(name_of(parser))})", _escaped(summary)


def _command(command: CommandParser) -> str:
    own = [action for action in _actions(command, connection=False) if action.dest != "help"]
    lines = [f"\n## {name_of(command)}\n", f"{_escaped(command.description or '')}\n"]
    lines += ["```", command.example, "```\n"]
    if own:
        lines += [rows("argument", "meaning", of=(_argument(command, action) for action in own)), ""]
    if shared := _actions(command, connection=True):
        lines.append("It takes [connection arguments](#connection-arguments) too.")
        if "group" in {action.dest for action in shared}:
            group = command.get_default("group_by_default")
            lines[-1] += f" Unless `--group` says otherwise, it reads under the group `{group}`."
        lines[-1] += "\n"
    codes = "; ".join(f"{number} {meaning}" for number, meaning in command.exit_codes.items())
    lines.append(f"Exit codes: {codes}.\n")
    return "\n".join(lines)


def connection_arguments() -> str:
    """Return the arguments that all commands which reach a cluster have, and those that some of them have."""
    cells: dict[str, tuple[str, str]] = {}
    for command, _ in leaves(build_parser()):
        for action in _actions(command, connection=True):
            names, meaning = _argument(command, action, "connection")
            own_group = f"default: {command.get_default('group_by_default')})"
            cells.setdefault(
                action.dest, (names, meaning.replace(own_group, "default: that of the command)"))
            )
    return rows("argument", "meaning", of=cells.values())


def _actions(command: CommandParser, *, connection: bool) -> list[argparse.Action]:
    """Return the arguments of the connection, or all others."""
    groups = [group for group in command._action_groups if (group.title == TITLE) is connection]  # noqa: SLF001
    return [action for group in groups for action in group._group_actions]  # noqa: SLF001


def _argument(command: CommandParser, action: argparse.Action, prefix: str = "") -> tuple[str, str]:
    value = _value(action)
    names = [name if action.nargs == 0 else f"{name} {value}" for name in action.option_strings] or [value]
    argument = action.option_strings[0] if action.option_strings else action.dest
    anchor = _anchor(f"{prefix or name_of(command)} {argument}")
    meaning = command._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
    return f'<a id="{anchor}"></a>{code(names)}', _escaped(meaning)


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        value = "\\|".join(map(str, action.choices))
    else:
        value = str(action.metavar or action.dest.upper())
    return {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(str(action.nargs), value)


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


# The gateway.


def gateway_settings() -> str:
    """Return all settings of a gateway."""
    fields = []
    for field in dataclasses.fields(GatewaySettings):
        declared = SETTINGS[field.name]
        value = declared.default
        default = "" if value in (None, ()) else f"`{declared.kind.show(value)}`"
        if field.default is dataclasses.MISSING:
            default = "required"
        fields.append((f"`{field.name}`", declared.doc, declared.kind.expected, default))
    return rows("setting", "what it says", "values", "default", of=fields)


def gateway_metrics() -> str:
    """Return all metrics of a gateway."""
    settings = GatewaySettings(master_servers=(Endpoint("master", 8715),), node_name="page")
    metrics = GatewayServer(settings).metrics

    def row(metric: Metric) -> tuple[str, ...]:
        labels = code(metrics.labels.get(metric.name, ()))
        name = f"`{metric.name}{'_total' * (metric.type == 'counter')}`"
        return name, metric.type, labels, metric.documentation

    return rows("metric", "kind", "labels", "what it says", of=map(row, metrics.registry.collect()))


def gateway_labels() -> str:
    """Return what the labels of the metrics say."""
    values = {
        "method": "a method of the service, such as `ReadRange`",
        "status": "a status of gRPC, such as `OK` or `UNAVAILABLE`",
        "direction": "`read` or `published`",
        "reason": "`session_unknown`, as at each gateway that a client comes to; `draining`",
        "end": "; ".join(f"`{end}`: {text}" for end, text in ENDS.items()),
        "setting": f"the [setting](gateway.md#settings) that is the limit: {code(LIMITS)}",
        "kind": "why records are missing, as in the conditions `TUBEMQ_DATA_LOSS`, such as `EXPIRED`",
    }
    return rows("label", "values", of=((f"`{label}`", text) for label, text in values.items()))


# Columns, views and names.


def columns(what: str, names: Iterable[tuple[str, str, str]]) -> str:
    """Return columns with their types and what they are about."""
    return rows("column", "type", what, of=((f"`{name}`", kind, text) for name, kind, text in names))


def view_columns(view: ViewName) -> str:
    """Return the columns of a view."""
    return columns(
        "what it says",
        ((column.name, f"`{column.type_name}`", column.read) for column in VIEWS[view].columns),
    )


def other_names(names: Iterable[OtherName]) -> str:
    """Return names of other clients, and what is used here."""
    cells = (
        (code(name.names), "a setting" if name.places == A_SETTING else code(name.places), name.answer)
        for name in names
    )
    return rows("elsewhere", "of", "here", of=cells)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "options": options,
    "kafka-options": lambda: rows(
        "option", "instead", of=((f"`{name}`", advice) for name, advice in REFUSED.items())
    ),
    "engine-keys": lambda: code(sorted(ENGINE_KEYS)),
    "errors": errors,
    "commands": commands,
    "connection-arguments": connection_arguments,
    "gateway-settings": gateway_settings,
    "gateway-metrics": gateway_metrics,
    "gateway-labels": gateway_labels,
    "columns-read": lambda: columns(
        "what it holds", ((column.name, f"`{column.type_name}`", column.read) for column in READ.values())
    ),
    "columns-unpacked": lambda: columns(
        "what it holds",
        (
            (column.name, f"`{column.type_name}`", column.unpacked)
            for column in UNPACKED.values()
            if column.unpacked
        ),
    ),
    "columns-written": lambda: columns(
        "what it does", ((name, column.expected, column.meaning) for name, column in WRITTEN.items())
    ),
    **{f"view-{view.value}": functools.partial(view_columns, view) for view in VIEWS},
    "other-attributes": lambda: other_names(ATTRIBUTES),
    "other-arguments": lambda: other_names(ARGUMENTS),
}


def main() -> None:
    """Write all pages."""
    for page, text in written():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
