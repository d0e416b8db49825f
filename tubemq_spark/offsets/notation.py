"""How offsets are written as JSON: ``{"<topic>": {"<brokerId>:<partitionId>": <offset>}}``.

The one place that reads and writes such text, for options and for checkpoints alike.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeGuard, TypeVar

from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition, is_aligned, nearest_to

FORMAT_VERSION: Final = 2
"""Version of the JSON in a checkpoint; a release reads its own and all older ones."""
FIRST_VERSION: Final = 1
"""The version without marks, which is still written where there are none: every release reads it."""

VERSION_KEY: Final = "v"
"""Marks the form of a checkpoint. No topic can have this name: names have at least two characters."""

_OPTIONAL_AT_FIRST: Final = ("from", "partial")
_OPTIONAL: Final = (*_OPTIONAL_AT_FIRST, "marks", "replaced")
"""What an offset in a checkpoint may have besides its version and its topics."""

_LOCAL_ID: Final = re.compile(r"(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9})")
_MAX_ID: Final = 2**31 - 1
_SHOWN_CHARACTERS: Final = 200
_SHOWN_NAMES: Final = 10

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetReader:
    """Reads one piece of JSON; every error says where it comes from and what to do."""

    source: str
    """Where the text comes from, as the subject of the error's sentence: ``Option 'startingOffsets'``."""
    text: str | Mapping[str, Any]
    """The text as the user gave it, or the data that Spark parsed from its text."""
    advice: str
    """What the user can do about wrong text."""

    def fail(self, problem: str) -> NoReturn:
        """Refuse the text."""
        # Only made here: writing the text of ten thousand partitions takes longer than reading them.
        text = self.text if isinstance(self.text, str) else json.dumps(self.text)
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
        excerpt = f", in {shown}" if shown else ""
        raise OffsetFormatError(
            "TUBEMQ_OFFSETS_MALFORMED", source=self.source, problem=problem, seen=excerpt, advice=self.advice
        )

    def load(self) -> dict[str, Any]:
        """Return the object in the text."""
        text = str(self.text)
        if not text.strip():
            self.fail("it is blank")
        try:
            data = json.loads(text, object_pairs_hook=self._unique)
        except OffsetFormatError:
            raise
        except (ValueError, RecursionError) as error:
            # Where the mistake is helps in JSON only, not in a word that is none of those that are allowed.
            self.fail(f"it is not JSON ({error})" if text.lstrip()[0] in "{[" else "it is not JSON")
        return self.mapping(data, "the text")

    def mapping(self, data: object, what: str) -> dict[str, Any]:
        """Return ``data`` if it is a JSON object."""
        if not isinstance(data, dict):
            self.fail(f"{what} is {json.dumps(data)}, not an object")
        return data

    def checkpoint_fields(self, data: Mapping[str, Any]) -> None:
        """Refuse missing and unknown keys of an offset in a checkpoint, by its version."""
        optional = _OPTIONAL if data[VERSION_KEY] > FIRST_VERSION else _OPTIONAL_AT_FIRST
        self.fields(data, (VERSION_KEY, "topics"), optional)

    def fields(self, data: Mapping[str, Any], required: Iterable[str], optional: Iterable[str] = ()) -> None:
        """Refuse missing and unknown keys of an object."""
        needed = set(required)
        for key in sorted(needed - data.keys()):
            self.fail(f"the field {key!r} is missing")
        for key in sorted(data.keys() - needed - set(optional)):
            self.fail(f"the field {key!r} is not known")

    def check_version(self, data: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of a format version that this release does not know."""
        version = data[VERSION_KEY]
        if not _is_integer(version) or version < 1:
            self.fail(f"{json.dumps(version)} is not a format version")
        if version > FORMAT_VERSION:
            raise OffsetFormatError(
                "TUBEMQ_OFFSETS_VERSION", source=self.source, version=version, supported=FORMAT_VERSION
            )

    def offsets(self, data: object) -> dict[TopicPartition, int]:
        """Read topic, partition and offset of every entry."""
        return self.of_topics(data, "the topics' value", self.offset)

    def of_topics(
        self, data: object, what: str, read_value: Callable[[object, TopicPartition], Value]
    ) -> dict[TopicPartition, Value]:
        """Read the entries of all topics; ``what`` is the subject of an error's sentence."""
        values: dict[TopicPartition, Value] = {}
        for topic, inner in self.mapping(data, what).items():
            values |= self.partitions(topic, inner, read_value)
        return values

    def partitions(
        self, topic: str, data: object, read_value: Callable[[object, TopicPartition], Value]
    ) -> dict[TopicPartition, Value]:
        """Read the entries of one topic."""
        inner = self.mapping(data, f"the value of topic {topic!r}")
        pairs = [(self.partition(topic, key), value) for key, value in inner.items()]
        return {partition: read_value(value, partition) for partition, value in pairs}

    def partition(self, topic: str, key: str) -> TopicPartition:
        """Read the key of a partition, ``brokerId:partitionId``."""
        match = _LOCAL_ID.fullmatch(key)
        if match is None or max(ids := (int(match[1]), int(match[2]))) > _MAX_ID:
            self.fail(f"{key!r} of topic {topic!r} is not brokerId:partitionId")
        return TopicPartition(topic, *ids)

    def offset(self, value: object, partition: TopicPartition) -> int:
        """Read an offset, in index bytes."""
        if not _is_integer(value):
            self.fail(f"the offset {json.dumps(value)} of {partition} is not a whole number")
        if not is_aligned(value):
            self.fail(
                f"the offset {value} of {partition} is not a multiple of {INDEX_ENTRY_BYTES} from 0 on; "
                f"{nearest_to(value)}"
            )
        return value

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # JSON parsers keep the last of two equal keys, which would skip or repeat records.
        data = dict(pairs)
        if len(data) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            self.fail(f"it names {twice!r} twice")
        return data


def write_offsets(offsets: Mapping[TopicPartition, Value]) -> dict[str, dict[str, Value]]:
    """Return the one form of these offsets: topics by name, partitions by broker id and partition id."""
    topics: dict[str, dict[str, Value]] = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[partition.local_id] = offsets[partition]
    return topics


def listed(names: Sequence[object]) -> str:
    """List names for a message, but not more of them than a person would read."""
    more = len(names) - _SHOWN_NAMES
    shown = ", ".join(str(name) for name in names[:_SHOWN_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _is_integer(value: object) -> TypeGuard[int]:
    # True and False are integers for Python, but not for a reader of JSON.
    return isinstance(value, int) and not isinstance(value, bool)
