"""Values that every package shares: small, frozen, comparable, picklable.

An offset of TubeMQ is a byte position in the index of a store, and the index has one entry of a fixed size
per message (``DataStoreUtils.STORE_INDEX_HEAD_LEN``). An offset names the *next* message to read, and ranges
are half open: a range ``[28, 84)`` contains the store's second and third message.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, Self

from tubemq_spark.errors import OffsetFormatError, OptionError, TubeMQError

_SCHEME: Final = "tubemq://"
_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s/?#@,:\[\]]+))(?::([0-9]{1,9}))?")

PARTITIONS_PER_STORE: Final = 10_000
"""A partition's number is ``store * 10000 + index`` (TubeMQ's ``META_STORE_INS_BASE``)."""

INDEX_ENTRY_BYTES: Final = 28
"""Bytes per message in a store's index; every offset is a multiple of it."""
MAX_OFFSET: Final = (2**63 - 1) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES
"""The highest offset there can be: TubeMQ keeps offsets in a signed 64-bit integer."""

_EXCERPT_BYTES: Final = 40

MSG_TYPE_KEY: Final = "$msgType$"
"""Attribute that holds a message's type, the thing filters compare (TubeMQ's stream id)."""
MSG_TIME_KEY: Final = "$msgTime$"
"""Attribute that holds a message's time as yyyyMMddHHmm in its producer's time zone."""
MESSAGE_UID_KEY: Final = "messageUid"
"""Attribute that holds a message's id, by which repeats of it are recognised; our own, TubeMQ knows none."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> Self:
        """Read ``host:port`` or ``tubemq://host:port``; without a port take the default, if there is one.

        An IPv6 address stands in brackets: ``[::1]:8715``.
        """
        match = _ADDRESS.fullmatch(text.strip().removeprefix(_SCHEME).removesuffix("/"))
        port = 0 if match is None else int(match[3] or default_port or 0)
        if match is None or not 0 < port < 65536 or not _can_be_looked_up(match[2] or ""):
            # Bytes of the command line that are no UTF-8 are shown as such.
            address = text.strip().encode(errors="backslashreplace").decode()
            raise OptionError("TUBEMQ_BAD_ADDRESS", address=address)
        return cls(match[1] or match[2], port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _can_be_looked_up(host: str) -> bool:
    """Whether a host has no label that is empty or too long, and nothing else that resolvers refuse."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in host


_new_tuple: Final = tuple.__new__

# The next three are tuples because a driver has ten thousand of each: hashing, comparing and making one costs
# a third of what a frozen dataclass costs.


class StoreId(NamedTuple):
    """One log: a topic's store on one broker. All its partitions share its offsets."""

    topic: str
    broker_id: int
    store: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_id} store {self.store}"


