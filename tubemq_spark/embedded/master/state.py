"""What the handlers of a master share: the cluster, and what consumers may subscribe to."""

import dataclasses
import threading
from collections.abc import Iterable, Mapping

from tubemq_spark.embedded.authentication import Authentication, VisitTokens
from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.dispatch import RefusedError, StandbyError, trimmed
from tubemq_spark.embedded.master.brokers import Brokers
from tubemq_spark.embedded.master.groups import Members, java_set
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import MAX_TOPICS
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import common_pb2


@dataclasses.dataclass(slots=True)
class MasterState:
    """The cluster as its master knows it; ``lock`` guards ``members`` and all groups in it."""

    brokers: Brokers
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

    def brokers_for(self, known_id: int) -> list[str]:
        """Return the list of brokers for a client; empty if it already has it."""
        return [] if known_id == self.brokers.list_id else self.brokers.infos()

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
