"""Wrong guesses of names: each of the table has its answer, and what an answer says to use is there."""

import abc
import asyncio
import contextlib
import copy
import inspect
import pickle

import pytest

import tubemq_spark.client
from tests.cases import in_one_test
from tubemq_spark.client import (
    Batch,
    ClientConfig,
    ConsumerConfig,
    GroupConsumer,
    MasterAdmin,
    Producer,
    Record,
    SendFuture,
    SendResult,
    TopicPartition,
    TubeMQClient,
    aio,
)
from tubemq_spark.client.names.guesses import answers_attributes
from tubemq_spark.client.names.others import ARGUMENTS, ATTRIBUTES
from tubemq_spark.client.producer.futures import AsyncSendFuture, SharedByFutures
from tubemq_spark.client.producer.messages import MessageFields
from tubemq_spark.model import Endpoint

MASTER = "127.0.0.1:8715"
PLACE = TopicPartition("clicks", 1, 0)
RECORD = Record(b"x", None, 7, PLACE, 28)
GUESSED_ATTRIBUTES = [(place, name, row) for row in ATTRIBUTES for place in row.places for name in row.names]
GUESSED_ARGUMENTS = [(place, name, row) for row in ARGUMENTS for place in row.places for name in row.names]


@pytest.fixture(scope="module")
def things():
    """An object of each class, or of its form for asyncio, by the class's name; no server is reached."""
    client = TubeMQClient.connect(MASTER)
    other = aio.AsyncTubeMQClient.connect(MASTER)
    examples = [client, other, RECORD, SendResult(PLACE, 0, None, None, 1, 0), SendFuture(SharedByFutures())]
    examples.append(Batch(PLACE, 0, None, (RECORD,), Endpoint("127.0.0.1", 8123), "context"))
    for either in (client, other):
        examples += [either.group_consumer("clicks"), either.assigned_consumer("clicks")]
        examples.append(either.admin("127.0.0.1:8080"))
    with client.producer() as producer, contextlib.closing(Asynchronous(other.producer())) as awaited:
        examples += [producer, awaited.producer]
        yield {type(thing).__name__: thing for thing in examples}


class Asynchronous:
    """A producer whose loop begins when it is closed."""

    def __init__(self, producer):
        self.producer = producer

    def close(self):
        asyncio.run(self.producer.close())


def answered(row):
    return row.answer.replace("`", "")


def forms(name):
    """Return the classes of this name: for threads, and if there is one for asyncio."""
    own = {each: getattr(tubemq_spark.client, each) for each in tubemq_spark.client.__all__}
    classes = {**vars(aio), **own}
    return [classes[each] for each in (name, f"Async{name}") if each in classes]


def arguments_of(method):
    names = set(inspect.signature(method).parameters)
    return names | set(MessageFields.__annotations__) if "fields" in names else names


def is_there(ours):
    """Whether there is such an attribute, or argument, of one of our classes."""
    name, _, argument = ours.rstrip(")").partition("(")
    owner, _, member = name.partition(".")
    cls = forms(owner.removeprefix("Async"))[owner.startswith("Async")]
    if member not in {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}:
        return False
    return not argument or argument in arguments_of(getattr(cls, member))


def test_what_an_answer_says_to_use_is_there():
    named = {ours for row in (*ATTRIBUTES, *ARGUMENTS) for ours in row.ours}
    assert len(named) > 60
    assert {ours for ours in named if not is_there(ours)} == set()


def test_an_answer_is_one_sentence():
    for row in (*ATTRIBUTES, *ARGUMENTS):
        assert row.answer.endswith(".")
        assert ". " not in row.answer


def test_no_name_stands_twice_in_a_place():
    for guessed in (GUESSED_ATTRIBUTES, GUESSED_ARGUMENTS):
        places = [(place, name) for place, name, _ in guessed]
        assert len(places) == len(set(places))


@in_one_test(("place", "name", "row"), GUESSED_ATTRIBUTES)
def test_a_guessed_attribute_has_its_answer(place, name, row, things):
    examples = [thing for kind, thing in things.items() if kind in {place, f"Async{place}"}]
    assert examples
    for thing in examples:
        kind = type(thing).__name__
        with pytest.raises(AttributeError) as refused:
            getattr(thing, name)
        assert str(refused.value) == f"'{kind}' object has no attribute '{name}'. {answered(row)}"
        assert not hasattr(thing, name)
        assert getattr(thing, name, "default") == "default"


ANSWERING_CLASSES = {"TubeMQClient", "Producer", "GroupConsumer", "AssignedConsumer", "MasterAdmin"}


@in_one_test(("place", "name", "row"), [row for row in GUESSED_ATTRIBUTES if row[0] in ANSWERING_CLASSES])
def test_a_class_has_the_same_answers(place, name, row):
    for cls in forms(place):
        with pytest.raises(AttributeError) as refused:
            getattr(cls, name)
        assert (
            str(refused.value) == f"type object '{cls.__name__}' has no attribute '{name}'. {answered(row)}"
        )
        assert pickle.loads(pickle.dumps(cls)) is cls


