"""A cluster in a simulated world: two masters and some brokers, each on a host of its own."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import simloom
from google.protobuf.message import Message

from simulation import chance
from simulation.master import Directory, MasterModel
from simulation.scene import Scene
from simulation.server import Server
from testkit.broker_model import BrokerModel, Entry, Held, Limits, Store
from tubemq_spark.model import PARTITIONS_PER_STORE, Endpoint, StoreId, TopicPartition
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import DEFAULT_BROKER_PORT, DEFAULT_MASTER_PORT, Method, OpType
from tubemq_spark.protocol.payload import encode_payload
from tubemq_spark.protocol.pb import broker_pb2

TOPIC: Final = "demo"
_TOKEN_S: Final = 10.0
"""How long a visit token is handed out; TubeMQ's masters do it for minutes."""


_SAVED_EACH_S: Final = 5.0
"""How often a broker writes down where groups stand."""


class Move(NamedTuple):
    """That a group stands elsewhere, in index bytes."""

    group: str
    partition: TopicPartition
    how: str
    """``register``, ``unregister``, ``fetch``, ``commit`` or ``crash``."""
    client_id: str
    before: int
    after: int
    is_late: bool
    """Whether a request did it that came in behind later ones."""
    is_holders: bool
    """Whether its client held the partition before, so that no other member can have moved the group."""


