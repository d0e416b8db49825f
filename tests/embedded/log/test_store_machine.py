"""A store compared with a list: appends, reads, flushes, retention, restarts, kills that tear files."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.embedded.store_model import (
    ENTRY_BYTES,
    HEADER_BYTES,
    cut_log,
    extend_log,
    files,
    kill,
    limits,
    log_end,
    payloads_of,
    record,
)
from tubemq_spark.embedded.log.store import Store, StoreSettings

PARTITIONS = st.integers(0, 2)
PAYLOADS = st.binary(min_size=1, max_size=60)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tubemq-store-"))
        self.messages = []  # (partition, payload), one for every offset ever given, from 0 on
        self.flushed = 0

    @initialize(data_bytes=st.integers(1, 600), index_entries=st.integers(1, 8))
    def open(self, data_bytes, index_entries):
        self.settings = StoreSettings(
            data_segment_bytes=data_bytes, index_segment_bytes=index_entries * ENTRY_BYTES
        )
        self._reopen()

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.directory)

    def _reopen(self):
        self.store = Store(self.directory, self.settings)
        self.flushed = len(self.messages)

    def _data_end(self, count):
        return sum(HEADER_BYTES + len(payload) for _, payload in self.messages[:count])

    def _ends(self, suffix, flushed):
        """Where a log may end after a power failure: a file with a successor was flushed before."""
        return st.integers(
            max(flushed, int(files(self.directory, suffix)[-1].stem)), log_end(self.directory, suffix)
        )

    @rule(batch=st.lists(st.tuples(PARTITIONS, PAYLOADS), min_size=1, max_size=6))
    def append(self, batch):
        appended = self.store.append([record(payload, partition) for partition, payload in batch])
        assert appended.offset == len(self.messages) * ENTRY_BYTES
        self.messages += batch

    @rule(
        partition=PARTITIONS,
        part=st.floats(0, 1),
        max_bytes=st.integers(1, 400),
        max_entries=st.integers(1, 10),
        halve=st.booleans(),
    )
    def read(self, partition, part, max_bytes, max_entries, halve):
        bounds = self.store.bounds
        first = bounds.earliest // ENTRY_BYTES
        start = first + int(part * (len(self.messages) - first))
        some = limits(self.store, max_bytes=max_bytes, max_entries=max_entries, halve=halve)
        batch = self.store.read(partition, start * ENTRY_BYTES, some)
        if batch is None:
            assert start == len(self.messages)
            return
        end = batch.next_offset // ENTRY_BYTES
        assert start < end <= start + max_entries
        seen = [payload for owner, payload in self.messages[start:end] if owner == partition]
        assert payloads_of(batch) == seen
        sizes = [HEADER_BYTES + len(payload) for payload in seen]
        assert sum(sizes[:-1]) < max_bytes
        assert batch.data_end == self._data_end(end)

    @rule()
    def flush(self):
        self.store.flush()
        self.flushed = len(self.messages)

    @rule(roll=st.booleans())
    def expire(self, roll):
        before = self.store.bounds.earliest
        expired = any(len(files(self.directory, suffix)) > 1 for suffix in (".tube", ".index"))
        after = self.store.expire(0, roll=roll)
        if roll or expired:
            self.flushed = len(self.messages)
        assert before <= after <= len(self.messages) * ENTRY_BYTES
        assert not roll or after == len(self.messages) * ENTRY_BYTES

    @rule()
    def rest(self):
        """Whatever comes next opens the files again."""
        self.store.rest()
        assert self.store.resting
        assert self.store.open_files == 0
        self.flushed = len(self.messages)

    @rule()
    def restart(self):
        self.store.close()
        self._reopen()

    @rule(garbage=st.binary(max_size=100), index_garbage=st.binary(max_size=60))
    def kill_in_the_middle_of_a_write(self, garbage, index_garbage):
        """The process dies during an append that was not acknowledged."""
        kill(self.store)
        extend_log(self.directory, ".tube", garbage)
        extend_log(self.directory, ".index", index_garbage)
        self._reopen()

    @precondition(lambda self: len(self.messages) > self.flushed)
    @rule(data=st.data())
    def lose_power(self, data):
        """Some bytes that were not flushed are lost, independently in each log."""
        kill(self.store)
        index_end = data.draw(self._ends(".index", self.flushed * ENTRY_BYTES))
        data_end = data.draw(self._ends(".tube", self._data_end(self.flushed)))
        cut_log(self.directory, ".index", index_end)
        cut_log(self.directory, ".tube", data_end)
        whole = index_end // ENTRY_BYTES
        while self._data_end(whole) > data_end:
            whole -= 1
        del self.messages[whole:]
        self._reopen()

    @invariant()
    def bounds_are_those_of_the_list(self):
        if hasattr(self, "store"):
            bounds = self.store.bounds
            assert bounds.latest == len(self.messages) * ENTRY_BYTES
            assert bounds.data_latest == self._data_end(len(self.messages))
            assert bounds.flushed == self.flushed * ENTRY_BYTES
            assert 0 <= bounds.earliest <= bounds.latest


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestStore = StoreMachine.TestCase
