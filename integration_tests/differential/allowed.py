"""The differences that are as they should be; each id is a row of docs/testing/embedded-differences.md."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from integration_tests.differential.calls import (
    BAD_TEXT,
    BROKER,
    GROUPS,
    HISTORY_TOPIC,
    MAX_MESSAGE_BYTES,
    REQUEST_TYPES,
    RUN,
    TOPICS,
    Call,
    Plain,
)
from integration_tests.differential.compare import Difference, Flat, is_for_java_only
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.constants import Method

_SENDS: Final = frozenset({Method.SEND_MESSAGE})
_REGISTERS: Final = frozenset({Method.PARTITION_REGISTER})
_FETCH: Final = frozenset({Method.GET_MESSAGE})
_COMMITS: Final = frozenset({Method.COMMIT_OFFSET})
_OF_PARTITIONS: Final = _SENDS | _REGISTERS | _FETCH | _COMMITS

_ADDRESS: Final = rf"(?:{re.escape(BROKER)}|[^:#]+:\d+)"
"""A broker's address; in a call that was not made yet it is a mark."""
_PACKED_FORMS: Final = {
    "topicCondition": r"[^#]+#[^#]+",
    "partitionInfo": rf"\d+:{_ADDRESS}#[^:#]+:\d+",
    "partSubInfo": r"[^#:,]+#\d+:\d+(,\d+:\d+)*",
    "subscribeInfo": rf"[^@#]+@[^@#]+#\d+:{_ADDRESS}#[^:#]+:\d+",
}
"""What TubeMQ's clients write into the fields that pack several values into a text."""

_FILTERS_NOTHING: Final = r"[^#]+#"
"""A ``topicCondition`` as the Go client writes it for a topic without filter."""

_FAILED: Final = {"status": "1", "exception": r"java\.lang\.reflect\.InvocationTargetException", "text": ""}
"""The answer of both to a request that a handler stumbles over."""
_ANSWERED: Final = {"exception": "None"}
_SUCCEEDED: Final = {"success": "True", "errCode": "200"}
_UNREADABLE: Final = r"com\.google\.protobuf\.InvalidProtocolBufferException"
_EVENTS: Final = frozenset({"1", "2", "10", "20"})
"""Connect and disconnect, in pairs and alone (EventType)."""
_HEADER_BYTES: Final = 52
"""Of each message where a broker keeps it."""
_NO_PARTITION: Final = {
    "success": "False",
    "errCode": "403",
    "errMsg": r"partitionId \w+--?\d+ not existed, please check your configure",
}
_NO_MESSAGE: Final = "IPC server handle request error :"


_NAMES: Final = ("clientId", "groupName", "hostName", "topicName", "topicList")
_CONTROL_CHARACTERS: Final = "".join(map(chr, range(0x20)))
_NAME_IS_MISSING: Final = {
    "errCode": "400",
    "errMsg": r"Request miss necessary \w+ data!|Request subscribed topicList data must not Blank!",
}


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
    holds: Callable[[Difference], bool] = lambda _: True
    """What must be true of the two answers besides."""
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
            and self.holds(difference)
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


def _has_bad_text(call: Call) -> bool:
    """Whether a field that protobuf defines as text holds bytes that are not UTF-8."""
    message_type = REQUEST_TYPES.get(call.method)
    return message_type is not None and _is_bad_text_within(call.fields, message_type.DESCRIPTOR)


def _is_bad_text_within(fields: Plain, message: Descriptor) -> bool:
    return any(
        _is_bad_text_within(value, field.message_type)
        if field.message_type is not None
        else field.type == FieldDescriptor.TYPE_STRING and any(BAD_TEXT in text for text in _texts(value))
        for name, value in fields.items()
        if (field := message.fields_by_name.get(name)) is not None
    )


