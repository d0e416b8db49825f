"""What a ``TubeMQClient`` does through gateways; it imports this only where gateways are named."""

import dataclasses
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Any

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.callbacks import OnChange
from tubemq_spark.client.consumer.user_code import UserCode
from tubemq_spark.client.remote.access import check_access
from tubemq_spark.client.remote.consumers import RemoteAssignedCore, RemoteGroupCore
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.pipeline import GatewayPipeline
from tubemq_spark.client.remote.queries import Queries
from tubemq_spark.client.remote.ranges import read_remote_range, read_remote_range_in_thread
from tubemq_spark.client.subscription import Node, Subscription
from tubemq_spark.model import Endpoint, RangeRequest, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net import loop
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import LossPolicy, LossRecord
from tubemq_spark.protocol.fetch_columns import FetchedBatch


class RemoteClient:
    """The gateways of one client."""

    def __init__(self, config: ClientConfig, addresses: tuple[Endpoint, ...], token: str | None) -> None:
        """Reach no gateway.

        Args:
            config: the settings.
            addresses: where gateways are.
            token: what shows them who calls.

        Raises:
            OptionError: a setting makes no sense through gateways, or gRPC is not installed.
        """
        check_access(config, token)
        self.addresses = addresses
        self.token = token
        self._gateways = Gateways(addresses, config, token)
        self.queries = Queries(self._gateways)
        """Questions for coroutines of any event loop."""
        self._closed = False
        self._of_settings = {config: self._gateways}
        self._of_others: weakref.WeakSet[Gateways] = weakref.WeakSet()

    def close(self) -> None:
        """Close all sessions and connections; what uses them is refused from now on."""
        self._closed = True
        for gateways in (*self._of_others, self._gateways):
            gateways.refuse_calls()
            gateways.close()

    def pipeline(self, config: ClientConfig, name: str) -> GatewayPipeline:
        """Return the pipeline of a producer with these settings.

        Raises:
            OptionError: a setting makes no sense through gateways.
        """
        if config == self._gateways.config:
            return GatewayPipeline(self._gateways, name, per_message=True)
        check_access(config, self.token)
        return GatewayPipeline(self.own_gateways(config), name, per_message=True, own=True)

    def gateways_of(self, config: ClientConfig) -> Gateways:
        """Return gateways to read with some settings, which have one session until the client is closed.

        Raises:
            OptionError: a setting makes no sense through gateways.
        """
        check_access(config, self.token)
        if config not in self._of_settings:
            self._of_settings[config] = self.own_gateways(config)
        return self._of_settings[config]

    def own_gateways(self, config: ClientConfig, kind: str = "Pull") -> Gateways:
        """Return gateways with a session of their own."""
        gateways = Gateways(self.addresses, config, self.token, kind=kind)
        self._of_others.add(gateways)
        if self._closed:
            gateways.refuse_calls()
        return gateways

    def layout(self, topics: Iterable[str]) -> TopicsLayout:
        """Return where the partitions of topics are."""
        return loop.run(self.queries.layout(topics))

    def bounds(self, stores: Iterable[StoreId]) -> StoreBounds:
        """Return where stores begin and end."""
        return loop.run(self.queries.bounds(list(stores)))

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions to which a topic can be published now."""
        return loop.run(self.queries.publishable(topic))

    def read_range(
        self, request: RangeRequest, on_loss: LossPolicy, wait: Wait
    ) -> Generator[FetchedBatch, Any, None]:
        """Yield the records of a range, for a thread."""
        return read_remote_range_in_thread(self._gateways, request, on_loss, wait)

    def range_items(self, request: RangeRequest) -> AsyncGenerator[FetchedBatch | LossRecord, None]:
        """Yield the records of a range, and losses, for coroutines of any event loop."""
        return read_remote_range(self._gateways, request)

    def group_consumer(
        self,
        config: ClientConfig,
        subscription: Subscription,
        user_code: UserCode,
        *,
        on_loss: LossPolicy,
        on_assigned: OnChange | None,
        on_revoked: OnChange | None,
    ) -> RemoteGroupCore:
        """Return a new member of a group."""
        return RemoteGroupCore(
            config,
            self.own_gateways(config, "Balance"),
            subscription,
            user_code,
            on_loss=on_loss,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            queries=self._other_queries(config),
        )

    def assigned_consumer(
        self,
        config: ClientConfig,
        subscription: Subscription,
        user_code: UserCode,
        *,
        node: Node | None,
        on_loss: LossPolicy,
    ) -> RemoteAssignedCore:
        """Return a new consumer of partitions that its user names."""
        gateways = self.own_gateways(config, "Balance")
        # A question without a number would not fit the group's members.
        queries = None if node is None else self._other_queries(config)
        return RemoteAssignedCore(
            config, gateways, subscription, user_code, node=node, on_loss=on_loss, queries=queries
        )

    def _other_queries(self, config: ClientConfig) -> Queries:
        """Return questions under another group than that of the consumer, whose members they need not fit."""
        probing = dataclasses.replace(config, group=config.probe_groups[0], reader_groups=())
        return Queries(self.own_gateways(probing))
