"""How operators have configured a broker: whether it serves, and the defaults of new topics."""

import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tubemq_spark.embedded.clock import wall_ms
from tubemq_spark.embedded.config.catalog import TopicSpec, spec_from_json
from tubemq_spark.embedded.config.files import JsonFile
from tubemq_spark.embedded.config.stamps import SYSTEM_USER, Stamp, next_stamp


class ManageStatus(enum.StrEnum):
    """The status that operators have given a broker, by TubeMQ's names (ManageStatus)."""

    DRAFT = "draft"
    ONLINE = "online"
    ONLY_READ = "only-read"
    ONLY_WRITE = "only-write"
    OFFLINE = "offline"

    @property
    def accept_publish(self) -> bool:
        """Whether producers may send."""
        return self in {ManageStatus.ONLINE, ManageStatus.ONLY_WRITE}

    @property
    def accept_subscribe(self) -> bool:
        """Whether consumers may read."""
        return self in {ManageStatus.ONLINE, ManageStatus.ONLY_READ}


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerRecord:
    """The configuration of a broker, without its address, which the broker itself knows."""

    status: ManageStatus = ManageStatus.ONLINE
    defaults: TopicSpec = dataclasses.field(default_factory=TopicSpec)
    """What a new topic gets unless the call that creates it says otherwise; ``status`` is not used."""
    tls_port: int = 8124
    """Stored and shown only, like the next two."""
    region_id: int = 0
    group_id: int = 0
    stamp: Stamp = dataclasses.field(
        default_factory=lambda: Stamp(create_user=SYSTEM_USER, modify_user=SYSTEM_USER), compare=False
    )


class BrokerConfig:
    """The record of a broker, in one JSON file; reading takes no lock, a change writes the file."""

    def __init__(self, path: Path, now_ms: Callable[[], int] = wall_ms) -> None:
        """Read the file; without one, the broker is online, as the server itself configures it."""
        self._now_ms = now_ms
        self._file = JsonFile(path, BrokerRecord(), _from_json, _to_json)

    @property
    def record(self) -> BrokerRecord:
        """The present configuration."""
        return self._file.value

    @property
    def accept_publish(self) -> bool:
        """Whether producers may send to the broker now."""
        return self.record.status.accept_publish

    @property
    def accept_subscribe(self) -> bool:
        """Whether consumers may read from the broker now."""
        return self.record.status.accept_subscribe

    def replace(
        self, record: BrokerRecord, by: str, date: str | None = None, *, as_new: bool = False
    ) -> None:
        """Change the record, on the disk first; ``as_new`` forgets who created the old one."""
        with self._file.lock:
            old = None if as_new else self.record.stamp
            stamp = next_stamp(old, by, date, self._now_ms())
            self._file.replace(dataclasses.replace(record, stamp=stamp))


def _to_json(record: BrokerRecord) -> dict[str, Any]:
    return {"broker": dataclasses.asdict(record)}


def _from_json(content: dict[str, Any]) -> BrokerRecord:
    fields = content["broker"]
    if fields is None:  # Earlier releases could delete the record.
        return BrokerRecord(status=ManageStatus.OFFLINE)
    values = {
        "status": ManageStatus(fields["status"]),
        "defaults": spec_from_json(fields["defaults"]),
        "stamp": Stamp(**fields["stamp"]),
    }
    return BrokerRecord(**{**fields, **values})