class Broker:
    """A broker: its stores and leases, and the server that has them at present."""

    def __init__(
        self, world: simloom.World, broker_id: int, stores: int, partitions: int, topics: Sequence[str]
    ) -> None:
        self.id = broker_id
        limits = Limits(
            file_entries=7, memory_entries=5, segment_entries=20, first_bytes=200, later_bytes=400
        )
        logs = {StoreId(topic, broker_id, number): Store() for topic in topics for number in range(stores)}
        self.model = _LoggedModel(logs, partitions, limits, broker_id)
        self.server = Server(world, f"broker{broker_id}", DEFAULT_BROKER_PORT, self.model)
        self._world = world
        self._moves = 0
        self.flaws_percent = 0
        """How many of the records are stored so that they are damaged, or cannot be read."""
        self._flaws: dict[tuple[int, int], dict[str, bool]] = {}
        """By store and number of the entry: what is stored again after a crash is as before."""

    def append(self, store: int, count: int) -> None:
        """Store records, in turn over the store's partitions; each value is the number of its entry."""
        log = self.model.stores[StoreId(TOPIC, self.id, store)]
        for number in range(len(log.entries), len(log.entries) + count):
            log.append(number % self.model.partitions, [b"%d" % number])
            flaw = self._flaws.setdefault((store, number), self._draw_flaw())
            log.entries[-1] = dataclasses.replace(log.entries[-1], **flaw)

    def store(self, topic: str, partition_id: int, value: bytes, message_type: str) -> int:
        """Store a message, flawed perhaps; return the number of its entry."""
        log = self.model.stores[StoreId(topic, self.id, partition_id // PARTITIONS_PER_STORE)]
        payload, flaw = encode_payload(value, None, message_type), self._draw_flaw()
        log.entries.append(
            Entry(
                partition_id,
                payload.data,
                log.next_id(partition_id),
                flaw.get("readable", True),
                flaw.get("sound", True),
                payload.flag,
                message_type,
            )
        )
        return len(log.entries) - 1

    def flush(self) -> None:
        """Write to disk what is in memory only."""
        for log in self.model.stores.values():
            log.flushed = len(log.entries)
        self.model.save()

    def move(self) -> None:
        """Run on another host from now on, with the same disk; leases are gone."""
        self.flush()
        self.server.crash()
        self._moves += 1
        drops_late = self.server.drops_late
        self.server = Server(self._world, f"broker{self.id}-{self._moves}", DEFAULT_BROKER_PORT, self.model)
        self.server.drops_late = drops_late

    def flawed(self, store: int, kind: str) -> set[int]:
        """Return which entries of a store were never "sound", or never "readable"."""
        return {
            number for (of_store, number), flaw in self._flaws.items() if of_store == store and kind in flaw
        }

    def _draw_flaw(self) -> dict[str, bool]:
        if not chance.happens(self.flaws_percent):
            return {}
        return {"sound": False} if chance.happens(50) else {"readable": False}


class _LoggedModel(BrokerModel):
    """A broker that tells of what crashes take, and of groups that move."""

    def __init__(self, logs: dict[StoreId, Store], partitions: int, limits: Limits, broker_id: int) -> None:
        super().__init__(logs, partitions, limits, broker_id)
        self.lost: collections.defaultdict[StoreId, set[int]] = collections.defaultdict(set)
        self.lost_entries: list[tuple[StoreId, int, Entry]] = []
        """What a crash took of what producers have sent, with its place."""
        self.is_late = False
        self.on_move: Callable[[Move], object] | None = None
        """Is told of each move of a group, and before messages are taken by a crash."""
        self._saved: dict[Held, int] = {}
        self._saved_at = 0.0

    def save(self) -> None:
        """Write down where groups stand."""
        self._saved_at = self.now
        self._saved = {key: holding.committed for key, holding in self.holdings.items() if holding.recorded}

    def answer(self, method: Method, body: bytes | memoryview) -> Message:
        if self.now >= self._saved_at + _SAVED_EACH_S:
            self.save()
        return super().answer(method, body)

    def live_leases(self, now: float) -> list[Held]:
        """Return what is held, and has not timed out."""
        self.now = now
        self.end_silent_leases()
        return [key for key in self.leases() if not self.holdings[key].timed_out]

    def crash(self, *, gracefully: bool = False) -> None:
        if self.on_move is not None:
            self._set_groups_back(self.on_move)
        if not gracefully:
            for store_id, log in self.stores.items():
                gone = range(log.flushed, len(log.entries))
                self.lost[store_id].update(gone)
                self.lost_entries += [(store_id, number, log.entries[number]) for number in gone]
        super().crash(gracefully=gracefully)

    def _set_groups_back(self, on_move: Callable[[Move], object]) -> None:
        """Set groups back to where they stood when that was written down last."""
        for key, holding in self.holdings.items():
            before, holding.committed = holding.committed, self._saved.get(key, 0)
            holding.recorded = key in self._saved
            on_move(self._move(key, "crash", "", before, holding.committed))

    def _register_or_unregister(self, request: broker_pb2.RegisterRequestC2B) -> Message:
        how = "unregister" if request.opType == OpType.UNREGISTER else "register"
        return self._telling(how, request, super()._register_or_unregister)

    def _get_message(self, request: broker_pb2.GetMessageRequestC2B) -> Message:
        return self._telling("fetch", request, super()._get_message)

    def _commit(self, request: broker_pb2.CommitOffsetRequestC2B) -> Message:
        return self._telling("commit", request, super()._commit)

    def _telling(self, how: str, request: Any, carry_out: Callable[[Any], Message]) -> Message:  # noqa: ANN401
        if self.on_move is None:
            return carry_out(request)
        key = request.groupName, request.topicName, request.partitionId
        holding = self.holdings[key]
        before, was_recorded = holding.committed, holding.recorded
        is_holders = holding.owner == request.clientId and not holding.timed_out
        answer = carry_out(request)
        if was_recorded and holding.committed != before:
            self.on_move(self._move(key, how, request.clientId, before, holding.committed, is_holders))
        return answer

    def _move(
        self, key: Held, how: str, client_id: str, before: int, after: int, is_holders: bool = False
    ) -> Move:
        partition = TopicPartition(key[1], self.broker_id, key[2])
        is_late = self.is_late and how != "crash"
        return Move(key[0], partition, how, client_id, before, after, is_late, is_holders)


class Cluster(Scene):
    """Two masters and some brokers."""

    def __init__(
        self,
        world: simloom.World,
        *,
        brokers: int = 3,
        stores: int = 1,
        partitions: int = 1,
        topics: Sequence[str] = (TOPIC,),
    ) -> None:
        super().__init__(world)
        self.directory = Directory()
        self._tokens_changed_at = 0.0
        self.masters = [self._master(world, f"master{number}") for number in (1, 2)]
        self.directory.leader = "master1"
        self.brokers = [Broker(world, number, stores, partitions, topics) for number in range(1, brokers + 1)]
        for topic in topics:
            self.directory.topics[topic] = {broker.id: (stores, partitions) for broker in self.brokers}
        self._publishable = [(0.0, frozenset(broker.id for broker in self.brokers))]
        self.note_moves()

    @property
    def servers(self) -> list[Server]:
        """All servers that should answer."""
        return [*self.masters, *(broker.server for broker in self.brokers)]

    @property
    def master_addresses(self) -> tuple[Endpoint, ...]:
        """The masters' addresses."""
        return tuple(master.endpoint for master in self.masters)

    def note_moves(self) -> None:
        """Tell the masters where the brokers are."""
        self.directory.brokers = {broker.id: broker.server.endpoint for broker in self.brokers}
        self.directory.version += 1

    def move(self, broker: Broker) -> None:
        """Move a broker to another host, which the masters know at once."""
        broker.move()
        self.note_moves()

    def close(self, broker: Broker) -> None:
        """Tell producers of no partition of a broker; it takes messages all the same."""
        self._list(self.directory.closed | {broker.id})

    def reopen(self, broker: Broker) -> None:
        """Tell producers of a broker's partitions again."""
        self._list(self.directory.closed - {broker.id})

    def heal(self) -> None:
        """End all troubles."""
        super().heal()
        if self.directory.closed:
            self._list(set())

    def listings(self, topic: str) -> list[tuple[float, frozenset[TopicPartition]]]:
        """Return to which partitions of a topic messages could be published, and since when."""
        items = self.directory.topics[topic].items()
        return [
            (
                since,
                frozenset(
                    TopicPartition(topic, broker, number)
                    for broker, (stores, partitions) in items
                    if broker in brokers
                    for number in packed_strings.partition_ids(stores, partitions)
                ),
            )
            for since, brokers in self._publishable
        ]

    def change_token(self) -> None:
        """Hand out another visit token from now on; brokers take that, and the one before for a while."""
        if self.world.time < self._tokens_changed_at + _TOKEN_S:
            return
        self._tokens_changed_at = self.world.time
        self.directory.token += 1
        for broker in self.brokers:
            broker.model.valid_tokens = {self.directory.token, self.directory.token - 1}

    def _list(self, closed: set[int]) -> None:
        self.directory.closed = closed
        self._publishable.append((self.world.time, frozenset(self.directory.brokers.keys() - closed)))

    def _master(self, world: simloom.World, name: str) -> Server:
        return Server(world, name, DEFAULT_MASTER_PORT, MasterModel(name, self.directory))
