"""The topics of an embedded TubeMQ: what each looks like, kept in one JSON file."""

import dataclasses
import enum
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tubemq_spark.embedded.files import read_json, write_json
from tubemq_spark.embedded.store import wall_ms
from tubemq_spark.errors import OptionError
from tubemq_spark.model import PARTITIONS_A_STORE
from tubemq_spark.protocol.constants import DEFAULT_MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES_LIMIT
from tubemq_spark.protocol.names import TOPIC_NAME

_MAX_STORES: Final = 1000
_HOUR_MS: Final = 3_600_000


class TopicStatus(enum.IntEnum):
    """Steps of a topic's removal (TStatusConstants)."""

    NORMAL = 0
    SOFT_DELETED = 1
    REMOVED = 2


@dataclasses.dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic on the broker: ``stores`` logs of ``partitions`` partitions each, and its rules."""

    stores: int = 1
    partitions: int = 1
    accept_publish: bool = True
    accept_subscribe: bool = True
    retention_ms: int = 168 * _HOUR_MS
    """How old a file of the log may become (TubeMQ: deletePolicy)."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    flush_messages: int = 1000
    """Bring data to the disk after so many messages (TubeMQ: unflushThreshold) ..."""
    flush_interval_ms: int = 10_000
    """... or after this time (unflushInterval) ..."""
    flush_bytes: int = 0
    """... or after so many bytes, 0 for never (unflushDataHold)."""
    status: TopicStatus = TopicStatus.NORMAL

    @property
    def publishable(self) -> bool:
        """Whether producers are told of it."""
        return self.accept_publish and self.status is TopicStatus.NORMAL

    @property
    def subscribable(self) -> bool:
        """Whether consumers may take its partitions."""
        return self.accept_subscribe and self.status is TopicStatus.NORMAL

    def problem(self) -> str | None:
        """Say what is wrong with the numbers, if anything is."""
        limits = {
            "stores": (1, _MAX_STORES),
            "partitions": (1, PARTITIONS_A_STORE),
            "retention_ms": (1, 168 * _HOUR_MS),
            "max_message_bytes": (1, MAX_MESSAGE_BYTES_LIMIT),
            "flush_messages": (1, 1 << 31),
            "flush_interval_ms": (1, 1 << 31),
            "flush_bytes": (0, 1 << 31),
        }
        for name, (least, most) in limits.items():
            if not least <= (value := getattr(self, name)) <= most:
                return f"{name} is {value} (allowed: {least} to {most})"
        return None


class Catalog:
    """The topics by name; looking one up takes no lock, changing one writes the file."""

    def __init__(self, path: Path, now_ms: Callable[[], int] = wall_ms) -> None:
        """Read the file, if there is one.

        Raises:
            DataLossError: the file cannot be understood; it is left as it is.
        """
        self._path = path
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._topics: dict[str, TopicSpec] = read_json(path, _topics) or {}
        self._version = now_ms()

    @property
    def version(self) -> int:
        """A number that changes with every change of a topic, and with every start."""
        return self._version

    def get(self, topic: str) -> TopicSpec | None:
        """Return a topic, also one that is being removed."""
        return self._topics.get(topic)

    def all(self) -> dict[str, TopicSpec]:
        """Return all topics by name, in the order of their names."""
        with self._lock:
            return dict(sorted(self._topics.items()))

    def add(self, topic: str, spec: TopicSpec) -> None:
        """Add a topic, or let it grow to this.

        Raises:
            OptionError: the name or the numbers are not allowed, or the topic would shrink.
        """
        if TOPIC_NAME.fullmatch(topic) is None:
            raise OptionError("TUBEMQ_BAD_TOPIC_NAME", topic=topic)
        if (problem := spec.problem()) is not None:
            raise OptionError("TUBEMQ_BAD_TOPIC_SHAPE", topic=topic, what=problem)
        with self._lock:
            old = self._topics.get(topic, spec)
            if spec.stores < old.stores or spec.partitions < old.partitions:
                what = f"it has {old.stores} stores of {old.partitions} partitions and can only grow"
                raise OptionError("TUBEMQ_BAD_TOPIC_SHAPE", topic=topic, what=what)
            self._change({**self._topics, topic: spec})

    def remove(self, topic: str) -> None:
        """Forget a topic; its data are not touched."""
        with self._lock:
            self._change({name: spec for name, spec in self._topics.items() if name != topic})

    def _change(self, topics: dict[str, TopicSpec]) -> None:
        if topics != self._topics:
            write_json(
                self._path, {"topics": {name: dataclasses.asdict(spec) for name, spec in topics.items()}}
            )
            self._topics = topics
            self._version = max(self._version + 1, self._now_ms())


def _topics(content: dict[str, Any]) -> dict[str, TopicSpec]:
    return {
        name: TopicSpec(**{**fields, "status": TopicStatus(fields["status"])})
        for name, fields in content["topics"].items()
    }