def _has_tail_for_java_only(call: Call) -> bool:
    """Whether bytes behind a message are such as Java reads and Python does not."""
    message_type = REQUEST_TYPES.get(call.method)
    descriptor = None if message_type is None else message_type.DESCRIPTOR
    return not call.cut and is_for_java_only(bytes.fromhex(call.tail), descriptor)


def _counts_more_behind_what_was_delivered(difference: Difference) -> bool:
    """Java's lag holds at least one message more: one that was passed over after the last delivered one."""
    embedded, real = (answer["currDataDlt"] for answer in (difference.embedded, difference.real))
    return bool(real - embedded > _HEADER_BYTES)


def _payloads(answer: Flat) -> list[bytes]:
    numbers = itertools.takewhile(lambda number: f"messages.{number}" in answer, itertools.count())
    return [answer[f"messages.{number}.payLoadData"] for number in numbers]


def _begins_with(longer: Flat, shorter: Flat) -> bool:
    """Whether an answer has all the messages of another one and more of them."""
    more, fewer = _payloads(longer), _payloads(shorter)
    return len(fewer) < len(more) and more[: len(fewer)] == fewer


def _events_are_sound(difference: Difference) -> bool:
    """Each event there is tells this client about partitions that exist.

    The Java master queues events by the client's id alone (ConsumerEventManager): a client that is in two
    groups is told of both in the heartbeats of either. The embedded one tells a group's in that group's.
    """
    call = difference.call
    group = _pattern_of(call.fields["groupName"])
    any_group = "|".join(map(_pattern_of, GROUPS))
    return _is_sound_event(call, difference.embedded, group) and _is_sound_event(
        call, difference.real, any_group
    )


def _pattern_of(name: str) -> str:
    """Return the pattern of a name that has the run's number in it."""
    return re.escape(name.strip()).replace(re.escape(RUN), r"\d+")


def _is_sound_event(call: Call, answer: Flat, group: str) -> bool:
    if "event" not in answer:
        return True
    who = _pattern_of(call.fields["clientId"])
    held = re.compile(rf"{who}@(?:{group})#1:{re.escape(BROKER)}#(?P<topic>[^:]+):(?P<partition>\d+)")
    found = [held.fullmatch(text) for path, text in answer.items() if path.startswith("event.subscribeInfo.")]
    return str(answer.get("event.opType")) in _EVENTS and all(
        match is not None
        and match["topic"] in TOPICS
        and not _is_missing(match["topic"], int(match["partition"]))
        for match in found
    )


def _is_missing(topic: str, partition_id: int) -> bool:
    """Say whether a topic that exists has no such partition."""
    if topic not in TOPICS:
        return False
    stores, partitions = TOPICS[topic]
    store, index = divmod(partition_id, PARTITIONS_PER_STORE)
    return not (0 <= store < stores and index < partitions)


def _names_missing_partition(call: Call) -> bool:
    return call.method in _OF_PARTITIONS and _is_missing(call.topic, call.fields.get("partitionId", 0))


def _packs_otherwise(call: Call) -> bool:
    fields = {**call.fields, **call.fields.get("subRepInfo", {})}
    return any(
        re.fullmatch(form, text, re.DOTALL) is None
        for name, form in _PACKED_FORMS.items()
        for text in fields.get(name, ())
    )


def _filters_nothing(call: Call) -> bool:
    return any(re.fullmatch(_FILTERS_NOTHING, text) for text in call.fields.get("topicCondition", ()))


def _does_not_report(call: Call) -> bool:
    return not call.fields.get("subRepInfo", {}).get("reportSubInfo", False)


def _has_control_name(call: Call) -> bool:
    names = (call.fields.get(name, ()) for name in _NAMES)
    return any(text and not text.strip(_CONTROL_CHARACTERS) for name in names for text in _texts(name))


_OUTCOME_OF_FETCH: Final = (
    "success|errCode|errMsg|currOffset|maxOffset|currDataDlt|requireSlow|minLimitTime|messages.*"
)
_FILTERING: Final = frozenset({Method.CONSUMER_REGISTER, Method.BALANCE_REGISTER})
_PACKING: Final = _FILTERING | {
    Method.CONSUMER_HEARTBEAT,
    Method.PARTITION_HEARTBEAT,
    Method.BALANCE_HEARTBEAT,
}

