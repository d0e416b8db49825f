"""The differences that are as they should be, as data; each id is a row of docs/embedded-differences.md."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from integration_tests.differential.calls import BAD_TEXT, Call, Plain
from integration_tests.differential.compare import Difference, Flat
from integration_tests.differential.names import HISTORY_TOPIC, MAX_MESSAGE_BYTES, TOPICS
from tubemq_spark.model import PARTITIONS_A_STORE
from tubemq_spark.protocol.constants import Method

_OF_PARTITIONS: Final = frozenset(
    {Method.SEND_MESSAGE, Method.PARTITION_REGISTER, Method.GET_MESSAGE, Method.COMMIT_OFFSET}
)

_PACKED_FORMS: Final = {
    "topicCondition": r"[^#]+#[^#]+",
    "partitionInfo": r"\d+:[^:#]+:\d+#[^:#]+:\d+",
    "partSubInfo": r"[^#:,]+#\d+:\d+(,\d+:\d+)*",
    "subscribeInfo": r"[^@#]+@[^@#]+#\d+:[^:#]+:\d+#[^:#]+:\d+",
}
"""What TubeMQ's clients write into the fields that pack several values into a text."""

_UNREADABLE: Final = r"com\.google\.protobuf\.InvalidProtocolBufferException"
_HEADER_BYTES: Final = 52
"""Of each message where a broker keeps it."""
_NO_MESSAGE: Final = "IPC server handle request error :"


@dataclasses.dataclass(frozen=True, slots=True)
class Allowed:
    """A kind of difference; ``id`` is its row in the documentation."""

    id: str
    calls: Callable[[Call], bool] = lambda _: True
    """Which calls it concerns."""
    methods: frozenset[int] = frozenset()
    """Where it is found; none means everywhere."""
    path: str = ".*"
    """Regular expression for the whole paths of the fields that may differ."""
    embedded: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Regular expressions for what the embedded server says, by path; a field that is absent is ``None``."""
    real: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The same for the Java server."""
    by_time: bool = False
    """Whether it shows only now and then."""
    parts: bool = False
    """Whether the servers stand differently afterwards, so that nothing more can be compared."""

    def covers(self, difference: Difference) -> bool:
        """Say whether it explains a difference."""
        return (
            (not self.methods or difference.call.method in self.methods)
            and self.calls(difference.call)
            and _matches(self.path, difference.path)
            and _all_match(self.embedded, difference.embedded)
            and _all_match(self.real, difference.real)
        )


def _matches(pattern: str, value: Any) -> bool:
    return re.fullmatch(pattern, str(value), re.DOTALL) is not None


def _all_match(patterns: Mapping[str, str], answer: Flat) -> bool:
    return all(_matches(pattern, answer.get(path)) for path, pattern in patterns.items())


def _texts(value: Plain) -> Iterator[str]:
    """Return all texts of a plain value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _mentions(text: str) -> Callable[[Call], bool]:
    return lambda call: any(text in found for found in _texts(call.fields))


def _is_missing(topic: str, partition_id: int) -> bool:
    """Say whether a topic that exists has no such partition."""
    if topic not in TOPICS:
        return False
    stores, partitions = TOPICS[topic]
    store, index = divmod(partition_id, PARTITIONS_A_STORE)
    return not (0 <= store < stores and index < partitions)


def _names_missing_partition(call: Call) -> bool:
    if call.method in _OF_PARTITIONS:
        return _is_missing(call.topic, call.fields.get("partitionId", 0))
    named = (re.fullmatch(r".*#(.*):(-?\d+)", text) for text in call.fields.get("partitionInfo", ()))
    return any(_is_missing(found[1].strip(), int(found[2])) for found in named if found)


def _packs_otherwise(call: Call) -> bool:
    fields = {**call.fields, **call.fields.get("subRepInfo", {})}
    return any(
        re.fullmatch(form, text, re.DOTALL) is None
        for name, form in _PACKED_FORMS.items()
        for text in fields.get(name, ())
    )


def _is_control_name(call: Call) -> bool:
    return any(text and not text.strip("".join(map(chr, range(0x20)))) for text in _texts(call.fields))


_FETCH: Final = frozenset({Method.GET_MESSAGE})
_OUTCOME_OF_FETCH: Final = (
    "success|errCode|errMsg|currOffset|maxOffset|currDataDlt|requireSlow|minLimitTime|messages.*"
)

ALLOWED: Final[Sequence[Allowed]] = (
    Allowed("missing-partition", calls=_names_missing_partition),
    Allowed("strict-protobuf", calls=_mentions(BAD_TEXT), parts=True),
    Allowed(
        "strict-protobuf",
        calls=lambda call: bool(call.tail),
        embedded={"exception": _UNREADABLE},
        real={"exception": "None"},
        parts=True,
    ),
    Allowed(
        "offset-history",
        calls=lambda call: call.topic == HISTORY_TOPIC,
        path="currOffset|maxOffset|currDataDlt|messages.*",
        real={"errCode": "200"},
        by_time=True,
        parts=True,
    ),
    Allowed("packed-texts", calls=_packs_otherwise, parts=True),
    Allowed("control-characters", calls=_is_control_name, parts=True),
    Allowed(
        "unreadable-text",
        path="text|exception",
        embedded={"exception": _UNREADABLE, "text": f"{_NO_MESSAGE}.*PROTOCOL_VIOLATION.*"},
        real={"exception": rf"{_UNREADABLE}(\$InvalidWireTypeException)?", "text": f"{_NO_MESSAGE}.*"},
    ),
    Allowed(
        "lag-in-memory",
        methods=_FETCH,
        path="currDataDlt",
        embedded={"success": "True"},
        real={"success": "True"},
    ),
    Allowed(
        "empty-or-404",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={"errMsg": "Can't found Message by index!", "messages.0": "None"},
        real={"errMsg": "OK!", "messages.0": "None"},
    ),
    Allowed(
        "longest-messages",
        methods=_FETCH,
        path="messages.*",
        embedded={"messages.0.payLoadData": f"b'.{{{MAX_MESSAGE_BYTES - _HEADER_BYTES + 1},}}'"},
        real={"errMsg": "OK!"},
        parts=True,
    ),
    Allowed(
        "being-flushed",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={"errMsg": "OK!|Can't found Message by index!"},
        real={"errMsg": "Can't found Message by index in cache"},
        parts=True,
    ),
    Allowed(
        "balancing-time",
        methods=frozenset({Method.CONSUMER_HEARTBEAT}),
        path="event.*|notAllocated",
        by_time=True,
    ),
    Allowed(
        "early-layout",
        methods=frozenset({Method.BALANCE_HEARTBEAT}),
        path="topicMetaInfo.*",
        real={"topicMetaInfoId": "-1", "topicMetaInfoList.0": "None"},
        by_time=True,
        parts=True,
    ),
)


def explanation(difference: Difference) -> Allowed | None:
    """Return the row of the table that covers a difference, if there is one."""
    return next((allowed for allowed in ALLOWED if allowed.covers(difference)), None)
