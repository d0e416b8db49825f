"""The topics of a broker, in one JSON file; and who changed a record of a master, and when."""

import dataclasses
import datetime
import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from tubemq_spark.embedded.files import JsonFile
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.errors import OptionError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.constants import (
    DEFAULT_MAX_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES_LIMIT,
    OFFSET_HISTORY_TOPIC,
    TOPIC_NAME,
    UNDEFINED,
)

SYSTEM_USER: Final = "systemSelf"
"""The user of what was not created by an operator (MetaConfigMapper.addSystemTopicDeploy)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """Who created a record, and who changed it last (BaseEntity)."""

    serial_id: int = UNDEFINED
    """Rises with every change of the record; clients compare it to learn that flow rules are new."""
    create_user: str = ""
    create_date: str = ""
    """``yyyyMMddHHmmss``, here and below."""
    modify_user: str = ""
    modify_date: str = ""


def next_stamp(old: Stamp | None, by: str, date: str | None, now_ms: int) -> Stamp:
    """Return the stamp after a change by a user, who is its creator if there was none; date None: now."""
    when = date or _date(now_ms)
    first = Stamp(create_user=by, create_date=when) if old is None else old
    serial_id = max(now_ms, first.serial_id + 1)
    return dataclasses.replace(first, serial_id=serial_id, modify_user=by, modify_date=when)


def dates(stamp: Stamp) -> dict[str, str]:
    """Return users and times in the form of query answers."""
    return {
        "createUser": stamp.create_user,
        "createDate": stamp.create_date,
        "modifyUser": stamp.modify_user,
        "modifyDate": stamp.modify_date,
    }


def shown(stamp: Stamp) -> dict[str, int | str]:
    """Return a whole stamp in the form of query answers."""
    return {"dataVersionId": UNDEFINED, "serialId": stamp.serial_id, **dates(stamp)}


def _date(now_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).astimezone()
    return moment.strftime("%Y%m%d%H%M%S")


_MAX_STORES: Final = 1000
_HOUR_MS: Final = 3_600_000


class TopicStatus(enum.IntEnum):
    """The steps of removing a topic (TStatusConstants)."""

    NORMAL = 0
    SOFT_DELETED = 1
    REMOVED = 2


@dataclasses.dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic on one broker: ``stores`` logs with ``partitions`` partitions each, and its rules."""

    stores: int = 1
    partitions: int = 1
    accept_publish: bool = True
    accept_subscribe: bool = True
    retention_ms: int = 168 * _HOUR_MS
    """The maximum age of a file of the log (TubeMQ: deletePolicy)."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    flush_messages: int = 1000
    """Flush to the disk after this many messages (TubeMQ: unflushThreshold) ..."""
    flush_interval_ms: int = 10_000
    """... or after this time (unflushInterval) ..."""
    flush_bytes: int = 0
    """... or after this many bytes, 0 for never (unflushDataHold)."""
    cache_mib: int = 3
    """Stored and shown only, like the next two: there is no memory cache here (memCacheMsgSizeInMB)."""
    cache_k_messages: int = 10
    """memCacheMsgCntInK"""
    cache_flush_ms: int = 20_000
    """memCacheFlushIntvl"""
    status: TopicStatus = TopicStatus.NORMAL

    @property
    def publishable(self) -> bool:
        """Whether producers are told about it."""
        return self.accept_publish and self.status is TopicStatus.NORMAL

    @property
    def subscribable(self) -> bool:
        """Whether consumers may read its partitions."""
        return self.accept_subscribe and self.status is TopicStatus.NORMAL

    def problem(self) -> str | None:
        """Say which number is not allowed, if any."""
        limits = {
            "stores": (1, _MAX_STORES),
            "partitions": (1, PARTITIONS_PER_STORE),
            "retention_ms": (1, 168 * _HOUR_MS),
            "max_message_bytes": (1, MAX_MESSAGE_BYTES_LIMIT),
            "flush_messages": (0, 1 << 31),
            "flush_interval_ms": (1, 1 << 31),
            "flush_bytes": (0, 1 << 31),
            "cache_mib": (2, 2048),
            "cache_k_messages": (1, 1 << 31),
            "cache_flush_ms": (4000, 1 << 31),
        }
        for name, (least, most) in limits.items():
            if not least <= (value := getattr(self, name)) <= most:
                return f"{name} is {value} (allowed: {least} to {most})"
        return None


SYSTEM_TOPICS: Final[Mapping[str, TopicSpec]] = MappingProxyType(
    {OFFSET_HISTORY_TOPIC: TopicSpec(stores=1, partitions=10)}
)
"""Topics that every broker has; they cannot be created, changed or removed."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Topics:
    """All topics at one moment, each with its stamp if it has one."""

    specs: Mapping[str, TopicSpec] = dataclasses.field(default_factory=dict)
    stamps: Mapping[str, Stamp] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Make the value from what ``to_json`` returned."""
        specs = {name: spec_from_json(fields) for name, fields in content["topics"].items()}
        # Releases before this one kept no stamps.
        return cls(specs, {name: Stamp(**fields) for name, fields in content.get("stamps", {}).items()})

    def to_json(self) -> dict[str, Any]:
        """Return the contents of the file."""
        return {
            "topics": {name: _fields_of(spec) for name, spec in self.specs.items()},
            "stamps": {name: _fields_of(stamp) for name, stamp in self.stamps.items()},
        }


class Catalog:
    """The topics by name; reading takes no lock, a change writes the file."""

    def __init__(self, path: Path, now_ms: Callable[[], int] = wall_ms) -> None:
        """Read the file, if there is one."""
        self._now_ms = now_ms
        self._file = JsonFile(path, _Topics(), _Topics.from_json, _Topics.to_json)
        self._version = now_ms()

    @property
    def version(self) -> int:
        """A number that rises with every change of a topic, and with every start."""
        return self._version

    def get(self, topic: str) -> TopicSpec | None:
        """Return a topic, including system topics and topics that are being removed."""
        return self._file.value.specs.get(topic) or SYSTEM_TOPICS.get(topic)

    def with_system_topics(self) -> dict[str, TopicSpec]:
        """Return all topics by name, system topics first."""
        return {**SYSTEM_TOPICS, **self.all()}

    def all(self) -> dict[str, TopicSpec]:
        """Return all topics except system topics, in the order of their names."""
        return dict(sorted(self._file.value.specs.items()))

    def stamp(self, topic: str) -> Stamp:
        """Return who created a topic, and who changed it last."""
        return self._file.value.stamps.get(topic) or Stamp(create_user=SYSTEM_USER, modify_user=SYSTEM_USER)

    def touch(self) -> None:
        """Raise the version, because something else changed that clients must learn about."""
        with self._file.lock:
            self._raise_version()

    def add(self, topic: str, spec: TopicSpec, by: str = SYSTEM_USER, date: str | None = None) -> None:
        """Add a topic, or change one, which can only grow.

        ``date`` is ``yyyyMMddHHmmss``; None: now.
        """
        if TOPIC_NAME.fullmatch(topic) is None:
            raise OptionError("TUBEMQ_BAD_TOPIC_NAME", topic=topic)
        if (problem := spec.problem()) is not None:
            raise OptionError("TUBEMQ_BAD_TOPIC_SHAPE", topic=topic, what=problem)
        with self._file.lock:
            topics = self._file.value
            old = topics.specs.get(topic, spec)
            if spec.stores < old.stores or spec.partitions < old.partitions:
                what = f"it has {old.stores} stores of {old.partitions} partitions and can only grow"
                raise OptionError("TUBEMQ_BAD_TOPIC_SHAPE", topic=topic, what=what)
            stamp = next_stamp(topics.stamps.get(topic), by, date, self._now_ms())
            self._change(_Topics({**topics.specs, topic: spec}, {**topics.stamps, topic: stamp}))

    def remove(self, topic: str) -> None:
        """Remove a topic from the catalog; its data is not touched."""
        with self._file.lock:
            topics = self._file.value
            self._change(
                _Topics(
                    {name: spec for name, spec in topics.specs.items() if name != topic},
                    {name: stamp for name, stamp in topics.stamps.items() if name != topic},
                )
            )

    def _change(self, topics: _Topics) -> None:
        if topics.specs != self._file.value.specs:
            self._file.replace(topics)
            self._raise_version()

    def _raise_version(self) -> None:
        self._version = max(self._version + 1, self._now_ms())


def spec_from_json(fields: Mapping[str, Any]) -> TopicSpec:
    """Return the topic from which ``dataclasses.asdict`` made the fields."""
    return TopicSpec(**{**fields, "status": TopicStatus(fields["status"])})


def _fields_of(value: TopicSpec | Stamp) -> dict[str, Any]:
    """Return what ``dataclasses.asdict`` does, without copies: each change of a topic writes all of them."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
