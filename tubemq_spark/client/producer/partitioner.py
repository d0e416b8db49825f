"""Which of a topic's partitions a message goes to: by its key, or in turn."""

import itertools
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tubemq_spark.client.config import BuiltInPartitioner, CustomPartitioner
from tubemq_spark.client.master.producers import PublishRoutes
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import ATTRIBUTE_ALLOWANCE_BYTES

_LISTED_PARTITIONS: Final = 40
"""An error names at most this many existing partitions."""
_SHOWN: Final = 100
"""An error shows so much of what a user's object returned."""
_SLOTS: Final = 1 << 16
"""Keys are sorted into this many slots; each slot belongs to one partition."""
_BLOCK: Final = 1 << 8
"""The owners of so many neighbouring slots are computed together, when the first of them is needed."""


RunUserCode = Callable[[Callable[[], object]], object]
"""Has a function of the user called soon, outside of the event loop unless the loop is the user's own."""


class Partitioner:
    """Chooses among the partitions one topic can be published to now; there is at least one.

    **Keys** are placed by rendezvous hashing: a key belongs to a slot (the low 16 bits of its CRC-32), each
    partition has a weight for each slot, and the slot belongs to the heaviest. A weight depends on nothing
    but the slot and the ids of the broker and the partition. Therefore all producers that see the same
    partitions choose the same one for a key, in any process and on any platform; when partitions leave,
    only their own keys move; when partitions join, keys move only to them.

    **Turns** give a partition some messages and then the next one. They alternate between brokers, so that
    passing over one costs few steps. A turn ends early when its broker is to be passed over, or when a
    message has to go elsewhere.
    """

    def __init__(self, targets: Iterable[Destination], first: int) -> None:
        """Begin the round robin at ``first``: tasks that all begin at 0 would fill partition 0 first."""
        self.targets = tuple(sorted(targets, key=lambda target: target.partition))
        """All partitions, by broker and partition id."""
        self._by_id = {
            (target.partition.broker_id, target.partition.partition_id): target for target in self.targets
        }
        self.brokers = frozenset(target.partition.broker_id for target in self.targets)
        turns = _alternate(self.targets)
        self._cycle = itertools.cycle(turns)
        for _ in range(first % len(turns)):
            next(self._cycle)
        self.partitions = tuple(target.partition for target in self.targets)
        self._current: Destination | None = None
        self._taken = 0
        self._seeds = _seeds(self.targets)
        self._owners: list[list[Destination] | None] = [None] * (_SLOTS // _BLOCK)

    def available(self, *passed_over: Collection[int]) -> tuple[TopicPartition, ...]:
        """Return the partitions without those of some brokers, as ``round_robin`` passes over them."""
        avoided = self._avoided(passed_over) if passed_over else ()
        if not avoided:
            return self.partitions
        return tuple(partition for partition in self.partitions if partition.broker_id not in avoided)

    def round_robin(self, most: int, longest: int, *passed_over: Collection[int]) -> tuple[Destination, int]:
        """Return the partition whose turn it is, and how many messages it gets now; the only one gets all.

        Of several choices of brokers to be passed over, the first that leaves a broker counts.
        """
        if len(self.targets) == 1:
            return self.targets[0], most
        avoided = self._avoided(passed_over) if passed_over else ()
        current = self._current
        if current is None or self._taken >= longest or current.partition.broker_id in avoided:
            current = next(self._cycle)
            while current.partition.broker_id in avoided:
                current = next(self._cycle)
            self._current = current
            self._taken = 0
        count = min(most, longest - self._taken)
        self._taken += count
        return current, count

    def leave(self, target: Destination) -> None:
        """End a partition's turn, so that the next messages go to another one, if there is another."""
        if self._current is target:
            self._current = None

    def by_key(self, key: bytes) -> Destination:
        """Return the partition of a key."""
        block, slot = divmod(zlib.crc32(key) % _SLOTS, _BLOCK)
        return (self._owners[block] or self._own(block))[slot]

    def by_id(self, broker_id: int, partition_id: int) -> Destination | None:
        """Return the partition the caller named; None when it is not among these."""
        return self._by_id.get((broker_id, partition_id))

    def listed(self) -> str:
        """Return the partitions there are, for an error."""
        names = [target.partition.local_id for target in self.targets[:_LISTED_PARTITIONS]]
        more = len(self.targets) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")

    def _avoided(self, choices: Iterable[Collection[int]]) -> Collection[int]:
        return next((brokers for brokers in choices if not self.brokers.issubset(brokers)), ())

    def _own(self, block: int) -> list[Destination]:
        slots = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.uint64)
        weights = _mix(_mix(slots)[:, None] ^ self._seeds)
        owners = [self.targets[heaviest] for heaviest in weights.argmax(axis=1)]
        self._owners[block] = owners
        return owners


