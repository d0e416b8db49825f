"""What the handlers of a master share: the brokers as it knows them, and what consumers may subscribe to.

Real brokers send heartbeats. Here the server that runs the brokers reports what happens to each
(``Presence``), and the master concludes what it would conclude from heartbeats (DefBrokerRunManager).
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from tubemq_spark.embedded.authentication import Authentication, VisitTokens
from tubemq_spark.embedded.config.catalog import Catalog, TopicSpec
from tubemq_spark.embedded.config.controls import BrokerConfig, Controls, ManageStatus
from tubemq_spark.embedded.dispatch import RefusedError, StandbyError, trimmed
from tubemq_spark.embedded.master.groups import Members, java_set
from tubemq_spark.embedded.scheduler import monotonic_ms, wall_ms
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import MAX_TOPICS
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import BrokerInfo, format_broker_info
from tubemq_spark.protocol.pb import common_pb2


class Presence:
    """Whether the master lists a broker: until it is silent for too long, and some time after it is back.

    Safe to use from any thread: each change is one assignment, made only by the broker's owner.
    """

    def __init__(self, timeout_ms: int, startup_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Start as listed: a broker that exists before the master starts is published at once."""
        self._timeout_ms = timeout_ms
        self._startup_ms = startup_ms
        self._now_ms = now_ms
        self._unlisted_at_ms: int | None = None
        self._listed_from_ms = now_ms()

    @property
    def timed_out(self) -> bool:
        """Whether the master has given up on the broker."""
        unlisted_at_ms = self._unlisted_at_ms
        return unlisted_at_ms is not None and self._now_ms() >= unlisted_at_ms

    @property
    def listed(self) -> bool:
        """Whether clients are told about the broker's topics."""
        return not self.timed_out and self._now_ms() >= self._listed_from_ms

    def mark_silent(self) -> None:
        """Note that the broker has just fallen silent."""
        if self._unlisted_at_ms is None:
            self._unlisted_at_ms = self._now_ms() + self._timeout_ms

    def mark_left(self) -> None:
        """Note that the broker has signed off."""
        self._unlisted_at_ms = self._now_ms()

    def mark_joined(self) -> None:
        """Note that the broker is new in a running cluster."""
        self._listed_from_ms = self._now_ms() + self._startup_ms

    def mark_back(self) -> None:
        """Note that the broker is back; if it had timed out, it has to be published again."""
        if self.timed_out:
            self.mark_joined()
        self._unlisted_at_ms = None


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerEntry:
    """A broker of the cluster, whether it runs or not."""

    id: int
    endpoint: Endpoint
    """Where clients reach it."""
    web_port: int
    catalog: Catalog
    """The topics deployed on it."""
    config: BrokerConfig
    presence: Presence

    def __str__(self) -> str:
        """Return ``id:host:port``, as the master tells clients."""
        return format_broker_info(BrokerInfo(self.id, self.endpoint), default_port=None)

    @property
    def registered(self) -> bool:
        """Whether the broker is configured to take part, and is alive as far as the master knows."""
        return self.config.record.status is not ManageStatus.DRAFT and not self.presence.timed_out

    @property
    def accept_publish(self) -> bool:
        """Whether producers are told about the broker."""
        return self.presence.listed and self.config.record.status.accept_publish

    @property
    def accept_subscribe(self) -> bool:
        """Whether consumers may read the broker's partitions."""
        return self.presence.listed and self.config.record.status.accept_subscribe

    def publishes(self, spec: TopicSpec) -> bool:
        """Whether producers are told about a topic on this broker."""
        return self.accept_publish and spec.publishable

    def subscribes(self, spec: TopicSpec) -> bool:
        """Whether consumers may read a topic's partitions on this broker."""
        return self.accept_subscribe and spec.subscribable


class BrokerList:
    """All brokers, in the order of their ids; reading takes no lock. None is ever removed."""

    def __init__(self, brokers: Iterable[BrokerEntry]) -> None:
        """Start with some brokers, at least one."""
        self._by_id = {broker.id: broker for broker in brokers}
        self._list_id = wall_ms()
        self._adding = threading.Lock()

    def __iter__(self) -> Iterator[BrokerEntry]:
        return iter(self._by_id.values())

    @property
    def list_id(self) -> int:
        """The id of the list of brokers: clients that know a different one get the list."""
        return self._list_id

    def get(self, broker_id: int) -> BrokerEntry | None:
        """Return a broker by its id."""
        return self._by_id.get(broker_id)

    def add(self, broker: BrokerEntry) -> None:
        """Add a broker, whose id is above all others."""
        with self._adding:
            self._by_id = {**self._by_id, broker.id: broker}
            self._list_id = max(self._list_id + 1, wall_ms())

    def infos(self) -> list[str]:
        """Return ``id:host:port`` of each broker, reachable or not."""
        return [str(broker) for broker in self]

    def deployments(self, topic: str) -> list[tuple[BrokerEntry, TopicSpec]]:
        """Return the brokers that a topic is deployed on, and its specification there."""
        specs = ((broker, broker.catalog.get(topic)) for broker in self)
        return [(broker, spec) for broker, spec in specs if spec is not None]

    def most_subscribed(self, topics: Iterable[str]) -> int:
        """Return the highest number of brokers on which one of some topics can be read."""
        counts = (
            sum(broker.subscribes(spec) for broker, spec in self.deployments(topic)) for topic in topics
        )
        return max(counts, default=0)


