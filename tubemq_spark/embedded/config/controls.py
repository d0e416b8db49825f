"""What operators have set, for the cluster, its groups and its topics, and for each broker; in JSON files."""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from tubemq_spark.embedded.config.catalog import SYSTEM_USER, Stamp, TopicSpec, next_stamp, spec_from_json
from tubemq_spark.embedded.files import JsonFile
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.protocol.constants import UNDEFINED


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


NO_RULES: Final = "[]"
"""Flow control rules without any rule, as TubeMQ stores them."""
_MIB: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSetting:
    """What applies unless a topic or a group says otherwise (ClusterSettingEntity)."""

    max_message_mb: int = 1
    """Size limit of a message in MiB: 1 to 20."""
    query_priority: int = 301
    """The query priority of consumers that do not state one: 101 to 303."""
    flow_control: bool = False
    flow_rules: str = NO_RULES
    """The rules as JSON; brokers and clients apply them while ``flow_control`` is on."""
    broker_port: int = 8123
    """The default for brokers; stored and shown only, like all below."""
    broker_tls_port: int = 8124
    broker_web_port: int = 8081
    properties: TopicSpec = dataclasses.field(default_factory=TopicSpec)
    stamp: Stamp = dataclasses.field(default_factory=Stamp, compare=False)

    @property
    def max_message_bytes(self) -> int:
        """The size limit of a message in bytes."""
        return self.max_message_mb * _MIB

    @property
    def flow_id(self) -> int:
        """The id of the rules in force; -2 if there are none."""
        return self.stamp.serial_id if self.flow_control else UNDEFINED