@pytest.mark.parametrize("name", sorted(ANSWERING_CLASSES))
def test_a_class_of_the_user_may_be_abstract(name):
    for cls in forms(name):

        class Abstract(cls, abc.ABC):
            @abc.abstractmethod
            def handle(self):
                pass

        with pytest.raises(TypeError, match="abstract method"):
            Abstract(None)


def test_a_misspelt_attribute_of_a_class_is_left_to_python():
    with pytest.raises(AttributeError, match=r"^type object 'Producer' has no attribute 'sedn'$") as refused:
        Producer.sedn  # noqa: B018
    assert (refused.value.name, refused.value.obj) == ("sedn", Producer)


@in_one_test(("place", "name", "row"), GUESSED_ARGUMENTS)
def test_a_guessed_argument_has_its_answer(place, name, row, things):
    owner, _, method = place.partition(".")
    for cls in forms(owner):
        of_its_own = {(each, which) for each, which, _ in GUESSED_ARGUMENTS if each.startswith("Async")}
        if cls.__name__ != owner and (place.replace(owner, cls.__name__), name) in of_its_own:
            continue
        call = getattr(things[cls.__name__], method) if method else cls
        given = {"topic": "clicks", "value": b"x"} if method == "send" else {}
        given.pop(name, None)
        with pytest.raises(TypeError) as refused:
            asyncio.run(outcome_of(call, **given, **{name: 1}))
        called = cls.__name__ + (f".{method}" if method else "")
        text = f"{called}() got an unexpected keyword argument '{name}'. {answered(row)}"
        assert str(refused.value) == text


async def outcome_of(call, **arguments):
    outcome = call(**arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome


def test_a_client_is_not_made_of_an_address():
    with pytest.raises(TypeError) as refused:
        TubeMQClient("127.0.0.1:8715")
    expected = 'TubeMQClient() takes a ClientConfig. For addresses, use TubeMQClient.connect("host:8715").'
    assert str(refused.value) == expected
    with pytest.raises(TypeError, match=r"use AsyncTubeMQClient\.connect\(\"host:8715\"\)\."):
        aio.AsyncTubeMQClient("127.0.0.1:8715")


def test_a_misspelt_argument_is_told_the_nearest(things):
    with pytest.raises(TypeError, match=r"connect\(\) got .* 'grup'\. Did you mean 'group'\?$"):
        TubeMQClient.connect(MASTER, grup="etl")
    with pytest.raises(TypeError, match=r"send\(\) got .* 'atributes'\. Did you mean 'attributes'\?$"):
        things["Producer"].send("clicks", b"x", atributes={})
    with pytest.raises(TypeError, match=r"ConsumerConfig\(\) got .* 'rolback'\. Did you mean 'rollback'\?$"):
        ConsumerConfig(rolback=True)


def test_an_argument_like_no_other_is_told_what_there_is(things):
    with pytest.raises(TypeError, match=r"GroupConsumer\.fetch\(\) got .* 'zzz'\. It takes: timeout_ms\.$"):
        things["GroupConsumer"].fetch(zzz=1)


def test_what_python_refuses_by_itself_it_refuses_in_its_words(things):
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments but 3 were given"):
        things["GroupConsumer"].fetch(1, 2)
    with pytest.raises(TypeError, match="got multiple values for argument 'timeout_ms'"):
        things["GroupConsumer"].fetch(1, timeout_ms=2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        things["Producer"].send("clicks")


def test_a_misspelt_attribute_is_left_to_python(things):
    with pytest.raises(AttributeError, match=r"^'Producer' object has no attribute 'sedn'$") as refused:
        things["Producer"].sedn  # noqa: B018
    assert (refused.value.name, refused.value.obj) == ("sedn", things["Producer"])


def test_an_error_inside_a_property_is_not_hidden():
    @answers_attributes
    class Broken:
        @property
        def broken(self):
            return self.nothing.at_all

    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        Broken().broken  # noqa: B018


@pytest.mark.parametrize("value", [RECORD, ClientConfig((), "etl"), SendResult(PLACE, 0, None, None, 1, 0)])
def test_values_are_copied_and_pickled(value):
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value
        assert type(other) is type(value)


def test_methods_keep_their_signatures():
    assert list(inspect.signature(GroupConsumer.fetch).parameters) == ["self", "timeout_ms"]
    assert list(inspect.signature(TubeMQClient.connect).parameters)[:2] == ["masters", "group"]
    assert list(inspect.signature(MasterAdmin).parameters) == ["address", "token", "user", "timeout_s"]
    assert next(iter(inspect.signature(ConsumerConfig).parameters)) == "consume_position"
    assert inspect.iscoroutinefunction(aio.AsyncGroupConsumer.fetch)
    assert GroupConsumer.fetch.__doc__.startswith("Return messages")


async def test_a_future_for_coroutines_answers_too():
    with pytest.raises(AttributeError, match=r"no attribute 'get'\. Use result\(timeout\)\."):
        AsyncSendFuture(SharedByFutures()).get  # noqa: B018
