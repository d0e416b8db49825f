"""Answers to wrong guesses of attributes and of arguments, by the table of ``others``, read at the first one.

An attribute that is not there ends in ``__getattr__``, which Python asks last: of the class, or of the
class's type if the class itself was asked. An argument that is not there is seen by a function around the
method, which has its signature; a method that takes fields by ``**`` looks at them itself, when they were
refused, with ``refuse_unknown_fields``.
"""

import abc
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tubemq_spark.settings.kinds import did_you_mean

if TYPE_CHECKING:
    from tubemq_spark.client.names.others import OtherName

Class = TypeVar("Class", bound=type)
Function = Callable[..., Any]


def answers_guesses(cls: Class) -> Class:
    """Return a class that answers wrong guesses of its attributes, and of arguments of its public methods."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod | staticmethod):
            is_static = isinstance(member, staticmethod)
            setattr(cls, name, type(member)(_answering(member.__func__, cls, name, is_static=is_static)))
        elif inspect.isfunction(member):
            setattr(cls, name, _answering(member, cls, name))
    return answers_attributes(cls)


def answers_attributes(cls: Class) -> Class:
    """Return a class that answers wrong guesses of its attributes only."""
    cls.__getattr__ = _missing  # type: ignore[attr-defined]
    return cls


class AnsweringType(abc.ABCMeta):
    """The type of classes that answer wrong guesses of their own attributes: ``TubeMQClient.subscribe``.

    It is that of abstract classes too, so that a class of the user may be both.
    """

    if not TYPE_CHECKING:  # which would take every attribute for one that is there

        def __getattr__(cls, name: str) -> object:
            raise missing_attribute(cls, name)


def missing_attribute(thing: object, name: str) -> AttributeError:
    """Return the error about an attribute that an object or a class does not have."""
    cls = thing if isinstance(thing, type) else type(thing)
    text = f"{cls.__name__!r} object has no attribute {name!r}"
    if cls is thing:
        text = f"type object {cls.__name__!r} has no attribute {name!r}"
    answer = _answer(_by_attribute(), [kind.__name__ for kind in cls.__mro__], name)
    if answer is None:
        return AttributeError(text, name=name, obj=thing)  # Python looks for a similar name itself
    return AttributeError(f"{text}. {answer}", obj=thing)


def unknown_argument(owner: type, method: str, names: Iterable[str], own: Iterable[str]) -> TypeError:
    """Return the error about a keyword argument that a method does not have."""
    own = list(own)
    name = next(name for name in names if name not in own)
    places = [_place(kind, method) for kind in owner.__mro__]
    answer = _answer(_by_argument(), places, name)
    if answer is None:
        similar = did_you_mean(name, own)
        answer = f"D{similar[1:]}" if similar else f"It takes: {', '.join(own)}."
    return TypeError(f"{places[0]}() got an unexpected keyword argument {name!r}. {answer}")


def wrong_constructor(cls: type, expected: type) -> TypeError:
    """Return the error of a constructor that got something else than an ``expected``."""
    name = cls.__name__
    return TypeError(f'{name}() takes a {expected.__name__}. For addresses, use {name}.connect("host:8715").')


def refuse_unknown_fields(
    send: Function, owner: type, fields: Mapping[str, object], known: Iterable[str]
) -> None:
    """Raise if a message has no field of one of these names."""
    known = list(known)
    if not fields.keys() <= set(known):
        own = [each.name for each in inspect.signature(send).parameters.values() if each.kind in _BY_NAME]
        raise unknown_argument(owner, send.__name__, fields, [*own[1:], *known]) from None


def _place(owner: type, method: str) -> str:
    """Return the place of a method in the table."""
    return owner.__name__ if method == "__init__" else f"{owner.__name__}.{method}"


def _missing(self: object, name: str) -> object:
    """Answer as ``__getattr__``, which is also called when a property has raised an ``AttributeError``."""
    if any(name in vars(kind) for kind in type(self).__mro__):
        return object.__getattribute__(self, name)  # raises that one again
    raise missing_attribute(self, name)


class _Arguments:
    """The arguments that a method has."""

    def __init__(self, cls: type, method: str, own: list[inspect.Parameter]) -> None:
        self._cls = cls
        self._method = method
        self._names = [each.name for each in own if each.kind in _BY_NAME]
        self._known = frozenset(self._names)
        self.only = own[0] if len(own) == 1 else None

    def check(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Refuse a name that the method does not have; its first argument may be its object or its class."""
        if not named or named.keys() <= self._known:
            return
        owner = args[0] if args and isinstance(args[0], type) else type(args[0] if args else None)
        raise unknown_argument(
            owner if issubclass(owner, self._cls) else self._cls, self._method, named, self._names
        )


def _answering(function: Function, cls: type, method: str, *, is_static: bool = False) -> Function:
    """Return a method that refuses an argument which it does not have with the right name."""
    own = list(inspect.signature(function).parameters.values())[0 if is_static else 1 :]
    if not own or any(each.kind is each.VAR_KEYWORD for each in own):
        return function
    arguments = _Arguments(cls, method, own)
    if inspect.iscoroutinefunction(function):
        return _checking_coroutine(function, arguments)
    if arguments.only is not None and arguments.only.default is not inspect.Parameter.empty and not is_static:
        return _checking_one(function, arguments, arguments.only)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401
        arguments.check(args, named)
        return function(*args, **named)

    return call


def _checking_coroutine(function: Function, arguments: _Arguments) -> Function:
    """Return a coroutine function that refuses wrong arguments before it begins."""

    @functools.wraps(function)
    async def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401
        arguments.check(args, named)
        return await function(*args, **named)

    return call


def _checking_one(function: Function, arguments: _Arguments, only: inspect.Parameter) -> Function:
    """Return a method with one argument, which may be left out.

    It is called without ``*args``: behind such a call Python 3.11 looks for signals. One that came there
    would take a batch away that ``fetch`` has returned.
    """
    name, default = only.name, only.default
    by_name = only.kind is only.KEYWORD_ONLY

    @functools.wraps(function)
    def call(self: object, /, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        arguments.check((self,), named)
        if by_name or len(args) + len(named) > 1:
            return function(self, *args, **named)
        return function(self, args[0] if args else named.get(name, default))

    return call


_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_Table = Mapping[str, Mapping[str, str]]
"""Answers by place (a class or a method), and then by the wrong name."""


def _answers_by_place(rows: "Iterable[OtherName]") -> _Table:
    """Return the answers of some rows of the table, by place and then by the other client's name."""
    table: dict[str, dict[str, str]] = {}
    for row in rows:
        for place in row.places:
            table.setdefault(place, {}).update(dict.fromkeys(row.names, row.answer.replace("`", "")))
    return table


# Every process of Spark imports this module, and few users guess.


@functools.cache
def _by_attribute() -> _Table:
    from tubemq_spark.client.names.others import ATTRIBUTES

    return _answers_by_place(ATTRIBUTES)


@functools.cache
def _by_argument() -> _Table:
    from tubemq_spark.client.names.others import ARGUMENTS

    return _answers_by_place(ARGUMENTS)


def _answer(table: _Table, places: Iterable[str], name: str) -> str | None:
    """Return what to use in place of a name; the form of a class for asyncio may have its own answer."""
    for place in places:
        for key in (place, place.removeprefix("Async")):
            if (answer := table.get(key, {}).get(name)) is not None:
                return answer
    return None
