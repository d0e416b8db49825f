"""A cluster of one topic without any server: a test says what it holds, and what goes wrong."""

from tubemq_spark.cluster.base import TopicsLayout
from tubemq_spark.model import Endpoint, OffsetBounds, StoreId, TopicPartition

BROKER = Endpoint("broker", 8123)


def partition(number, topic="demo"):
    return TopicPartition(topic, 1, number)


class FakeCluster:
    """Two stores of one partition each, and one that two partitions share, until a test changes that."""

    def __init__(self):
        self.partitions = {partition(0), partition(10_000), partition(20_000), partition(20_001)}
        self.rows = {0: 5, 1: 7, 2: 9}
        """How many rows each store has."""
        self.earliest = 0
        """Where every store begins."""
        self.troubles = []
        """Errors that the brokers answer the next questions for offsets with."""
        self.away = None
        """The error with which the masters answer."""
        self.layouts = 0
        self.questions = 0

    def layout(self, topics):
        self.layouts += 1
        if self.away is not None:
            raise self.away
        return TopicsLayout(dict.fromkeys(self.partitions, BROKER), visit_token=self.layouts)

    def bounds(self, layout):
        self.questions += 1
        if self.troubles:
            raise self.troubles.pop(0)
        return {
            StoreId("demo", 1, store): OffsetBounds(self.earliest, 28 * rows)
            for store, rows in self.rows.items()
            if StoreId("demo", 1, store) in layout.stores()
        }
