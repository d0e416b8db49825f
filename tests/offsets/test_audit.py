from hypothesis import given, strategies as st

from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.model import OffsetBounds
from tubemq_spark.offsets.audit import Audit, audit, removals, stores_resumed_at_earliest
from tubemq_spark.offsets.loss import Loss, LossRecord

ZERO, TWIN, ONE, OTHER = tp("demo/1:0"), tp("demo/1:1"), tp("demo/1:10000"), tp("orders/2:0")
BOUNDS = {ZERO.store_id: OffsetBounds(280, 560), OTHER.store_id: OffsetBounds(0, 28)}


def test_an_audit_without_losses_keeps_all_positions():
    known = {ZERO: 280, OTHER: 28}
    assert audit(known, known.keys(), BOUNDS) == Audit(known, {}, ())


def test_the_partitions_of_a_new_store_begin_at_its_earliest_offset():
    found = audit({OTHER: 28}, [ZERO, TWIN, OTHER], BOUNDS)
    assert found == Audit({ZERO: 280, TWIN: 280, OTHER: 28}, {ZERO: 280, TWIN: 280}, ())


def test_a_partition_that_appears_in_a_known_store_does_not_begin_with_the_old_records_of_others():
    """Nothing below the planned position can be its own, and a big store has millions of these."""
    found = audit({ZERO: 560}, [ZERO, TWIN], BOUNDS)
    assert found == Audit({ZERO: 560, TWIN: 560}, {TWIN: 560}, ())

    third = tp("demo/1:2")
    found = audit({ZERO: 308, third: 336}, [ZERO, TWIN, third], BOUNDS)
    assert found.appeared == {TWIN: 336}


def test_a_partition_that_appears_in_a_known_store_is_taken_up_inside_the_log():
    assert audit({ZERO: 0}, [ZERO, TWIN], BOUNDS).losses == (
        LossRecord(Loss.EXPIRED, ZERO, 0, 280),
        LossRecord(Loss.EXPIRED, TWIN, 0, 280),
    )
    assert audit({ZERO: 588}, [ZERO, TWIN], BOUNDS).appeared == {TWIN: 560}


def test_records_of_a_new_partition_that_expired_before_it_was_seen():
    bounds = {ZERO.store_id: OffsetBounds(280, 560), ONE.store_id: OffsetBounds(28, 28)}
    found = audit({ZERO: 252}, [ZERO, TWIN, ONE], bounds)
    assert found.appeared == {TWIN: 280, ONE: 28}
    assert found.losses == (
        LossRecord(Loss.EXPIRED, ZERO, 252, 280),
        LossRecord(Loss.EXPIRED, TWIN, 252, 280),  # of a store that is read up to there
        LossRecord(Loss.EXPIRED, ONE, 0, 28),  # of a store that is new to a known topic
    )


def test_a_topic_added_to_the_subscription_has_lost_nothing():
    """Its older records expired before anybody asked for them."""
    found = audit({OTHER: 28}, [ZERO, OTHER], BOUNDS)
    assert found == Audit({ZERO: 280, OTHER: 28}, {ZERO: 280}, ())


def test_gone_partitions_and_topics_are_told_apart():
    found = audit({ZERO: 560, ONE: 28, OTHER: 0}, [ZERO], BOUNDS)
    assert found.positions == {ZERO: 560}
    assert found.losses == (
        LossRecord(Loss.PARTITION_REMOVED, ONE, 28, 28),
        LossRecord(Loss.TOPIC_REMOVED, OTHER, 0, 0),
    )


def test_expired_records_and_a_log_that_moved_back():
    found = audit({ZERO: 252, TWIN: 588, OTHER: 56}, [OTHER, TWIN, ZERO], BOUNDS)
    assert found.positions == {ZERO: 280, TWIN: 560, OTHER: 28}
    assert found.losses == (
        LossRecord(Loss.EXPIRED, ZERO, 252, 280),
        LossRecord(Loss.MOVED_BACK, TWIN, 560, 588),
        LossRecord(Loss.MOVED_BACK, OTHER, 28, 56),
    )


def test_losses_of_any_kind_are_in_the_order_of_their_partitions():
    """They are known in another: first what is removed, then the known partitions, then the new ones."""
    known = {tp("demo/2:0"): 0, tp("demo/3:0"): 28, tp("demo/5:0"): 0}
    partitions = [tp(f"demo/{broker}:0") for broker in (4, 3, 2, 1)]
    bounds = {partition.store_id: OffsetBounds(280, 560) for partition in partitions}
    lost = [(record.partition.broker_id, record.loss) for record in audit(known, partitions, bounds).losses]
    assert lost == [*((broker, Loss.EXPIRED) for broker in (1, 2, 3, 4)), (5, Loss.PARTITION_REMOVED)]


def test_a_partition_that_cannot_be_read_now_stays_where_it_is():
    """Its broker is away for a while: neither lost nor, if it is new, taken up without a begin."""
    found = audit({ONE: 84}, [ONE, tp("demo/3:0")], {})
    assert found == Audit({ONE: 84}, {}, ())


@given(own.offset_maps, st.sets(own.partitions), st.data())
def test_every_partition_is_accounted_for(known, partitions, data):
    partitions |= data.draw(st.sets(st.sampled_from(sorted(known)))) if known else set()
    reachable = [store for store in sorted({p.store_id for p in partitions}) if data.draw(st.booleans())]
    bounds = {store: data.draw(own.bounds()) for store in reachable}
    found = audit(known, partitions, bounds)

    assert found.positions.keys() <= partitions
    assert partitions - found.positions.keys() == {
        p for p in partitions if p not in known and p.store_id not in bounds
    }
    assert found.appeared.keys() == found.positions.keys() - known.keys()
    lost = {record.partition for record in found.losses}
    assert lost >= known.keys() - partitions
    for partition, position in found.positions.items():
        held = bounds.get(partition.store_id)
        assert held is None or held.earliest <= position <= held.latest
        assert partition not in known or (partition in lost) == (known[partition] != position)
    assert all(record.start <= record.end for record in found.losses)


def test_stores_at_whose_beginning_reading_would_begin():
    known = {ZERO: 252, tp("demo/7:0"): 28}
    assert stores_resumed_at_earliest(known, [ZERO, ONE, OTHER, tp("demo/7:0"), tp("demo/8:0")], BOUNDS) == {
        ZERO.store_id,  # fell behind
        OTHER.store_id,  # is new
    }
    assert stores_resumed_at_earliest({ZERO: 280}, [ZERO, TWIN], BOUNDS) == set()


def test_removals_of_nothing():
    assert removals({}, [ZERO]) == []
    assert removals({ZERO: 28}, [ZERO, ONE]) == []
