"""A cluster of one topic without any server: a test says what it holds, and what goes wrong."""

from tests.source.rows import columns
from tests.source.scripted_questions import StillAskingError, is_beside
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import Endpoint, OffsetBounds, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.protocol.errcodes import rpc_error
from tubemq_spark.protocol.fetch_columns import FetchedBatch

BROKER = Endpoint("broker", 8123)
NO_ANSWER = TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint=BROKER, timeout_ms=1000, during="testing")
NO_SUCH_TOPIC = rpc_error(431, "no such topic", peer="master", during="testing")


def partition(number, topic="demo", broker_id=1):
    return TopicPartition(topic, broker_id, number)


class FakeCluster:
    """Two stores of one partition each, and one that two partitions share, until a test changes that."""

    def __init__(self):
        self.partitions = {partition(0), partition(10_000), partition(20_000), partition(20_001)}
        self.rows = {0: 5, 1: 7, 2: 9}
        """How many rows each store has."""
        self.broker_of = {}
        """The brokers of stores that are not on broker 1."""
        self.addresses = {}
        """The addresses of brokers that have moved."""
        self.unflushed = {}
        """How many of the last rows of a store are not on the disk."""
        self.earliest = 0
        """Where every store begins."""
        self.unreadable = {}
        """How many entries at the beginning of a store have lost their data."""
        self.first_readable_hangs = False
        """Whether the questions for first records are not answered for now."""
        self.first_readable_fails = []
        """Errors that the next questions for first records are answered with."""
        self.failing = {}
        """Errors with which brokers answer the questions for stores, by store number."""
        self.troubles = []
        """Lists as ``failing``, for the next questions only: everything fails with the same error."""
        self.away = None
        """The error with which the masters answer."""
        self.masters_hang = False
        """Whether the masters do not answer for now."""
        self.hanging = set()
        """The numbers of stores whose brokers do not answer for now."""
        self.waited_ms = 0
        """How long looks have waited for these."""
        self.removed = set()
        """Topics that do not exist any more."""
        self.topics_fail = None
        """The error with which the administration API answers."""
        self.group = {}
        """Where the user's group stands."""
        self.moves = []
        """What the group was moved to."""
        self.row_bytes = {}
        """How many bytes each row of a store has; 1000 where it is not said."""
        self.reads_hang = set()
        """The stores that cannot be read for now."""
        self.reads_fail = {}
        """The errors with which reads of stores are answered."""
        self.group_fails = None
        """The error with which the group is not moved."""
        self.layouts = 0
        self.asked_topics = []
        self.questions = 0
        self.timeouts = []
        self.timeouts_beside = []
        """Those of questions that no look waited for, once they were answered."""
        self.before_layout = []
        """What happens right before the next layouts are asked for."""

    def add_broker(self):
        """Add a broker with one store, number 3, of six rows; return the store's name."""
        self.partitions.add(partition(30_000, broker_id=2))
        self.broker_of[3] = 2
        self.rows[3] = 6
        return StoreId("demo", 2, 3)

    def layout(self, topics, *, missing_ok=False):
        self.layouts += 1
        self.asked_topics.append(set(topics))
        if self.masters_hang and is_beside():
            raise StillAskingError
        if self.before_layout:
            self.before_layout.pop(0)()
        if self.away is not None:
            raise self.away
        missing = self.removed & set(topics)
        if missing and not missing_ok:
            raise NO_SUCH_TOPIC
        found = sorted(
            one for one in self.partitions if one.topic in set(topics) and one.topic not in missing
        )
        partitions = {one: self.addresses.get(one.broker_id, BROKER) for one in found}
        return TopicsLayout(partitions, self.layouts, frozenset(missing))

    def topics(self):
        if self.topics_fail is not None:
            raise self.topics_fail
        return {partition.topic for partition in self.partitions} - self.removed

    def bounds(self, layout, stores=None, *, flushed=False, timeout_ms=None):
        self.questions += 1
        self.timeouts.append(timeout_ms)
        asked = set(layout.stores if stores is None else stores)
        failing = self.failing
        if hanging := {store.store for store in asked} & self.hanging:
            if is_beside():
                raise StillAskingError
            self.waited_ms += timeout_ms or 10_000
            failing = failing | dict.fromkeys(hanging, NO_ANSWER)
        if is_beside():
            self.timeouts_beside.append(timeout_ms)
        if self.troubles:
            failing = dict.fromkeys(self.rows, self.troubles.pop(0))
        return StoreBounds(
            {
                StoreId("demo", self.broker_of.get(store, 1), store): OffsetBounds(
                    self.earliest, max(self.earliest, 28 * (rows - flushed * self.unflushed.get(store, 0)))
                )
                for store, rows in self.rows.items()
                if store not in failing and StoreId("demo", self.broker_of.get(store, 1), store) in asked
            },
            {store: failing[store.store] for store in asked if store.store in failing},
        )

    def read_range(self, request, on_loss, wait):
        wanted = request.range
        store = wanted.partition.store_id.store
        if store in self.reads_hang and is_beside():
            raise StillAskingError
        if store in self.reads_fail:
            raise self.reads_fail[store]
        count = (wanted.end - wanted.start) // 28
        messages = [(b"x" * self.row_bytes.get(store, 1000), None)] * min(count, 100)
        yield FetchedBatch(
            wanted.partition, wanted.start, wanted.start + 28 * len(messages), columns(messages), dense=True
        )

    def group_positions(self, layout):
        return {one: self.group.get(one, self.earliest) for one in layout.partitions}

    def move_group(self, layout, positions):
        if self.group_fails is not None:
            return dict.fromkeys(positions, self.group_fails)
        self.moves.append(positions)
        self.group |= positions
        return {}

    def first_readable(self, layout, begins):
        if self.first_readable_hangs and is_beside():
            raise StillAskingError
        if self.first_readable_fails:
            raise self.first_readable_fails.pop(0)
        return {
            partition: max(held.earliest, 28 * self.unreadable.get(partition.store_id.store, 0))
            for partition, held in begins.items()
        }
