"""The way of a producer's messages straight to the brokers."""

import asyncio
import functools

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import ProducerSession, PublishRoutes
from tubemq_spark.client.producer.links import BrokerLink, BrokerLinks, answers
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import Place, PublishedTopic, RunUserCode
from tubemq_spark.client.producer.pipeline import Obstacle, Pipeline, Question
from tubemq_spark.client.producer.routing import Destinations, Routing
from tubemq_spark.client.producer.runs import Destination, Run, runs
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.byte_connection import LookUp, look_up
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.send_stream import SendStreams
from tubemq_spark.receipts import Receipt, summarise


class BrokerPipeline(Pipeline):
    """Accepts messages, chooses their partitions, and has its window send them."""

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        name: str = "",
        *,
        detailed: bool,
        run_user_code: RunUserCode,
        most: tuple[int, int] | None = None,
        look_up: LookUp = look_up,
    ) -> None:
        """Reach no server; may be called in any thread.

        ``most`` are the messages and bytes under way for all callers of ``accept`` together, of which the
        bounds of ``config`` are one caller's; None: they are those of all.
        """
        self.config = config
        self._session = ProducerSession(config, connections)
        self.log = SendLog(name or f"producer {self.client_id}")
        self._links = BrokerLinks(
            config.rpc_timeout_ms,
            detailed=detailed,
            probe=functools.partial(answers, config, self.client_id, look_up=look_up),
        )
        self._destinations = Destinations(
            self._session, self._links, config.partitioner, keep_order=config.keep_order
        )
        self._routing = Routing(config, connections, self._session, self._destinations, self.log)
        streams = SendStreams(config.connect_timeout_ms, config.tls, look_up)
        self._window = SendWindow(config, self._destinations, self._links, streams, self.log, run_user_code)
        self._window.on_change = self._tell_change
        self.on_change = lambda: None
        self._most = most
        self._room_lock = asyncio.Lock()
        """Callers of ``accept`` stand in line for it while the window is full."""

    @property
    def client_id(self) -> str:
        """The name under which servers know the producer."""
        return self._session.client_id

    @property
    def error(self) -> TubeMQError | None:
        """The first error that concerns all messages."""
        return self._window.error

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages have not ended."""
        return self._window.unacknowledged

    @property
    def full(self) -> frozenset[int]:
        """The ids of brokers whose shares are full."""
        return self._window.full

    def place_now(self, topic: str, partition: tuple[int, int] | None) -> Place | None:
        """Return where messages go, as far as that is known; None: a master must be asked."""
        return self._routing.place_now(topic, partition)

    async def place(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go; ask masters if that is not known, and wait up to ``delivery_timeout_ms``."""
        self.refuse_if_ended()
        return await self._routing.place(topic, partition)

    async def place_once(self, topic: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go as ``place`` does, but ask only once: a refusal may be over soon."""
        self.refuse_if_ended()
        return await self._routing.place_once(topic, partition)

    async def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask a master to which partitions a topic can be published now."""
        self.refuse_if_ended()
        return await self._routing.publishable(topic)

    async def accept_routed(self, batch: OutgoingBatch, first: int, stop: int) -> tuple[int, Obstacle | None]:
        """Accept messages up to the first that cannot be routed; return the row behind, and why, if so."""
        async with self._room_lock:
            after = min(stop, first + await self._window.room(batch.ends, first))
            return self._submit(batch, first, after)

    async def flush(self) -> None:
        """Wait until every accepted message has an outcome."""
        await self._window.flush()

    def routes(self, topic: str) -> PublishRoutes:
        """Return the routes of a topic as of the last heartbeat."""
        return self._session.routes(topic)

    def give_up(self, *batches: OutgoingBatch) -> None:
        """Fail those messages of some batches that are open, now."""
        for batch in batches:
            batch.give_up_at = float("-inf")
        self._window.give_up_soon()

    def break_off(self, error: BaseException) -> None:
        """Fail for good, unless the pipeline has failed before."""
        self._window.break_off(error)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far, in the partitions' order."""
        return self._destinations.receipts()

    def statistics(self, room_wait_s: float = 0.0) -> ProducerStatistics:
        """Return what was sent and answered so far; ``room_wait_s`` adds to the wait for room."""
        room_wait_s += self._window.room_wait_s
        return ProducerStatistics(self._links.statistics(), room_wait_s, self.log.elapsed_s)

    def begin(self, name: str = "") -> None:
        """Begin a piece of work under a name, with new counts; all messages have ended."""
        self.log.begin(name or f"producer {self.client_id}")
        self._window.forget_counts()
        self._destinations.forget_receipts()

    async def close(self, room_wait_s: float = 0.0) -> None:
        """Leave the master and close the connections; open messages are reported as abandoned."""
        closed = ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.unacknowledged)
        self._window.break_off(closed, cause="the producer was closed")
        try:
            await self._routing.close()
        finally:
            await self._window.close()
        if receipts := self.receipts():
            self.log.summary(f"{summarise(receipts)}; {self.statistics(room_wait_s)}")

    def abandon(self, error: ProduceError) -> None:
        """Drop every connection without closing it for another process that shares it; fail for good."""
        self._window.abandon(error)

    def _tell_change(self) -> None:
        self.on_change()

    async def _overcome(self, obstacle: Obstacle, refused: dict[Question, TubeMQError]) -> TubeMQError | None:
        if isinstance(obstacle, BrokerLink):
            await self._window.other_shares()
        return await super()._overcome(obstacle, refused)

    def _count_callers(self, change: int) -> None:
        """Count tasks inside ``accept``: the window is as wide as those of all of them, up to a limit."""
        super()._count_callers(change)
        if self._most is not None:
            callers = max(1, self.callers)
            messages, size = self._most
            self._window.widen(
                min(self.config.max_in_flight * callers, messages),
                min(self.config.max_in_flight_bytes * callers, size),
            )

    def _submit(self, batch: OutgoingBatch, first: int, after: int) -> tuple[int, Obstacle | None]:
        """Send messages up to the first that cannot be routed; return its row, and why."""
        topic = self._publishable_topic(batch, first)
        if (
            topic is not None
            and batch.is_round_robin
            and batch.destinations is None
            and not batch.refused
            and topic.custom is None
            and batch.longest <= topic.max_message_bytes
        ):
            return self._submit_round_robin(topic, batch, first, after)
        destinations: list[Destination] = []
        obstacle: Obstacle | None = None
        for row in range(first, after):
            routed = self._route(batch, row)
            if not isinstance(routed, Destination):
                obstacle = routed
                break
            destinations.append(routed)
        if destinations:
            self._window.submit(runs(batch, first, destinations))
        return first + len(destinations), obstacle

    def _submit_round_robin(
        self, topic: PublishedTopic, batch: OutgoingBatch, first: int, after: int
    ) -> tuple[int, Obstacle | None]:
        accepted: list[Run] = []
        obstacle: Obstacle | None = None
        while first < after:
            destination, count = topic.choose_run(after - first)
            if destination.link.full:
                obstacle = destination.link
                break
            accepted.append(Run(batch, range(first, first + count), (destination,)))
            first += count
        if accepted:
            self._window.submit(accepted)
        return first, obstacle

    def _route(self, batch: OutgoingBatch, row: int) -> Destination | Obstacle:
        """Return where a message goes, or why it cannot be routed now."""
        if row in batch.refused:
            return batch.refused[row]
        topic = self._publishable_topic(batch, row)
        if topic is None:
            return Question(batch.topic(row), None)
        named = batch.partition(row)
        size = batch.size(row)
        if size > topic.max_message_bytes and (excess := topic.excess(batch.prefix(row), size)):
            return topic.too_long(excess, batch.describe(row, self.log.sender))
        destination = None if batch.destinations is None else batch.destinations[row]
        if destination is None:
            if named is not None:
                destination = self._destinations.named(topic, *named)
            else:
                try:
                    destination = topic.choose(
                        batch.key(row), b"" if topic.custom is None else batch.value(row)
                    )
                except Exception as error:  # noqa: BLE001 (it concerns this message alone)
                    return unplaceable(error)
        if destination is None:
            return Question(topic.name, named)
        return destination.link if destination.link.full else destination

    def _publishable_topic(self, batch: OutgoingBatch, row: int) -> PublishedTopic | None:
        topic = self._destinations.topics.get(batch.topic(row))
        return topic if topic is not None and (topic.routes.partitions or batch.is_placed) else None


def unplaceable(error: Exception) -> TubeMQError:
    """Return why no partition can be chosen for a message, whose choice raised an error."""
    if isinstance(error, TubeMQError):
        return error
    return OptionError("TUBEMQ_BAD_MESSAGE", what=f"no partition can be chosen for it ({error!r})")
