"""The rounds in which the master assigns partitions to server-balanced groups (TMaster.balance)."""

import logging
from typing import Final

from tubemq_spark.embedded.clock import wall_ms
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.master.assignment import (
    DEFAULT_BROKERS_PER_CLIENT,
    Partitions,
    assign_named,
    members_needed,
    spread,
)
from tubemq_spark.embedded.master.groups import ConsumeType, Group, ResourceCheck
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.master.subscriptions import disabled_topics
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.topic_strings import partition_ids

logger = logging.getLogger(__name__)

_PATIENCE_ROUNDS: Final = 10
"""Events that are not answered within this many rounds are abandoned ..."""
_BOUND_ROUNDS: Final = 2
"""A bound group gets the partitions it named in at most this many rounds; then it is like any group."""


class BalanceRounds:
    """Plans the events of all groups; ``run_round`` is one round."""

    def __init__(self, state: MasterState, settings: EmbeddedSettings) -> None:
        """Take what the master's handlers share."""
        self._state = state
        # ... but not before a silent client is forgotten: rounds can be much shorter here than in TubeMQ,
        # but clients do not send heartbeats any faster.
        rounds = -(-settings.client_timeout_ms // settings.balance_period_ms)
        self._patience = max(_PATIENCE_ROUNDS, rounds)
        self._last_id = 0

    def run_round(self) -> None:
        """Balance every group that has no event left to answer."""
        with self._state.lock:
            if self._state.standby.is_set():
                return
            self._last_id = max(self._last_id + 1, wall_ms())
            for group in self._state.members.groups.values():
                if not group.client_balanced and group.events.begin_round(self._patience):
                    self._balance(group)

    def _balance(self, group: Group) -> None:
        partitions = self._partitions(group)
        named = group.named_partitions() if _is_starting(group) else {}
        if named:
            self._start(group, named, partitions)
        elif self._has_resources(group):
            group.events.plan(spread(group.events.holdings(), partitions), self._last_id)

    def _start(self, group: Group, named: dict[TopicPartition, str], partitions: Partitions) -> None:
        """Give a bound group the partitions it named, once all its members are present."""
        present = group.events.holdings()
        if len(present) < group.terms.source_count or not present.keys() >= set(named.values()):
            group.waited_rounds += 1
            return
        group.bound_rounds += 1
        group.events.plan(assign_named(named, present, partitions), self._last_id)

    def _has_resources(self, group: Group) -> bool:
        """Whether a group has enough members for its brokers; once it has had, that is not checked again."""
        passed = group.resources is not None and group.resources.members_needed is None
        if group.terms.kind is not ConsumeType.NORMAL or passed:
            return True
        control = self._state.controls.group(group.name)
        own_rate = control.allowed_broker_client_rate if control else 0
        count = len(group.members)
        brokers = self._state.brokers.most_subscribed(group.terms.topics)
        needed = members_needed(brokers, count, own_rate if own_rate > 0 else DEFAULT_BROKERS_PER_CLIENT)
        group.resources = ResourceCheck(own_rate if own_rate > 0 else UNDEFINED, brokers // count, needed)
        return needed is None

    def _partitions(self, group: Group) -> Partitions:
        """Return the partitions that a group may have at present."""
        disabled = disabled_topics(self._state.controls, group.name, group.terms.topics)
        return frozenset(
            TopicPartition(topic, broker.id, number)
            for topic in group.terms.topics - disabled
            for broker, spec in self._state.brokers.deployments(topic)
            if broker.subscribes(spec)
            for number in partition_ids(spec.stores, spec.partitions)
        )


def _is_starting(group: Group) -> bool:
    """Whether a group is a bound group that has not started yet."""
    bound = group.terms.kind is ConsumeType.BOUND
    return bound and group.not_allocated and group.bound_rounds < _BOUND_ROUNDS
