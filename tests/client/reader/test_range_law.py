"""Whatever goes wrong, a range brings exactly its records."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from testkit.examples import examples
from tests.client import model_broker as model
from tests.client.model_broker import Entry, ModelBroker, Store
from tests.client.ranges import ROW, SMALL, STORE, batches, broker_of, limits, partition, read, values_of
from tubemq_spark.offsets.loss import LossRecorder
from tubemq_spark.protocol.constants import Method

pytestmark = [pytest.mark.sampled, pytest.mark.usefixtures("quick_retries")]

entries = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=40), st.sampled_from([True] * 9 + [False])), max_size=40
)
faults = st.dictionaries(st.integers(0, 60), st.sampled_from(list(model.QUICK_FAULTS.values())), max_size=6)
slow_faults = st.dictionaries(
    st.integers(0, 40), st.sampled_from(list(model.SLOW_FAULTS.values())), max_size=2
)


def law_holds(rows, partitions, flushed, most, places, faults, **changes):
    """Read every partition in pieces; each piece must bring exactly its records."""
    store = Store(flushed=min(flushed, len(rows)))
    for number, (index, value, readable) in enumerate(rows):
        store.entries.append(Entry(index % partitions, value, 1_000_003 * number % 999_983, readable))
    cuts = sorted({0, len(rows), *(place % (len(rows) + 1) for place in places)})
    with ModelBroker({STORE: store}, partitions, most) as broker:
        broker.faults = dict(faults)
        # Only who has a store alone can tell that records were passed over.
        losses = LossRecorder()
        ways = [{}, {"known": {"own_store": True}, "on_loss": losses}][: 3 - min(partitions, 2)]
        for way, number in itertools.product(ways, range(partitions)):
            for start, end in itertools.pairwise(cut * ROW for cut in cuts):
                expected = broker.truth(partition(number), start, end)
                assert read(broker, start, end, number, **way, **changes) == expected
        assert not losses.records or not all(entry.readable for entry in store.entries)
        assert not broker.leases() or faults


@settings(max_examples=examples(30, by_night=375), deadline=None)
@given(entries, st.integers(1, 3), st.integers(0, 40), limits, st.lists(st.integers(0, 40), max_size=4))
def test_ranges_bring_exactly_their_records(rows, partitions, flushed, most, places):
    law_holds(rows, partitions, flushed, most, places, {})


@settings(max_examples=examples(30, by_night=375), deadline=None)
@given(
    entries, st.integers(1, 3), st.integers(0, 40), limits, st.lists(st.integers(0, 40), max_size=3), faults
)
def test_whatever_goes_wrong_ranges_bring_exactly_their_records(
    rows, partitions, flushed, most, places, faults
):
    law_holds(rows, partitions, flushed, most, places, faults)


@settings(max_examples=25, deadline=None)
@given(
    entries,
    st.integers(1, 3),
    st.integers(0, 40),
    limits,
    st.lists(st.integers(0, 40), max_size=2),
    slow_faults,
)
def test_unanswered_and_late_requests_change_nothing(rows, partitions, flushed, most, places, faults):
    law_holds(rows, partitions, flushed, most, places, faults, rpc_timeout_ms=40)


@settings(max_examples=examples(30, by_night=375), deadline=None)
@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=20),
    st.integers(0, 40),
    limits,
    st.lists(st.integers(0, 40), max_size=4),
)
def test_partitions_that_are_added_to_a_store_change_nothing_before_them(old, new, flushed, most, places):
    """A repeated attempt reads a range as it was planned, though the store is shared by now."""
    store = Store(flushed=min(flushed, len(old) + len(new)))
    for number, (index, value) in enumerate([*((0, value) for value in old), *new]):
        store.entries.append(Entry(index, value, 1_000_003 * number % 999_983))
    cuts = sorted({0, len(old), *(place % (len(old) + 1) for place in places)})
    with ModelBroker({STORE: store}, 3, most) as broker:
        for start, end in itertools.pairwise(cut * ROW for cut in cuts):
            found = list(batches(broker, start, end, known={"own_store": True}))
            assert all(batch.dense for batch in found)
            assert [value for batch in found for value in values_of(batch)] == old[start // ROW : end // ROW]


QUICK = {name: (fault, 2_000) for name, fault in model.QUICK_FAULTS.items()}
SLOW = {name: (fault, 30) for name, fault in model.SLOW_FAULTS.items()}


@pytest.mark.parametrize("method", [Method.PARTITION_REGISTER, Method.GET_MESSAGE, Method.COMMIT_OFFSET])
@pytest.mark.parametrize(("fault", "rpc_timeout_ms"), [*QUICK.values(), *SLOW.values()], ids=[*QUICK, *SLOW])
@pytest.mark.parametrize("partitions", [1, 2], ids=["own store", "shared store"])
def test_every_fault_at_every_request_of_a_kind(method, fault, rpc_timeout_ms, partitions):
    own = {"own_store": partitions == 1}
    with broker_of(12, partitions=partitions, flushed=6, limits=SMALL) as broker:
        truth = broker.truth(partition(), 56, 280)
        for place in itertools.count():
            broker.fault_of_method[method] = [model.nothing] * place + [fault]
            assert read(broker, 56, 280, rpc_timeout_ms=rpc_timeout_ms, known=own) == truth
            if broker.fault_of_method[method]:
                break
        assert place > 1