@dataclasses.dataclass(frozen=True, slots=True)
class GroupControl:
    """Resource control of a group (GroupResCtrlEntity)."""

    res_check: bool = False
    """Stored and shown only: TubeMQ applies the rate whether this is on or not (DefaultLoadBalancer)."""
    allowed_broker_client_rate: int = 0
    """Maximum number of brokers per member; 0: TubeMQ's default."""
    query_priority: int = 301
    """The query priority of the members, who are told only while ``flow_control`` is on."""
    flow_control: bool = False
    flow_rules: str = NO_RULES
    stamp: Stamp = dataclasses.field(default_factory=Stamp, compare=False)

    @property
    def flow_id(self) -> int:
        """The id of the rules in force; -2 if there are none."""
        return self.stamp.serial_id if self.flow_control else UNDEFINED


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumeControl:
    """What a group may do with a topic (GroupConsumeCtrlEntity)."""

    consume: bool = True
    disable_reason: str = ""
    filter: bool = False
    """Whether the group must filter the topic, by ``filter_conditions`` only."""
    filter_conditions: tuple[str, ...] = ()
    stamp: Stamp = dataclasses.field(default_factory=Stamp, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class TopicControl:
    """Whether only groups with a ``ConsumeControl`` may read a topic (TopicCtrlEntity)."""

    authorize: bool = False
    stamp: Stamp = dataclasses.field(default_factory=Stamp, compare=False)


GroupAndTopic = tuple[str, str]
_Key = TypeVar("_Key", str, GroupAndTopic)
_Control = TypeVar("_Control", GroupControl, ConsumeControl, TopicControl)


@dataclasses.dataclass(frozen=True, slots=True)
class _Records:
    """All records at one moment."""

    cluster: ClusterSetting | None = None
    groups: Mapping[str, GroupControl] = dataclasses.field(default_factory=dict)
    consumes: Mapping[GroupAndTopic, ConsumeControl] = dataclasses.field(default_factory=dict)
    topics: Mapping[str, TopicControl] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Make the value from what ``to_json`` returned."""
        cluster = content["cluster"]
        return cls(
            None if cluster is None else _cluster_setting(cluster),
            {name: GroupControl(**_stamped(fields)) for name, fields in content["groups"].items()},
            {(item["group"], item["topic"]): _consume_control(item) for item in content["consumes"]},
            {name: TopicControl(**_stamped(fields)) for name, fields in content["topics"].items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the contents of the file."""
        return {
            "cluster": None if self.cluster is None else dataclasses.asdict(self.cluster),
            "groups": {name: dataclasses.asdict(control) for name, control in self.groups.items()},
            "consumes": [
                {"group": group, "topic": topic, **dataclasses.asdict(control)}
                for (group, topic), control in self.consumes.items()
            ],
            "topics": {name: dataclasses.asdict(control) for name, control in self.topics.items()},
        }


class Controls:
    """The records; reading takes no lock, a change writes the file.

    Setters replace the stamp of the record that they are given; ``by`` is the user, ``date`` the time as
    ``yyyyMMddHHmmss`` (None: now).
    """

    def __init__(
        self,
        path: Path,
        default: ClusterSetting | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Read the file, if there is one; ``default`` applies until the cluster's setting is set."""
        self._default = default or ClusterSetting()
        self._now_ms = now_ms
        self._file = JsonFile(path, _Records(), _Records.from_json, _Records.to_json)

    @property
    def cluster(self) -> ClusterSetting:
        """The cluster's setting."""
        return self._records.cluster or self._default

    def group(self, name: str) -> GroupControl | None:
        """Return a group's resource control, if it has one."""
        return self._records.groups.get(name)

    def groups(self) -> Mapping[str, GroupControl]:
        """Return the resource controls of all groups, in the order of their names."""
        return dict(sorted(self._records.groups.items()))

    def consume(self, group: str, topic: str) -> ConsumeControl | None:
        """Return what a group may do with a topic, if that was set."""
        return self._records.consumes.get((group, topic))

    def consumes(self) -> Mapping[GroupAndTopic, ConsumeControl]:
        """Return all consume controls, sorted by group and topic."""
        return dict(sorted(self._records.consumes.items()))

    def topic(self, name: str) -> TopicControl:
        """Return a topic's control; a topic without one is open to every group."""
        return self._records.topics.get(name) or TopicControl()

    def topics(self) -> Mapping[str, TopicControl]:
        """Return the controls of all topics that have one, in the order of their names."""
        return dict(sorted(self._records.topics.items()))

    def set_cluster(self, setting: ClusterSetting, by: str, date: str | None = None) -> None:
        """Replace the cluster's setting."""
        with self._file.lock:
            old = self._records.cluster
            stamp = next_stamp(None if old is None else old.stamp, by, date, self._now_ms())
            setting = dataclasses.replace(setting, stamp=stamp)
            self._file.replace(dataclasses.replace(self._records, cluster=setting))

    def set_group(self, name: str, control: GroupControl, by: str, date: str | None = None) -> None:
        """Add or replace a group's resource control."""
        self._set("groups", name, control, by, date)

    def set_consume(
        self, group: str, topic: str, control: ConsumeControl, by: str, date: str | None = None
    ) -> None:
        """Add or replace what a group may do with a topic."""
        self._set("consumes", (group, topic), control, by, date)

    def set_topic(self, name: str, control: TopicControl, by: str, date: str | None = None) -> None:
        """Add or replace a topic's control."""
        self._set("topics", name, control, by, date)

    def _set(
        self,
        table: Literal["groups", "consumes", "topics"],
        key: _Key,
        control: _Control,
        by: str,
        date: str | None,
    ) -> None:
        """Write one record of a table to the file, with a new stamp."""
        with self._file.lock:
            controls: Mapping[_Key, _Control] = getattr(self._records, table)
            old = controls.get(key)
            stamp = next_stamp(None if old is None else old.stamp, by, date, self._now_ms())
            changed: dict[str, Any] = {table: {**controls, key: dataclasses.replace(control, stamp=stamp)}}
            self._file.replace(dataclasses.replace(self._records, **changed))

    @property
    def _records(self) -> _Records:
        return self._file.value


def _stamped(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**fields, "stamp": Stamp(**fields["stamp"])}


def _cluster_setting(fields: Mapping[str, Any]) -> ClusterSetting:
    return ClusterSetting(**{**_stamped(fields), "properties": spec_from_json(fields["properties"])})


def _consume_control(item: Mapping[str, Any]) -> ConsumeControl:
    fields = {name: value for name, value in item.items() if name not in ("group", "topic")}
    return ConsumeControl(**{**_stamped(fields), "filter_conditions": tuple(fields["filter_conditions"])})