ALLOWED: Final[Sequence[Allowed]] = (
    Allowed(
        "missing-partition",
        calls=_names_missing_partition,
        methods=_SENDS,
        path="success|errCode|errMsg|messageId|appendTime|appendOffset|requireAuth",
        embedded=_NO_PARTITION,
        real={"errMsg": "<its message id>|Checksum msg data failure: .*|data length .*"},
    ),
    Allowed(
        "missing-partition",
        calls=_names_missing_partition,
        methods=_REGISTERS,
        path="success|errCode|errMsg|currOffset|maxOffset",
        embedded={
            "success": "False",
            "errCode": "500",
            "errMsg": r"Register broker failure!, exception is Wrong partition value -?\d+,.*",
        },
        real=_SUCCEEDED,
    ),
    Allowed(
        "missing-partition",
        calls=_names_missing_partition,
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={
            "success": "False",
            "errCode": "500",
            "errMsg": r"Get the store of topic \w+ in partition -?\d+ failure!",
        },
        real={"errCode": "200|404"},
    ),
    Allowed(
        "missing-partition",
        calls=_names_missing_partition,
        methods=_COMMITS,
        path="success|errCode|errMsg|currOffset|maxOffset",
        embedded=_NO_PARTITION,
        real={"errCode": "200|401"},
    ),
    Allowed(
        "strict-protobuf",
        calls=_has_bad_text,
        embedded={"status": "2", "exception": _UNREADABLE},
        real=_ANSWERED,
        parts=True,
    ),
    Allowed(
        "strict-protobuf",
        calls=_has_tail_for_java_only,
        embedded={"status": "2", "exception": _UNREADABLE},
        real=_ANSWERED,
        parts=True,
    ),
    Allowed(
        "offset-history",
        calls=lambda call: call.topic == HISTORY_TOPIC,
        path="currOffset|maxOffset",
        embedded=_SUCCEEDED,
        real=_SUCCEEDED,
        by_time=True,
        parts=True,
    ),
    Allowed(
        "offset-history",
        calls=lambda call: call.topic == HISTORY_TOPIC,
        methods=_FETCH,
        embedded={"success": "False", "errCode": "404"},
        real=_SUCCEEDED,
        by_time=True,
        parts=True,
    ),
    Allowed(
        "packed-texts",
        calls=_packs_otherwise,
        methods=_PACKING,
        embedded=_FAILED,
        real=_ANSWERED,
        parts=True,
    ),
    Allowed(
        "packed-texts",
        calls=_filters_nothing,
        methods=_FILTERING,
        embedded={**_ANSWERED, "errCode": "200|4.."},
        real=_FAILED,
        parts=True,
    ),
    Allowed(
        "separators-in-names",
        methods=frozenset({Method.CONSUMER_REGISTER}),
        embedded={
            "success": "False",
            "errCode": "400",
            "errMsg": "(clientId|groupName) .*[:#@,=].* has a character that separates fields!",
        },
        real=_ANSWERED,
        parts=True,
    ),
    Allowed("control-characters", calls=_has_control_name, embedded=_NAME_IS_MISSING, parts=True),
    Allowed(
        "control-characters",
        calls=_has_control_name,
        methods=frozenset({Method.CONSUMER_REGISTER, Method.BALANCE_REGISTER}),
        embedded={"errCode": "200|431"},
        real={"errCode": "431", "errMsg": r"Requested topic \[\[(, [^\[\]]*)?\]\] not deployed!"},
        parts=True,
    ),
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
        embedded={**_SUCCEEDED, "currDataDlt": r"\d+"},
        real={**_SUCCEEDED, "currDataDlt": r"\d+"},
        holds=_counts_more_behind_what_was_delivered,
    ),
    Allowed(
        "empty-or-404",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={
            "success": "False",
            "errCode": "404",
            "errMsg": "Can't found Message by index!",
            "messages.0": "None",
        },
        real={**_SUCCEEDED, "errMsg": "OK!", "messages.0": "None"},
    ),
    Allowed(
        "longest-messages",
        methods=_FETCH,
        path="messages.*",
        embedded={
            **_SUCCEEDED,
            "messages.0.payLoadData": f"b'.{{{MAX_MESSAGE_BYTES - _HEADER_BYTES + 1},}}'",
        },
        real={**_SUCCEEDED, "errMsg": "OK!"},
        parts=True,
    ),
    Allowed(
        "being-flushed",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={"errCode": "200|404", "errMsg": "OK!|Can't found Message by index!"},
        real={"errCode": "404", "errMsg": "Can't found Message by index in cache"},
        parts=True,
    ),
    Allowed(
        "balancing-time",
        methods=frozenset({Method.CONSUMER_HEARTBEAT}),
        path="event.*|notAllocated",
        embedded=_SUCCEEDED,
        real=_SUCCEEDED,
        holds=_events_are_sound,
        by_time=True,
    ),
    Allowed(
        "early-layout",
        methods=frozenset({Method.BALANCE_HEARTBEAT}),
        path="topicMetaInfo.*",
        embedded={"errCode": "200", "topicMetaInfoId": "1"},
        real={"errCode": "200", "topicMetaInfoId": "-1", "topicMetaInfoList.0": "None"},
        by_time=True,
        parts=True,
    ),
    Allowed(
        "reports-by-client",
        calls=_does_not_report,
        methods=frozenset({Method.BALANCE_HEARTBEAT}),
        path="topicMetaInfo.*",
        embedded={"errCode": "200", "topicMetaInfoId": "None", "topicMetaInfoList.0": "None"},
        real={"errCode": "200", "topicMetaInfoId": "-?1"},
        parts=True,
    ),
)


