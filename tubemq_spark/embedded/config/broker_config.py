"""How the one broker is set up by its operators: whether it serves, and what new topics get."""

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
    """What operators want of a broker, in TubeMQ's words (ManageStatus)."""

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
        """Whether the broker does anything for clients."""
        return self.accept_publish or self.accept_subscribe

    def changed(self, publish: bool | None, subscribe: bool | None) -> "ManageStatus":
        """Return the status in which one or both are as wished; None leaves it (getNewStatus)."""
        wish = (
            self.accept_publish if publish is None else publish,
            self.accept_subscribe if subscribe is None else subscribe,
        )
        return _BY_ACCESS[wish]


_BY_ACCESS: Final = {
    (True, True): ManageStatus.ONLINE,
    (False, True): ManageStatus.ONLY_READ,
    (True, False): ManageStatus.ONLY_WRITE,
    (False, False): ManageStatus.OFFLINE,
}


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerRecord:
    """The broker as configured; its address is not in here, it knows that itself."""

    status: ManageStatus = ManageStatus.ONLINE
    defaults: TopicSpec = dataclasses.field(default_factory=TopicSpec)
    """What a new topic gets where the call that makes it says nothing; its ``status`` means nothing."""
    tls_port: int = 8124
    """Kept and shown only, as the next two."""
    region_id: int = 0
    group_id: int = 0
    stamp: Stamp = dataclasses.field(
        default_factory=lambda: Stamp(create_user=SYSTEM_USER, modify_user=SYSTEM_USER), compare=False
    )


class BrokerConfig:
    """The broker's record, kept in one JSON file; reading it takes no lock, changing it writes the file."""

    def __init__(self, path: Path, now_ms: Callable[[], int] = wall_ms) -> None:
        """Read the file; without one the broker is online, as the server itself sets it up.

        Raises:
            DataLossError: the file cannot be understood; it is left as it is.
        """
        self._now_ms = now_ms
        self._file = JsonFile[BrokerRecord | None](path, BrokerRecord(), _from_json, _to_json)

    @property
    def record(self) -> BrokerRecord | None:
        """The broker as it is configured now; None when an operator has deleted it."""
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
        """Change the record, on the disk first; ``anew`` forgets who made the old one."""
        with self._file.lock:
            old = None if anew or self.record is None else self.record.stamp
            stamp = next_stamp(old, by, date, self._now_ms())
            self._file.replace(dataclasses.replace(record, stamp=stamp))

    def delete(self) -> None:
        """Forget the record, on the disk first: the broker serves nobody until it is added again."""
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