class TopicPartition(NamedTuple):
    """One partition; ``partition_id`` as TubeMQ numbers it (store * 10000 + index).

    For example:

        consumer.seek(TopicPartition("clicks", broker_id=1, partition_id=10000), 2800)
    """

    topic: str
    broker_id: int
    partition_id: int

    @property
    def store_id(self) -> StoreId:
        """The log this partition lives in."""
        # Not StoreId(...), which costs twice as much, and a driver asks for ten thousand at a time.
        return _new_tuple(StoreId, (self[0], self[1], self[2] // PARTITIONS_PER_STORE))

    @property
    def local_id(self) -> str:
        """``brokerId:partitionId``, the key of a partition inside its topic's offsets."""
        return f"{self.broker_id}:{self.partition_id}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.local_id}"


class OffsetBounds(NamedTuple):
    """What a store holds: offsets ``earliest <= x < latest``, in index bytes.

    For example:

        bounds = client.offsets("clicks")[partition]
        print((bounds.latest - bounds.earliest) // 28, "messages")
    """

    earliest: int
    latest: int


@dataclasses.dataclass(frozen=True, slots=True)
class StoreBounds:
    """What brokers answered when they were asked where their stores begin and end."""

    by_store: Mapping[StoreId, OffsetBounds]
    failures: Mapping[StoreId, TubeMQError]
    """Why there is no answer for a store now; every store asked for is either here or in ``by_store``."""

    def complete(self) -> Mapping[StoreId, OffsetBounds]:
        """Return the bounds of all stores."""
        for error in self.failures.values():
            raise error
        return self.by_store


class StoredOffset(NamedTuple):
    """Where a consumer group stands in a partition, as the partition's broker has it on its disk."""

    group: str
    partition: TopicPartition
    committed: int
    """The next offset to read, in index bytes."""
    in_flight: int
    """How far the group was handed messages beyond that, in index bytes."""
    latest: int | None
    """Where the store ends now; None while it is not open."""
    consumer: str | None
    """The client that holds the partition for the group now."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredOffsets:
    """What brokers answered when they were asked for the offsets of consumer groups."""

    offsets: tuple[StoredOffset, ...]
    """In the order of brokers and groups; a group that never read a partition is absent there."""
    failures: Mapping[int, TubeMQError]
    """Why there is no answer of a broker, or none about some groups, by its id."""


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition with ``start <= offset < end``, in index bytes."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many messages of its store are between its offsets, as ``rows_between`` counts them."""
        return rows_between(self.start, self.end)

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """The direct way to a partition: its broker, and the master's visit token."""

    endpoint: Endpoint
    visit_token: int


@dataclasses.dataclass(frozen=True, slots=True)
class RangeRequest:
    """Which records to read; small and picklable, because it travels to a task."""

    range: OffsetRange
    route: Route
    """As a layout told it. Readers that go through a process in between leave it alone."""
    own_store: bool = False
    """Whether no other partition is in the store: every offset of the range is then one of its records,
    and one that the broker passes over is missing."""


@dataclasses.dataclass(frozen=True)
class TopicsLayout:
    """Where the partitions of some topics are, and the token that proves that a master was asked."""

    partitions: Mapping[TopicPartition, Endpoint]
    """All partitions that exist, in their order, including those that cannot be read now."""
    visit_token: int
    missing_topics: frozenset[str] = frozenset()
    """Topics that were asked for and do not exist."""
    unread: frozenset[TopicPartition] = frozenset()
    """Other partitions of the topics, which were not asked for; they may be in the same stores."""

    @classmethod
    def joined(cls, layouts: Sequence["TopicsLayout"]) -> "TopicsLayout":
        """Return one layout of the topics of several, at least one, which were asked for in this order."""
        if len(layouts) == 1:
            return layouts[0]
        partitions: dict[TopicPartition, Endpoint] = {}
        for layout in layouts:
            partitions |= layout.partitions
        tokens = [layout.visit_token for layout in layouts if layout.partitions]
        missing = frozenset().union(*(layout.missing_topics for layout in layouts))
        return cls(
            dict(sorted(partitions.items())), tokens[-1] if tokens else layouts[0].visit_token, missing
        )

    @functools.cached_property
    def stores(self) -> Mapping[StoreId, Endpoint]:
        """The stores the partitions live in, with their brokers."""
        return {partition.store_id: endpoint for partition, endpoint in self.partitions.items()}

    @functools.cached_property
    def alone_in_store(self) -> Mapping[StoreId, TopicPartition]:
        """The stores with only one partition, if it is one of these; see the function of this name."""
        alone = alone_in_store([*self.partitions, *self.unread])
        return {store: partition for store, partition in alone.items() if partition in self.partitions}

    def request(self, records: OffsetRange, *, own_store: bool = False) -> RangeRequest:
        """Return what a task needs to read a range; see ``RangeRequest.own_store``."""
        return RangeRequest(records, self._routes[self.partitions[records.partition]], own_store)

    @functools.cached_property
    def _routes(self) -> Mapping[Endpoint, Route]:
        """The route to each broker: one object, which requests that are pickled together share."""
        return {endpoint: Route(endpoint, self.visit_token) for endpoint in self.partitions.values()}


class MicroBatch(NamedTuple):
    """A micro-batch of a streaming query; the same whenever it is repeated."""

    query_id: str
    """Spark's id of the query, which it keeps in its checkpoint."""
    batch_id: int

    def __str__(self) -> str:
        return f"micro-batch {self.batch_id} of query {self.query_id}"


class _HasAttributes(Protocol):
    @property
    def attributes(self) -> dict[str, str] | None: ...


class ReadMessage:
    """What the attributes of a message tell, for the values that have ``attributes``."""

    __slots__ = ()

    @property
    def flag(self: _HasAttributes) -> int:
        """TubeMQ's flag of the message: 1 with attributes, 0 without. Its other bits mean nothing."""
        return 1 if self.attributes else 0

    @property
    def message_type(self: _HasAttributes) -> str | None:
        """The filter item (``$msgType$``), None when the message has none."""
        return None if self.attributes is None else self.attributes.get(MSG_TYPE_KEY)

    @property
    def message_time(self: _HasAttributes) -> str | None:
        """The time as its producer wrote it (yyyyMMddHHmm), None when the message has none."""
        return None if self.attributes is None else self.attributes.get(MSG_TIME_KEY)


@dataclasses.dataclass(frozen=True, slots=True)
class Message(ReadMessage):
    """One message as it was read; ``message_id`` is the broker's, neither ordered nor unique over brokers."""

    value: bytes
    attributes: dict[str, str] | None
    message_id: int


def alone_in_store(partitions: Iterable[TopicPartition]) -> dict[StoreId, TopicPartition]:
    """Return the stores that hold only one of some partitions, each with that partition.

    Only there can a client tell at which offset a record begins, or where the first readable one is.
    """
    by_store: dict[StoreId, TopicPartition] = {}
    shared: set[StoreId] = set()
    for partition in partitions:
        if by_store.setdefault(partition.store_id, partition) != partition:
            shared.add(partition.store_id)
    return {store: partition for store, partition in by_store.items() if store not in shared}


def excerpt(value: bytes) -> str:
    """Return how a message's body begins, escaped, for an error or the log."""
    return f"{value[:_EXCERPT_BYTES]!r}{'...' if len(value) > _EXCERPT_BYTES else ''}"


def rows_between(start: int, end: int) -> int:
    """Return how many messages a *store* holds between two offsets; 0 if ``end`` is not after ``start``.

    All partitions of a store together hold that many; the share of one partition is unknown.
    """
    return max(0, end - start) // INDEX_ENTRY_BYTES


def is_aligned(offset: int) -> bool:
    """Tell whether a number can be an offset: 0 to ``MAX_OFFSET``, at the boundary of an index entry."""
    return 0 <= offset <= MAX_OFFSET and offset % INDEX_ENTRY_BYTES == 0


def require_aligned(offset: int, what: object = "the position") -> int:
    """Return a number that can be an offset, and refuse any other."""
    if not is_aligned(offset):
        unit, nearest = INDEX_ENTRY_BYTES, nearest_to(offset)
        raise OffsetFormatError(
            "TUBEMQ_OFFSET_UNALIGNED", offset=offset, what=what, unit=unit, nearest=nearest
        )
    return offset


def nearest_to(number: int) -> str:
    """Return which offsets are nearest to a number that is none: ``the nearest are 28 and 56``."""
    below = min(max(0, number), MAX_OFFSET) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES
    if below < number < MAX_OFFSET:
        return f"the nearest are {below} and {below + INDEX_ENTRY_BYTES}"
    return f"the nearest is {below}"
