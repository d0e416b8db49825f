"""Errors read as one sentence with a next step, and survive the way from a task to the driver."""

import pickle
import re
from pathlib import Path

import pytest

from testkit.conditions import CLASSES, parameters_of
from tests.cases import in_one_test
from tools import gen_docs
from tubemq_spark import errors
from tubemq_spark.errors import CONDITIONS, TubeMQError

ENDED_BY_THEIR_PARAMETER = {"TUBEMQ_OPTION_UNKNOWN", "TUBEMQ_URL_KEY"}
"""Its advice is a question or a sentence."""

each_condition = in_one_test("condition", sorted(CONDITIONS))
each_class = in_one_test("error_class", CLASSES)


@each_condition
def test_texts_are_one_condition_and_sentences_that_end(condition):
    text = str(TubeMQError(condition, **parameters_of(condition)))
    head, _, sentence = text.partition("] ")
    assert head == f"[{condition}"
    assert sentence[0].isupper() or sentence[0] in "'<", "a text begins with a capital letter or a value"
    assert sentence.endswith(".") or condition in ENDED_BY_THEIR_PARAMETER, "a text ends with a full stop"
    assert not sentence.endswith(".."), "the last parameter brings a full stop of its own"
    assert "\n" not in sentence, "a text is one line"
    assert "  " not in sentence, "two blanks"


@each_condition
def test_texts_say_what_happened_and_then_what_to_do(condition):
    told = CONDITIONS[condition]
    assert re.search(r"[;.,] ", told), "one clause only: say what happened; then say what to do"


@each_condition
def test_condition_names_can_be_searched_for(condition):
    form = r"TUBEMQ_[A-Z_]+(\.[A-Z_]+)?"
    assert re.fullmatch(form, condition), (
        "users search for TUBEMQ_ and capital letters, with one part behind a dot"
    )


@each_condition
def test_parameters_are_plain_names_and_hold_no_secret(condition):
    for name in parameters_of(condition):
        assert name.isidentifier(), "parameters are keyword arguments"
        assert not re.search("password|secret|signature|token", name), "no text of an error holds a secret"


@each_condition
def test_a_forgotten_parameter_is_noticed(condition):
    parameters = parameters_of(condition)
    for name in parameters:
        with pytest.raises(KeyError, match=name):
            TubeMQError(condition, **{other: 1 for other in parameters if other != name})


@each_class
def test_errors_survive_pickling(error_class):
    error = error_class("TUBEMQ_TIMEOUT", endpoint="h:1", timeout_ms=5, during="connecting")
    error.add_note("a note")

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is error_class
    assert str(again) == str(error)
    assert again.args == error.args
    assert (again.condition, again.parameters) == (error.condition, error.parameters)
    assert again.retriable == error.retriable
    assert again.__notes__ == ["a note"]


@in_one_test("retriable", [True, False])
@each_class
def test_what_an_instance_says_about_retrying_survives_pickling(error_class, retriable):
    error = error_class("TUBEMQ_BAD_ADDRESS", address="x")
    error.retriable = retriable
    assert pickle.loads(pickle.dumps(error)).retriable is retriable
    assert error_class("TUBEMQ_BAD_ADDRESS", address="x").retriable is error_class.retriable


def test_values_that_may_not_pickle_become_text():
    class Local:
        def __str__(self):
            return "local"

    error = TubeMQError("TUBEMQ_BAD_ADDRESS", address=Local())
    assert error.parameters == {"address": "local"}
    assert "'local' is not an address" in str(pickle.loads(pickle.dumps(error)))


@pytest.mark.parametrize(
    ("error_class", "builtin"),
    [
        (errors.OptionError, ValueError),
        (errors.OffsetFormatError, ValueError),
        (errors.TubeMQConnectionError, ConnectionError),
        (errors.TubeMQTimeoutError, TimeoutError),
        (errors.LocalProtocolError, errors.ProtocolError),
        (errors.RemoteProtocolError, errors.ProtocolError),
    ],
)
def test_errors_are_caught_as_what_they_are(error_class, builtin):
    assert issubclass(error_class, builtin)
    assert issubclass(error_class, TubeMQError)


def test_only_what_may_pass_by_itself_is_retriable():
    assert {cls for cls in CLASSES if cls.retriable} == {
        errors.TubeMQConnectionError,
        errors.TubeMQTimeoutError,
    }


def test_the_code_of_an_rpc_error():
    parts = {"peer": "p", "name": "n", "during": "d", "text": "t", "hint": "h"}
    assert errors.RpcError("TUBEMQ_RPC", code=410, **parts).code == 410
    no_code = errors.RpcError("TUBEMQ_REMOTE_EXCEPTION", peer="p", during="d", exception="E", text="t")
    assert no_code.code == 0


def test_every_condition_is_raised_somewhere():
    """A text without a use is a lie in the table."""
    package = Path(errors.__file__).parent
    sources = "".join(
        path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.name != "errors.py"
    )
    unused = [name for name in CONDITIONS if name.partition(".")[0] not in sources]
    assert unused == [], "take these texts out of the table"


def test_the_page_says_what_happened_and_what_to_do():
    blocks = f"\n{gen_docs.errors()}".split("\n## `")[1:]
    told = {
        name: text.strip().split("\n\n*What to do:* ")
        for name, _, text in (block.partition("`\n") for block in blocks)
    }
    assert told.keys() == CONDITIONS.keys()
    assert told["TUBEMQ_CLIENT_CLOSED"] == ["The client is closed.", "Make a new one."]
    assert told["TUBEMQ_GROUP_CONFLICT.TOPICS"] == [
        "The group reads other topics.",
        (
            "Set topics (in Spark: subscribe) to what the other members of the group have, or use another"
            " group. [More](troubleshooting.md#tubemq_group_conflict)."
        ),
    ]


def test_each_condition_has_an_anchor_of_its_own():
    anchors = [name.replace(".", "").lower() for name in CONDITIONS]
    assert len(set(anchors)) == len(anchors)


def test_a_condition_that_says_nothing_to_do_gets_no_row(monkeypatch):
    monkeypatch.setitem(CONDITIONS, "TUBEMQ_MUTE", "Something is wrong.")

    with pytest.raises(ValueError, match="TUBEMQ_MUTE does not say what to do"):
        gen_docs.errors()