ALLOWED_BY_DEFAULT: Final[Sequence[Allowed]] = (
    Allowed(
        "shows-more",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded=_SUCCEEDED,
        real={"errCode": "200|404"},
        holds=lambda difference: _begins_with(difference.embedded, difference.real),
        parts=True,
    ),
    Allowed(
        "shows-more",
        methods=_FETCH,
        path="errMsg",
        embedded={"errCode": "404", "errMsg": "Request offset reached cache maxOffset"},
        real={"errCode": "404", "errMsg": "current offset is exceed max file offset"},
    ),
    Allowed(
        "looks-farther",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={"errCode": "404", "errMsg": "The request offset reached maxOffset!"},
        real={**_SUCCEEDED, "messages.0": "None"},
        parts=True,
    ),
    Allowed(
        "shows-more",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={**_SUCCEEDED, "messages.0": "None"},
        real={"errCode": "404", "errMsg": "current offset is exceed max file offset"},
        parts=True,
    ),
    Allowed(
        "looks-farther",
        methods=_COMMITS,
        path="currOffset",
        embedded=_SUCCEEDED,
        real=_SUCCEEDED,
        holds=lambda difference: difference.embedded["currOffset"] > difference.real["currOffset"],
        parts=True,
    ),
    Allowed(
        "empty-200",
        methods=_FETCH,
        path=_OUTCOME_OF_FETCH,
        embedded={**_SUCCEEDED, "messages.0": "None"},
        real={"success": "False", "errCode": "404", "messages.0": "None"},
    ),
)
"""Differences besides of an embedded server with its default settings, which are not all those of Java."""


def explanation(difference: Difference, *, by_default: bool = False) -> Allowed | None:
    """Return the row of the tables that covers a difference, if there is one."""
    table = (*ALLOWED, *ALLOWED_BY_DEFAULT) if by_default else ALLOWED
    return next((allowed for allowed in table if allowed.covers(difference)), None)
