"""The engine of consumers at brokers: what each partition is doing, who waits for batches, who fetches.

The partitions, and what each is doing, stand in ``state`` and its cache. ``line`` has those that wait for
batches and the fetches that are made for them, ``fetching`` has the rules of a fetch, a confirmation and a
move. How partitions come and go is a subclass's: the master gives them, or the user names them.
"""

import asyncio
from collections.abc import Callable

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.fetching import Fetching
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.line import FetchLine
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer.user_code import UserCode
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumedPosition, parse_context
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge


class EngineCore(ConsumerCore):
    """A consumer that asks brokers itself."""

    state: ConsumerState

    def __init__(
        self,
        config: ClientConfig,
        subscription: Subscription,
        user_code: UserCode,
        on_loss: LossPolicy = fail_on_loss,
    ) -> None:
        """Reach no server; may be called in any thread."""
        self.control = FlowControl()
        state = ConsumerState(config, subscription, self.control)
        super().__init__(state, state.cache, user_code, on_loss)
        self.fetching = Fetching(self.state)
        self.line = FetchLine(self.fetching, self.tasks)

    async def _leave(self) -> None:
        await self.tasks.cancel()
        await self.state.releases.ended()
        await super()._leave()

    async def _fetch(self, timeout_s: float | None, *, patient: bool) -> Batch | None:
        return await self.line.fetch(timeout_s, patient=patient)

    def is_out(self, batch: Batch) -> bool:
        """Return whether a batch that was handed out may still be confirmed."""
        return self.state.cache.is_current(parse_context(batch.context))

    def put_back(self, batch: Batch) -> None:
        """Take a batch back that did not reach its user; it comes again."""
        self.fetching.take_back(batch)

    async def _confirm(self, context: str, *, consumed: bool) -> Confirmed:
        return await self.fetching.end_batch(context, consumed=consumed)

    async def _seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:
        return await self.fetching.seek(partition, target)

    # For gateways, which pass on what they fetch, and use nothing else of an engine.

    def relay(
        self, rest_at_end: Callable[[TopicPartition], int], on_partitions: Callable[[], object]
    ) -> None:
        """Fetch for others from now on: batches have columns, and fetches end when there is nothing to fetch.

        ``rest_at_end`` returns how many ms a partition rests in which nothing was found. ``on_partitions`` is
        called when a partition has come or gone, and must return at once.
        """
        self.fetching.as_columns, self.fetching.rest_at_end = True, rest_at_end
        self.line.has_nothing = lambda: self.has_nothing
        self.state.on_partitions = on_partitions

    def begin_to_confirm(self, context: str, *, consumed: bool) -> "asyncio.Task[Confirmed]":
        """Confirm a batch or roll it back in a task of the consumer, which is cancelled when that closes."""
        self.state.check_open()
        confirming = self.fetching.end_batch(context, consumed=consumed)
        return self.tasks.start(confirming, f"confirming {context}")

    @property
    def is_open(self) -> bool:
        """Whether the consumer is open, and not closed yet."""
        return self.state.life is Life.OPEN

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to fetch until the user connects a partition."""
        return False

    @property
    def waiting_fetches(self) -> int:
        """How many fetches wait for messages."""
        return self.line.waiting

    def release_fetches(self) -> None:
        """Answer all fetches that wait, with nothing."""
        self.line.release()

    def look_soon(self, partition: TopicPartition) -> None:
        """Fetch a partition soon, if it rests at its end."""
        if self.state.cache.hasten(partition):
            self.state.changes.note()
