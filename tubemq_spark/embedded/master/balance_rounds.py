"""The rounds in which a master deals partitions out to the groups that it balances (TMaster.balance)."""

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
from tubemq_spark.embedded.master.groups import ConsumeType, Group, ResourceCheck, SuspensionStep
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.master.subscriptions import disabled_topics
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.infostrings import partition_ids

logger = logging.getLogger(__name__)

_PATIENCE_ROUNDS: Final = 10
"""Events that are not answered in so many rounds are given up ..."""
_BOUND_ROUNDS: Final = 2
"""A bound group gets its listed partitions in so many rounds at most; then all goes on as usual."""


class BalanceRounds:
    """Plans events for all groups; ``run_round`` is one round."""

    def __init__(self, state: MasterState, settings: EmbeddedSettings) -> None:
        """Take what the master's handlers share."""
        self._state = state
        # ... but no sooner than a silent client would be forgotten: rounds can be much shorter here than
        # TubeMQ's, while clients answer no faster than their heartbeats come.
        rounds = -(-settings.client_timeout_ms // settings.balance_period_ms)
        self._patience = max(_PATIENCE_ROUNDS, rounds)
        self._last_id = 0

    def run_round(self) -> None:
        """Balance every group that has carried out what it was told."""
        with self._state.lock:
            if self._state.standby.is_set():
                return
            self._last_id = max(self._last_id + 1, wall_ms())
            for group in self._state.members.groups.values():
                if not group.client_balanced and group.events.begin_round(self._patience):
                    self._balance(group)

    def _balance(self, group: Group) -> None:
        partitions = self._partitions(group)
        listed = group.listed() if _starts(group) else {}
        if listed:
            self._start(group, listed, partitions)
        elif self._has_resources(group):
            away = _suspended(group)
            wanted = spread(group.events.holdings(), partitions, away)
            group.events.plan(wanted, self._last_id)

    def _start(self, group: Group, listed: dict[TopicPartition, str], partitions: Partitions) -> None:
        """Give a bound group the partitions it named, once all its members are there."""
        present = group.events.holdings()
        if len(present) < group.terms.source_count or not present.keys() >= set(listed.values()):
            group.waited_rounds += 1
            return
        group.bound_rounds += 1
        group.events.plan(assign_named(listed, present, partitions), self._last_id)

    def _has_resources(self, group: Group) -> bool:
        """Whether a group has enough members for its brokers; once it had, it is not asked again."""
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
        """Return what a group may have now."""
        disabled = disabled_topics(self._state.controls, group.name, group.terms.topics)
        return frozenset(
            TopicPartition(topic, broker.id, number)
            for topic in group.terms.topics - disabled
            for broker, spec in self._state.brokers.deployments(topic)
            if broker.subscribes(spec)
            for number in partition_ids(spec.stores, spec.partitions)
        )


def _starts(group: Group) -> bool:
    """Whether a group is a bound one that has not started yet."""
    bound = group.terms.kind is ConsumeType.BOUND
    return bound and group.not_allocated and group.bound_rounds < _BOUND_ROUNDS


def _suspended(group: Group) -> frozenset[str]:
    """Return the members that get nothing in this round (ConsumeGroupInfo.getNeedBalanceNodes)."""
    away = set()
    for client_id, suspension in list(group.suspensions.items()):
        if suspension.step is SuspensionStep.OUT:
            suspension.rounds -= 1
            if suspension.rounds <= 0:
                del group.suspensions[client_id]
                continue
        away.add(client_id)
        suspension.step = SuspensionStep.OUT
        if suspension.returns_at_once:
            del group.suspensions[client_id]
    return frozenset(away)
