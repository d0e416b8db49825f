"""What commands print names arguments, and no option of Spark."""

import logging
import re
import string
from pathlib import Path

import pytest

from tests.cases import in_one_test
from tubemq_spark.cli import main as cli
from tubemq_spark.cli.output import in_words_of_commands
from tubemq_spark.errors import CONDITIONS
from tubemq_spark.logs import LastResortHandler
from tubemq_spark.net import tls_errors
from tubemq_spark.options.table import NAMED
from tubemq_spark.protocol.errcodes import refusals

ONLY_SPARK = re.compile(
    r"TUBEMQ_(SINK|DEAD_LETTER|GATEWAY|REPLAY|DATA_LOSS|AVAILABLE_NOW|INLONG|LAG_OF|EXACT|CHECKPOINT_|"
    r"NOTHING_SUBSCRIBED|OPTION_MISSING|VIEW_IN|ENDING_IN|OFFSET_NOT_FLUSHED)"
)
"""Conditions that no command raises, or that are about a query and its options."""
_WORDS = {"topic", "view", "assign", "mode", "payload", "subscribe", "messageTypes", "partitioner"}
_OPTION = re.compile(
    r"(?<![\w.])(?:tubemq\.|"
    + "|".join(re.escape(name) for name in NAMED if name not in _WORDS)
    + r")(?!\w)|\bin Spark\b|[Oo]ption '"
)


def texts():
    """Yield each text that an error may have, with values that arguments have."""
    for condition, text in CONDITIONS.items():
        if not ONLY_SPARK.match(condition):
            names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
            yield text.format(**{name: "--to" if name in ("option", "other") else "7" for name in names})
    for answer in refusals().values():
        yield answer.hint


@in_one_test("text", texts())
def test_no_text_names_an_option_of_spark(text):
    words = in_words_of_commands(text)
    assert not _OPTION.search(words), words


@in_one_test(
    ("text", "words"),
    [
        (
            CONDITIONS["TUBEMQ_TIMEOUT"].format(endpoint="h:1", timeout_ms=5, during="asking"),
            "No answer from h:1 within 5 ms while asking; look at the server.",
        ),
        (
            CONDITIONS["TUBEMQ_TLS_EXPECTED"].format(endpoint="h:1"),
            "h:1 speaks TLS only; set --tls, or name the port without TLS (masters: 8715 by default).",
        ),
        (
            CONDITIONS["TUBEMQ_TLS_NOT_SPOKEN"].format(endpoint="h:1", cause="no"),
            "h:1 does not speak TLS: no; name the TLS port (masters: 8716 by default), or leave out --tls.",
        ),
        (
            CONDITIONS["TUBEMQ_OPTIONS_EXCLUSIVE"].format(option="--to", other="--offsets"),
            "Only one of --to and --offsets can be specified; leave one out.",
        ),
        (
            CONDITIONS["TUBEMQ_OPTION_NEEDED"].format(option="--tls", other="--tls-ca"),
            "--tls must be specified, since --tls-ca needs it.",
        ),
        (
            CONDITIONS["TUBEMQ_BAD_SETTING"].format(name="group", value="'a b'", rule="a name"),
            "--group is 'a b'; it must be a name.",
        ),
        (
            "check username and password (in Spark: tubemq.username and tubemq.password)",
            "check username and password (--username and --password-file)",
        ),
        ("Option 'URI' is 'x', but must be y.", "URI is 'x', but must be y."),
        (
            CONDITIONS["TUBEMQ_FOLDER_UNUSABLE"].format(
                folder="/x", option="receiptsPath", done="read", cause="no"
            ),
            "The folder /x cannot be read: no; mend that, or name another one.",
        ),
        (
            CONDITIONS["TUBEMQ_FOLDER_UNUSABLE.FULL"].format(
                folder="/x", option="NEW_DIR", done="written to", cause="no space left"
            ),
            (
                "The folder /x of NEW_DIR cannot be written to, because no space is left: no space left; "
                "free some space, or name a folder elsewhere."
            ),
        ),
        (
            CONDITIONS["TUBEMQ_CHECKPOINT_UNREADABLE"].format(checkpoint="/x", problem="no"),
            (
                "The checkpoint /x cannot be read: no; "
                "name the checkpointLocation of a query that reads from TubeMQ."
            ),
        ),
    ],
)
def test_texts_are_those_of_the_command_line(text, words):
    assert in_words_of_commands(text) == words


def test_the_advice_about_tls_names_arguments():
    source = Path(tls_errors.__file__).read_text(encoding="utf-8")
    advice = re.findall(r'"([^"]*tubemq\.tls\.[^"]*)"', source)
    assert len(advice) >= 4
    assert not [text for text in advice if "tubemq." in in_words_of_commands(text)]


MASTER = ("--master", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topics", "list", "--web", "127.0.0.1:1"], "; name its host:port in --web.\n"),
        (["consume", "x", "--timeout", "0.1"], "Check the masters' addresses (--master);"),
        (["consume", "x", "--group", "a b"], "[TUBEMQ_BAD_SETTING] --group is 'a b'; it must be"),
        (
            ["consume", "x", "--username", "a"],
            "--username is given alone; it must be given with the password, in --password-file or",
        ),
    ],
)
def test_errors_of_commands_name_arguments(capsys, monkeypatch, arguments, told):
    monkeypatch.delenv("TUBEMQ_PASSWORD", raising=False)
    assert cli.main([*arguments, *MASTER]) in (1, 2)
    assert told in capsys.readouterr().err


def test_warnings_are_in_these_words_too(monkeypatch):
    of_others, ours = logging.StreamHandler(), LastResortHandler()
    monkeypatch.setattr(logging, "lastResort", of_others)
    monkeypatch.setattr(logging.getLogger("tubemq_spark"), "handlers", [ours])
    cli.main(["topics", "list", *MASTER])
    record = logging.LogRecord("a", logging.WARNING, "", 1, "up to 60 s (tubemq.fetchTimeoutMs)", None, None)
    for handler in of_others, ours:
        assert handler.format(record) == "tubemq-spark: up to 60 s (--timeout)"