class PublishedTopic:
    """One topic as the master last described it."""

    def __init__(
        self,
        name: str,
        routes: PublishRoutes,
        partitioner: Partitioner,
        links: BrokerLinks,
        chosen_by: BuiltInPartitioner | CustomPartitioner = BuiltInPartitioner.ROUND_ROBIN,
    ) -> None:
        self._sticky = chosen_by is BuiltInPartitioner.STICKY
        self.custom = None if isinstance(chosen_by, BuiltInPartitioner) else chosen_by
        """The user's object that chooses; None where we do."""
        self.name = name
        self.routes = routes
        self.partitioner = partitioner
        """Chooses among the partitions the master listed last; it lists none while their brokers restart."""
        self.links = links
        self.max_message_bytes = routes.max_message_bytes

    def excess(self, prefix: bytes, size: int) -> tuple[int, int] | None:
        """Return by what measure a payload is too long, and the limit: as Java's producer and brokers do.

        The first counts attributes in UTF-16 code units, the second everything in bytes with an allowance
        (SimpleMessageProducer.checkMessageAndStatus, BrokerServiceServer.sendMessageP2B).
        """
        limit = self.max_message_bytes
        if size <= limit:
            return None
        units = len(prefix[4:].decode().encode("utf-16-le")) // 2
        for measure, allowed in (
            (size - len(prefix) + units, limit),
            (size, limit + ATTRIBUTE_ALLOWANCE_BYTES),
        ):
            if measure > allowed:
                return measure, allowed
        return None

    def too_long(self, excess: tuple[int, int], message: str) -> ProduceError:
        """Return the error for a message that is too long; ``excess`` is that of ``excess()``."""
        size, limit = excess
        return ProduceError(
            "TUBEMQ_MESSAGE_TOO_LONG", topic=self.name, size=size, limit=limit, message=message
        )

    def choose(self, key: bytes | None, value: bytes) -> Destination:
        """Return where a message goes whose partition was not named.

        Without a user's object that is where its key belongs, or the next one; the value does not matter.
        """
        if self.custom is not None:
            return self._ask(self.custom, key, value)
        return self.choose_run(1)[0] if key is None else self.partitioner.by_key(key)

    def choose_again(self, key: bytes | None, value: bytes) -> Destination:
        """Return where a message goes that is to be sent again; it raises nothing but ``ProduceError``."""
        try:
            return self.choose(key, value)
        except (TubeMQError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also sys.exit(), which is for the caller's thread and not for this
            partitioner = type(self.custom).__qualname__
            raise ProduceError(
                "TUBEMQ_PARTITIONER_FAILED", partitioner=partitioner, cause=repr(error), topic=self.name
            ) from error

    def _ask(self, custom: CustomPartitioner, key: bytes | None, value: bytes) -> Destination:
        partitions, available = self.partitioner.partitions, self.partitioner.available(*self._avoided())
        chosen: object = custom.choose(self.name, key, value, partitions, available)
        if isinstance(chosen, TopicPartition) and chosen.topic == self.name:
            destination = self.partitioner.by_id(chosen.broker_id, chosen.partition_id)
            if destination is not None:
                return destination
        raise ProduceError(
            "TUBEMQ_PARTITIONER_CHOICE",
            partitioner=type(custom).__qualname__,
            chosen=repr(chosen)[:_SHOWN],
            topic=self.name,
            existing=self.partitioner.listed(),
        )

    def choose_run(self, most: int) -> tuple[Destination, int]:
        """Return where the next messages without key go, and how many of them: from 1 to ``most``."""
        links = self.links
        longest = sys.maxsize if self._sticky else links.longest_run
        chosen, count = self.partitioner.round_robin(most, longest, *self._avoided())
        if chosen.link.troubles:
            links.crowd(chosen.link)  # at once, not when it is submitted: one message is enough to see
            return chosen, 1
        return chosen, count

    def _avoided(self) -> tuple[Collection[int], ...]:
        """Return the brokers to pass over, in several choices; nothing when all is well."""
        links = self.links
        return (links.passed_over, links.failing) if links.passed_over else ()


class Place(NamedTuple):
    """Where a message goes."""

    topic: PublishedTopic
    destination: Destination | None
    """The partition that the caller named; None: it is chosen."""


def _alternate(targets: Sequence[Destination]) -> list[Destination]:
    """Put the first partition of each broker first, then the second of each, and so on."""
    by_broker = itertools.groupby(targets, key=lambda target: target.partition.broker_id)
    rounds = itertools.zip_longest(*(list(of_broker) for _, of_broker in by_broker))
    return [target for one_round in rounds for target in one_round if target is not None]


def _seeds(targets: Sequence[Destination]) -> npt.NDArray[np.uint64]:
    ids = [(target.partition.broker_id << 32) | target.partition.partition_id for target in targets]
    return _mix(np.array(ids, dtype=np.uint64))


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit numbers; this is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