@dataclasses.dataclass(slots=True)
class MasterState:
    """The cluster as its master knows it; ``lock`` guards ``members`` and all groups in it."""

    brokers: BrokerList
    controls: Controls
    tokens: VisitTokens
    members: Members
    authentication: Authentication
    address: Endpoint
    """Where clients reach the master; the master sets the port when it has opened it."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    standby: threading.Event = dataclasses.field(default_factory=threading.Event)
    """While this is set, another master leads, and clients are sent to it."""

    _layout_id: int = 0

    def check_leads(self, client_id: str) -> None:
        """Send a client to another master if this one does not lead (TMaster.checkNodeStatus)."""
        if self.standby.is_set():
            raise StandbyError(f"{self.address} is not master now. the connecting client id is {client_id}")

    def brokers_newer_than(self, list_id: int) -> list[str]:
        """Return the list of brokers for a client whose list has this id; empty if that is up to date."""
        return [] if list_id == self.brokers.list_id else self.brokers.infos()

    def next_layout_id(self) -> int:
        """Return an id for a new layout of a group; hold ``lock``."""
        self._layout_id = max(self._layout_id + 1, wall_ms())
        return self._layout_id

    def authorized(self, proof: str) -> common_pb2.MasterAuthorizedInfo:
        """Return what clients show to brokers: the visit token, and their proof of identity, if any."""
        info = common_pb2.MasterAuthorizedInfo(visitAuthorizedToken=self.tokens.current)
        if proof:
            info.authAuthorizedToken = proof
        return info


Filters = Mapping[str, frozenset[str]]


def deployed_topics(state: MasterState, names: Iterable[str]) -> frozenset[str]:
    """Return the topics of a request (PBParameterUtils.checkConsumerTopicList).

    None or too many are refused with 400, one that is not deployed with 431.
    """
    names = [trimmed("topicName", name) for name in names]
    topics = frozenset(names) - {""}
    if not names:
        raise RefusedError(ErrCode.BAD_REQUEST, "Request miss necessary subscribed topicList data!")
    if not topics:
        raise RefusedError(ErrCode.BAD_REQUEST, "Request subscribed topicList data must not Blank!")
    if len(topics) > MAX_TOPICS:
        text = f"Subscribed topicList size over max value, required max count is {MAX_TOPICS}"
        raise RefusedError(ErrCode.BAD_REQUEST, text)
    if missing := [topic for topic in topics if not state.brokers.deployments(topic)]:
        text = f"Requested topic [{java_set(missing)}] not deployed!"
        raise RefusedError(ErrCode.TOPIC_NOT_DEPLOYED, text)
    return topics


def filters_of(conditions: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return message types by topic (DataConverterUtil.convertTopicConditions)."""
    filters: dict[str, frozenset[str]] = {}
    for text in conditions:
        condition = packed_strings.parse_topic_condition(text)
        topic = trimmed("topicCondition", condition.topic)
        if condition.message_types:
            filters[topic] = filters.get(topic, frozenset()) | frozenset(condition.message_types)
    return filters


def check_authorized(
    controls: Controls, client_id: str, group: str, topics: frozenset[str], filters: Filters
) -> None:
    """Check a group's rights (DefaultMetaDataService.isConsumeTargetAuthorized).

    A filter for a topic that is not subscribed is refused with 400, a topic that the group may not read with
    450, and what it may not filter for with 455.
    """
    if foreign := filters.keys() - topics:
        text = f"Filter's Topic not subscribed :{java_set(foreign)}"
        raise RefusedError(ErrCode.BAD_REQUEST, text)
    guarded = sorted(topic for topic in topics if controls.topic(topic).authorize)
    rights = {topic: controls.consume(group, topic) for topic in guarded}
    if refused := [topic for topic, right in rights.items() if right is None or not right.consume]:
        text = f"[unAuthorized Group] {client_id}'s consumerGroup not authorized by administrator, "
        raise RefusedError(ErrCode.CONSUME_GROUP_FORBIDDEN, f"{text}unAuthorizedTopics: {java_set(refused)}")
    for topic, right in rights.items():
        if right is not None and right.filter:
            _check_filter(f"{client_id} : {group}", topic, filters.get(topic), right.filter_conditions)


def disabled_topics(controls: Controls, group: str, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics that a group must not read at present, even if it could register for them."""
    rights = ((topic, controls.consume(group, topic)) for topic in topics)
    return frozenset(topic for topic, right in rights if right is not None and not right.consume)


def _check_filter(who: str, topic: str, conditions: frozenset[str] | None, allowed: tuple[str, ...]) -> None:
    text = f"[Restricted Group] {who}"
    if not allowed:
        what = f"{text} not allowed to consume any data of topic {topic}"
    elif not conditions:
        what = f"{text} must set the filter conditions of topic {topic}"
    elif foreign := conditions - set(allowed):
        what = f"{text} unAuthorized filter conditions {{{topic}={java_set(foreign)}}}"
    else:
        return
    raise RefusedError(ErrCode.CONSUME_CONTENT_FORBIDDEN, what)
