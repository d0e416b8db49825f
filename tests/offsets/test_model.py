"""A stream against a model of TubeMQ and of Spark: no record is lost unsaid, and none comes twice."""

import json

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from testkit.examples import examples
from tests.offsets.strategies import tp
from tubemq_spark.model import OffsetBounds, TopicPartition
from tubemq_spark.offsets.advance import next_offset
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder
from tubemq_spark.offsets.offset_spec import Edge, Specific
from tubemq_spark.offsets.ranges import ranges_between
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken, read_stream_offset

FIRST = tp("demo/1:0")


class Log:
    """One store: the partition of each message it ever had, and where it begins now."""

    def __init__(self):
        self.messages = []
        self.earliest = 0

    @property
    def bounds(self):
        return OffsetBounds(self.earliest, 28 * len(self.messages))

    def records(self, partition, start, end):
        """Return the offsets of a partition's messages in a range, as far as the log still has them."""
        begin = max(start, self.earliest)
        return {
            (partition, offset)
            for offset in range(begin, end, 28)
            if self.messages[offset // 28] == partition
        }


class Streams(RuleBasedStateMachine):
    """Spark writes the end of a batch down before it reads up to it, and may die in between."""

    def __init__(self):
        super().__init__()
        self.token = None
        self.logs = {FIRST.store_id: Log()}
        self.partitions = {FIRST}
        self.produced = set()
        self.unwanted = set()
        self.limit = None
        self.losses = LossRecorder()
        self.ends = []  # of all batches planned, as text
        self.sink = []  # what each batch brought when it was read first

    @initialize(rows=st.integers(0, 6), word=st.none() | st.sampled_from(Edge))
    def begin(self, rows, word):
        self.produce_to(FIRST, rows)
        self.token = StartToken(word or Specific({"demo": {FIRST: rows // 2 * 28}}))
        if word is None:
            self.unwanted = {record for record in self.produced if record[1] < rows // 2 * 28}

    @precondition(lambda self: self.ends)
    @rule(
        broker_id=st.integers(1, 2), partition_id=st.sampled_from([0, 1, 2, 10_000]), rows=st.integers(0, 9)
    )
    def add_partition(self, broker_id, partition_id, rows):
        partition = TopicPartition("demo", broker_id, partition_id)
        self.partitions.add(partition)
        self.logs.setdefault(partition.store_id, Log())
        self.produce_to(partition, rows)

    @rule(data=st.data(), rows=st.integers(1, 12))
    def produce(self, data, rows):
        self.produce_to(data.draw(st.sampled_from(sorted(self.partitions))), rows)

    def produce_to(self, partition, rows):
        log = self.logs[partition.store_id]
        self.produced |= {(partition, 28 * (len(log.messages) + row)) for row in range(rows)}
        log.messages += [partition] * rows

    @rule(data=st.data(), rows=st.integers(1, 9))
    def expire(self, data, rows):
        log = self.logs[data.draw(st.sampled_from(sorted(self.logs)))]
        log.earliest = min(log.earliest + 28 * rows, log.bounds.latest)

    @rule(limit=st.none() | st.integers(1, 10))
    def restart(self, limit):
        """Spark repeats the last batch that was planned, since it may not have been committed."""
        self.limit = limit
        self.read_last_batch()

    @rule(dies=st.booleans())
    def trigger(self, dies):
        self.run_trigger(self.bounds(), dies=dies)

    @precondition(lambda self: self.ends)
    @rule()
    def trigger_while_a_broker_is_away(self):
        self.run_trigger({store: held for store, held in self.bounds().items() if store.broker_id == 1})

    @rule()
    def available_now(self):
        target = {partition: self.logs[partition.store_id].bounds.latest for partition in self.partitions}
        begin = self.start_of(len(self.ends)).next_offsets
        self.produce_to(FIRST, 3)
        while self.run_trigger(self.bounds(), target=target):
            pass
        for partition, offset in self.start_of(len(self.ends)).next_offsets.items():
            stop = target[partition]
            assert offset == (stop if begin else max(stop, offset))

    def run_trigger(self, bounds, *, dies=False, target=None):
        """Plan a batch and, unless Spark dies, read it; tell whether there was one."""
        self.read_last_batch()
        start = self.start_of(len(self.ends))
        end = self.plan(start, bounds, target)
        if json.dumps(end.to_json()) == json.dumps(start.to_json()):
            return False
        if not self.ends and self.token.spec is Edge.LATEST:
            self.unwanted = set(self.produced)
        if not self.ends and self.token.spec is Edge.EARLIEST:
            self.unwanted = {
                record for record in self.produced if record[1] < self.logs[FIRST.store_id].earliest
            }
        if self.limit is not None:
            rows = sum(len(self.read(span)) for span in ranges_between(start, end, LossRecorder()))
            assert rows <= self.limit + len(self.partitions)
        self.ends.append(json.dumps(end.to_json()))
        if not dies:
            self.read_last_batch()
        return True

    def plan(self, start, bounds, target):
        """Ask for the next offset: a store with a backlog moves, and without a limit up to the end."""

        def ask(offset):
            return next_offset(
                offset, self.partitions, bounds, on_loss=self.losses, max_rows=self.limit, target=target
            )

        end = ask(start)
        stops = {store: held.latest for store, held in bounds.items()}
        if target is not None:
            stops = {partition.store_id: end for partition, end in target.items()}
        for partition, offset in start.next_offsets.items():
            assert end.next_offsets[partition] >= offset
            if partition.store_id in bounds and offset < stops[partition.store_id]:
                assert end.next_offsets[partition] > offset
        if self.limit is None:
            assert ask(end) is end
        return end

    def read_last_batch(self):
        """Read the last batch; when it was read before, it brings the same, or less if some has expired."""
        if not self.ends:
            return
        batch = len(self.ends) - 1
        end = SourceOffset.from_json(json.loads(self.ends[batch]))
        rows = set()
        for span in ranges_between(self.start_of(batch), end, self.losses):
            earliest = self.logs[span.partition.store_id].earliest
            if span.start < earliest:
                self.losses(LossRecord(Loss.EXPIRED, span.partition, span.start, min(span.end, earliest)))
            rows |= self.read(span)
        if batch == len(self.sink):
            self.sink.append(rows)
        assert rows <= self.sink[batch]

    def read(self, span):
        return self.logs[span.partition.store_id].records(span.partition, span.start, span.end)

    def start_of(self, batch):
        return read_stream_offset(json.loads(self.ends[batch - 1])) if batch else self.token

    def bounds(self):
        return {store: log.bounds for store, log in self.logs.items()}

    @invariant()
    def no_record_comes_twice_or_unwanted(self):
        rows = [record for batch in self.sink for record in batch]
        assert len(rows) == len(set(rows))
        assert set(rows) <= self.produced - self.unwanted

    @invariant()
    def losses_are_true(self):
        for record in self.losses.records:
            assert record.loss is Loss.EXPIRED
            assert record.end <= self.logs[record.partition.store_id].earliest

    def teardown(self):
        """Read what is left; then every record has come, or its loss was told."""
        if self.token is None:
            return
        self.limit = None
        while self.run_trigger(self.bounds()):
            pass
        lost = {
            (record.partition, offset)
            for record in self.losses.records
            for offset in range(record.start, record.end, 28)
        }
        assert self.produced - self.unwanted <= set().union(lost, *self.sink)


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
