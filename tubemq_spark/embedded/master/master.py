"""The master of an embedded TubeMQ: its port, its periodic tasks, and the rounds that balance groups.

In a round the master assigns partitions to server-balanced groups (TMaster.balance).
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.dispatch import Dispatcher, RpcServer
from tubemq_spark.embedded.master.balancing import (
    DEFAULT_BROKERS_PER_CLIENT,
    Partitions,
    assign_named,
    members_needed,
    spread,
)
from tubemq_spark.embedded.master.groups import ConsumeType, Group, ResourceCheck
from tubemq_spark.embedded.master.handlers import (
    ClientBalanceHandlers,
    ProducerHandlers,
    ServerBalanceHandlers,
)
from tubemq_spark.embedded.master.state import MasterState, disabled_topics
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.listener import Answer
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import UNDEFINED, ServiceType
from tubemq_spark.protocol.packed_strings import partition_ids

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
        starting = (
            group.terms.kind is ConsumeType.BOUND
            and group.not_allocated
            and group.bound_rounds < _BOUND_ROUNDS
        )
        named = group.named_partitions() if starting else {}
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


class Master(RpcServer):
    """Serves one ``MasterState``."""

    def __init__(self, state: MasterState, host: str, port: int, settings: EmbeddedSettings) -> None:
        """Open the port (0: any free one)."""
        self.state = state
        operations = {
            **ProducerHandlers(state).operations,
            **ServerBalanceHandlers(state).operations,
            **ClientBalanceHandlers(state).operations,
        }
        self._dispatcher = Dispatcher(frozenset({ServiceType.MASTER}), operations)
        super().__init__("master", host, port, settings.tls)
        state.address = Endpoint(state.address.host, self.port)
        rounds = BalanceRounds(state, settings)
        self._scheduler.every(settings.scan_period_ms, self._expire_clients, "expiring clients")
        self._scheduler.every(settings.balance_period_ms, rounds.run_round, "balancing groups")

    def serve(self, requests: Sequence[rpc.Request]) -> Iterator[Answer]:
        """Answer the requests of one read in their order, each when it is asked for; it never raises."""
        return map(self._dispatcher.answer, requests)

    def _expire_clients(self) -> None:
        with self.state.lock:
            expired = self.state.members.expire()
        for client_id in expired:
            logger.info("client %s timed out", client_id)
