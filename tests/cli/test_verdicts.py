"""What manifests say must be there, and what it means that something else is."""

import dataclasses
import datetime
import itertools

from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.cli.verification import (
    Check,
    Finding,
    RangeContents,
    RangeVerdict,
    checks_of,
    neighbours_of,
    together,
)
from tubemq_spark.files.manifests import Manifest, Outcome, WriteId
from tubemq_spark.model import MicroBatch, OffsetRange, TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.receipts import Receipt

NOON = datetime.datetime(2026, 3, 4, 12, tzinfo=datetime.UTC)
ONE, TWO = TopicPartition("demo", 1, 0), TopicPartition("demo", 2, 0)


def manifest(*receipts, number=0, outcome=Outcome.WRITTEN, uid_prefix=None, **options):
    write = WriteId(MicroBatch("query", number))
    return Manifest(outcome, write, NOON, options, sum(one.count for one in receipts), receipts, uid_prefix)


def receipt(first, last, count, partition=ONE):
    return Receipt(partition, count, 28 * first, 28 * last, bytes=count * 10, checksum=count * 1_000)


def checks(*manifests):
    return checks_of((f"m{number}", one) for number, one in enumerate(manifests))


def places(found):
    return [
        (str(one.range.partition), one.range.start // 28, one.range.end // 28, one.files) for one in found
    ]


def test_writes_one_after_the_other_are_checked_one_by_one():
    found = checks(manifest(receipt(5, 9, 5), receipt(0, 3, 2, TWO)), manifest(receipt(0, 4, 5)))
    assert places(found) == [
        ("demo/1:0", 0, 5, ("m1",)),
        ("demo/1:0", 5, 10, ("m0",)),
        ("demo/2:0", 0, 4, ("m0",)),
    ]
    assert [(one.count, one.bytes, one.checksum) for one in found] == [
        (5, 50, 5_000),
        (5, 50, 5_000),
        (2, 20, 2_000),
    ]
    assert [one.entries for one in found] == [5, 5, 4]


def test_writes_that_overlap_are_checked_together():
    found = checks(
        manifest(receipt(0, 9, 5)),
        manifest(receipt(3, 5, 1)),
        manifest(receipt(9, 12, 3)),
        manifest(receipt(13, 13, 1)),
    )
    assert places(found) == [("demo/1:0", 0, 13, ("m0", "m1", "m2")), ("demo/1:0", 13, 14, ("m3",))]
    assert (found[0].count, found[0].checksum) == (9, 9_000)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(1, 9)), max_size=12))
def test_every_receipt_is_in_one_check_and_checks_do_not_overlap(spans):
    found = checks(*(manifest(receipt(first, first + more, count)) for first, more, count in spans))
    files = [name for one in found for name in one.files]
    assert sorted(files) == sorted(f"m{number}" for number in range(len(spans)))
    assert sum(one.count for one in found) == sum(count for _, _, count in spans)
    for one, other in itertools.pairwise(found):
        assert one.range.end <= other.range.start


def test_ids_help_when_all_writes_have_them():
    assert checks(manifest(receipt(0, 9, 5), uid_prefix="a"))[0].uid_prefixes == {"a"}
    both = manifest(receipt(0, 9, 5), uid_prefix="a"), manifest(receipt(3, 9, 1), uid_prefix="b")
    assert checks(*both)[0].uid_prefixes == {"a", "b"}
    mixed = manifest(receipt(0, 9, 5), uid_prefix="a"), manifest(receipt(3, 9, 1))
    assert checks(*mixed)[0].uid_prefixes == frozenset()


def test_of_a_write_that_was_aborted_and_repeated_the_repetition_counts():
    """Its rows have the same ids as before."""
    aborted = manifest(receipt(0, 9, 5), outcome=Outcome.ABORTED, uid_prefix="a")
    written = manifest(receipt(7, 20, 8), uid_prefix="a")
    (check,) = checks(aborted, written)
    assert (check.count, check.uid_prefixes, check.range.start) == (8, {"a"}, 0)
    assert check.files == ("m0", "m1")
    without_ids = [dataclasses.replace(one, uid_prefix=None) for one in (aborted, written)]
    assert checks(*without_ids)[0].count == 13


def test_ids_of_a_write_that_was_aborted_twice_do_not_help():
    """No id is known to be in both."""
    aborted = manifest(receipt(0, 9, 5), outcome=Outcome.ABORTED, uid_prefix="a")
    (check,) = checks(aborted, aborted)
    assert (check.count, check.uid_prefixes) == (10, frozenset())


def test_ids_of_two_writes_of_one_micro_batch_do_not_help():
    """By foreachBatch: equal rows of both have the same id."""
    (check,) = checks(manifest(receipt(0, 9, 5), uid_prefix="a"), manifest(receipt(9, 12, 3), uid_prefix="a"))
    assert (check.count, check.uid_prefixes) == (8, frozenset())


def test_dead_letters_have_no_ids():
    written = manifest(
        receipt(0, 9, 5),
        receipt(0, 3, 2, TopicPartition("dead", 1, 0)),
        uid_prefix="a",
        deadLetterTopic="dead",
    )
    dead, sound = checks(written)
    assert (dead.uid_prefixes, sound.uid_prefixes) == (frozenset(), {"a"})


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9), st.sampled_from([ONE, TWO])), max_size=12))
def test_neighbours_are_all_checks_in_their_order_of_one_partition_and_close(spans):
    found = checks(*(manifest(receipt(first, first + more, 1, place)) for first, more, place in spans))
    neighbours = neighbours_of(found)
    assert [one for some in neighbours for one in some] == found
    for some in neighbours:
        whole = together(some)
        assert {one.range.partition for one in some} == {whole.range.partition}
        assert whole.entries <= 2 * sum(one.entries for one in some)
        assert whole.count == sum(one.count for one in some)


