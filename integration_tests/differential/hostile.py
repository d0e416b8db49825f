"""What no client should ask: calls with fields missing, or of bad values, or in the wrong place."""

from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from integration_tests.differential.calls import (
    BAD_TEXT,
    CLIENTS,
    DENSE,
    GROUPS,
    REQUEST_TYPES,
    RUN,
    RUN_LENGTH,
    Call,
)

_BLANK_TEXTS: Final = ("", " ", "\t\n", "\u3000", "\u0000", "\u0001")
_HOSTILE_ENDINGS: Final = (
    *("\u00a0", "#b", ":b", ":2:3", "@", ",", "#", ":", ",b=c", "{}", "%s", "\u0000", "\u2028"),
    *("\u00e4\u00f6\u00fc", "\u6f22\u5b57", BAD_TEXT),
    *("n" * (limit - RUN_LENGTH + over) for limit in (64, 256, 1024) for over in (0, 1)),
    # Each is two characters for Java.
    *("\U0001f600" * ((limit - RUN_LENGTH) // 2 + over) for limit in (64, 1024) for over in (0, 1)),
)
_HOSTILE_TEXTS: Final = st.sampled_from(
    (
        *_BLANK_TEXTS,
        # A name that several runs share would be a consumer's for some of them, until its time is over.
        *(RUN + ending for ending in _HOSTILE_ENDINGS),
        f"\u2028{RUN}",
        f" {CLIENTS[0]} ",
        f"\u00a0{CLIENTS[0]}",
        f" {GROUPS[0]}\t",
    )
)
_HOSTILE_TOPICS: Final = _HOSTILE_TEXTS | st.sampled_from((f" {DENSE}\t", DENSE.upper(), f"\u00a0{DENSE}"))
_HOSTILE_NUMBERS: Final = st.sampled_from((-1, -2, 0, 1, 27, 29, 31, 32, 33, 2**31 - 1, -(2**31), 10_000))


@st.composite
def spoilt(draw: st.DrawFn, calls: st.SearchStrategy[Call]) -> Call:
    """A call with one field missing or hostile."""
    call = draw(calls)
    descriptor = REQUEST_TYPES[call.method].DESCRIPTOR
    field = descriptor.fields_by_name[draw(st.sampled_from(sorted(call.fields)))]
    if field.type == FieldDescriptor.TYPE_STRING:
        texts = _HOSTILE_TOPICS if field.name in ("topicName", "topicList") else _HOSTILE_TEXTS
        value = draw(st.lists(texts, max_size=3) if field.is_repeated else texts)
    elif field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64):
        value = draw(_HOSTILE_NUMBERS)
    else:
        return call.without(field.name)
    return draw(st.sampled_from((call.without(field.name), call.with_fields(**{field.name: value}))))


@st.composite
def misdirected(draw: st.DrawFn, calls: st.SearchStrategy[Call]) -> Call:
    """A call to the wrong service or port, of an unknown method, or with bytes that are no message."""
    call = draw(calls)
    plain = call.plain()
    kind = draw(st.sampled_from(("service", "port", "method", "cut", "tail", "swap")))
    if kind == "service":
        plain["service"] = draw(st.sampled_from((-1, 0, 1, 2, 3, 4, 5, 99)))
    elif kind == "port":
        plain["port"] = draw(st.sampled_from(("master", "broker")))
    elif kind == "method":
        plain |= {"method": draw(st.sampled_from((-1, 0, 10, 11, 12, 14, 19, 23, 31, 32, 99))), "fields": {}}
    elif kind == "cut":
        plain["cut"] = draw(st.integers(1, 40))
    elif kind == "tail":
        plain["tail"] = draw(st.binary(min_size=1, max_size=8)).hex()
    else:
        plain |= {"fields": {}, "tail": draw(st.binary(max_size=24)).hex()}
    return Call(**plain)
