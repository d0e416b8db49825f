"""How operators have configured a broker: whether it serves, and the defaults of new topics."""

import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

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

    @property
    def serves(self) -> bool:
        """Whether the broker serves any clients."""
        return self.accept_publish or self.accept_subscribe

    def changed(self, publish: bool | None, subscribe: bool | None) -> "ManageStatus":
        """Return the status with one or both permissions changed; None leaves one (getNewStatus)."""
        access = (
            self.accept_publish if publish is None else publish,
            self.accept_subscribe if subscribe is None else subscribe,
        )
        return _BY_ACCESS[access]


_BY_ACCESS: Final = {
    (True, True): ManageStatus.ONLINE,
    (False, True): ManageStatus.ONLY_READ,
    (True, False): ManageStatus.ONLY_WRITE,
    (False, False): ManageStatus.OFFLINE,
}


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
        """Read the file; without one, the broker is online, as the server itself configures it.

        Raises:
            DataLossError: the file cannot be understood; it is left as it is.
        """
        self._now_ms = now_ms
        self._file = JsonFile[BrokerRecord | None](path, BrokerRecord(), _from_json, _to_json)

    @property
    def record(self) -> BrokerRecord | None:
        """The present configuration; None if an operator has deleted it."""
        return self._file.value

    @property
    def accept_publish(self) -> bool:
        """Whether producers may send to the broker now."""
        record = self.record
        return record is not None and record.status.accept_publish

    @property
    def accept_subscribe(self) -> bool:
        """Whether consumers may read from the broker now."""
        record = self.record
        return record is not None and record.status.accept_subscribe

    def replace(self, record: BrokerRecord, by: str, date: str | None = None, *, anew: bool = False) -> None:
        """Change the record, on the disk first; ``anew`` forgets who created the old one."""
        with self._file.lock:
            old = None if anew or self.record is None else self.record.stamp
            stamp = next_stamp(old, by, date, self._now_ms())
            self._file.replace(dataclasses.replace(record, stamp=stamp))

    def delete(self) -> None:
        """Delete the record, on the disk first: the broker serves nobody until it is added again."""
        with self._file.lock:
            self._file.replace(None)


def _to_json(record: BrokerRecord | None) -> dict[str, Any]:
    return {"broker": None if record is None else dataclasses.asdict(record)}


def _from_json(content: dict[str, Any]) -> BrokerRecord | None:
    fields = content["broker"]
    if fields is None:
        return None
    values = {
        "status": ManageStatus(fields["status"]),
        "defaults": spec_from_json(fields["defaults"]),
        "stamp": Stamp(**fields["stamp"]),
    }
    return BrokerRecord(**{**fields, **values})