def test_micro_batches_one_behind_the_other_are_neighbours_until_they_are_many():
    found = checks(*(manifest(receipt(1_000 * number, 1_000 * number + 999, 1_000)) for number in range(500)))
    assert [len(some) for some in neighbours_of(found)] == [262, 238]
    apart = checks(manifest(receipt(0, 9, 10)), manifest(receipt(31, 40, 10)), manifest(receipt(41, 41, 1)))
    assert [len(some) for some in neighbours_of(apart)] == [1, 2]


def test_ids_of_neighbours_help_when_all_have_them():
    one, other = (
        Check(OffsetRange(ONE, first, first + 28), ("m",), 1, 1, 1, frozenset(prefixes))
        for first, prefixes in ((0, "a"), (28, "b"))
    )
    assert together([one, other]).uid_prefixes == {"a", "b"}
    assert together([one, dataclasses.replace(other, uid_prefixes=frozenset())]).uid_prefixes == frozenset()


CHECK = Check(OffsetRange(ONE, 28, 308), ("m",), 10, 100, 4_000, frozenset())
AS_SENT = {"count": 10, "bytes": 100, "checksum": 4_000}


def loss(kind):
    return LossRecord(kind, ONE, 28, 56)


@in_one_test(
    ("found", "verdict", "text"),
    [
        (AS_SENT, RangeVerdict.INTACT, ""),
        (AS_SENT | {"copies": 0, "others": 4}, RangeVerdict.INTACT, "4 messages of others"),
        (AS_SENT | {"copies": 2, "others": 0}, RangeVerdict.REPEATED, "2 copies"),
        # Of others in the same store.
        (
            AS_SENT | {"losses": [loss(Loss.CORRUPT)]},
            RangeVerdict.INTACT,
            "corrupt between the offsets 28 and 56",
        ),
        (AS_SENT | {"error": "[X] gone."}, RangeVerdict.UNREADABLE, "[X] gone."),
        ({"count": 9, "bytes": 90, "checksum": 3_600}, RangeVerdict.MISSING, ""),
        ({"count": 10, "bytes": 100, "checksum": 4_001}, RangeVerdict.CHANGED, ""),
        ({"count": 10, "bytes": 101, "checksum": 4_000}, RangeVerdict.CHANGED, ""),
        (
            {"count": 12, "bytes": 120, "checksum": 4_800},
            RangeVerdict.UNCLEAR,
            "2 more than were acknowledged: of other",
        ),
        (
            {"count": 12, "bytes": 120, "checksum": 1, "copies": 0, "others": 0},
            RangeVerdict.UNCLEAR,
            "2 more than were acknowledged: of tasks that failed",
        ),
        ({"losses": [loss(Loss.TOPIC_REMOVED)]}, RangeVerdict.REMOVED, "topic removed"),
        ({"losses": [loss(Loss.PARTITION_REMOVED)]}, RangeVerdict.REMOVED, "partition removed"),
        (
            {"count": 9, "losses": [loss(Loss.EXPIRED)]},
            RangeVerdict.EXPIRED,
            "expired between the offsets 28 and 56",
        ),
        ({"count": 13, "losses": [loss(Loss.EXPIRED)]}, RangeVerdict.EXPIRED, "expired"),
        ({"count": 13, "losses": [loss(Loss.TRUNCATED)]}, RangeVerdict.MISSING, "truncated"),
        ({"count": 9, "losses": [loss(Loss.CORRUPT)]}, RangeVerdict.DAMAGED, "corrupt"),
        ({"count": 9, "losses": [loss(Loss.SKIPPED)]}, RangeVerdict.DAMAGED, "skipped"),
        ({"count": 11, "losses": [loss(Loss.CORRUPT)]}, RangeVerdict.UNCLEAR, "corrupt"),
        ({"count": 9, "losses": [loss(Loss.CORRUPT), loss(Loss.EXPIRED)]}, RangeVerdict.EXPIRED, "corrupt"),
        # What retention has not removed must be there.
        ({"count": 8, "losses": [loss(Loss.EXPIRED)]}, RangeVerdict.MISSING, "expired"),
        ({"count": 8, "losses": [loss(Loss.CORRUPT), loss(Loss.EXPIRED)]}, RangeVerdict.DAMAGED, "corrupt"),
        (
            {"count": 9, "losses": [loss(Loss.EXPIRED), loss(Loss.TRUNCATED)]},
            RangeVerdict.MISSING,
            "truncated",
        ),
    ],
)
def test_each_outcome_of_a_check_has_one_verdict(found, verdict, text):
    finding = Finding(CHECK, RangeContents(**found))
    assert finding.verdict is verdict
    assert text in finding.text
    assert bool(text) == bool(finding.text)
    assert finding.missing == max(0, 10 - finding.contents.count)


def test_many_losses_are_told_shortly():
    losses = [LossRecord(Loss.CORRUPT, ONE, 56 * number, 56 * number + 28, 1) for number in range(9)]
    text = Finding(CHECK, RangeContents(losses=losses)).text
    assert text.count("corrupt between") == 3
    assert text.endswith("and 6 more gaps")
    one_gap = [LossRecord(Loss.CORRUPT, ONE, 28 * number, 28 * number + 28, 1) for number in range(9)]
    assert Finding(CHECK, RangeContents(losses=one_gap)).text == "corrupt between the offsets 0 and 252"
