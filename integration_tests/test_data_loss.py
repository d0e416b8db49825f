"""Records that are gone are told of, and only ``failOnDataLoss=false`` goes on without them."""

import json

import pytest

from integration_tests.rig.messages import produce_numbers
from integration_tests.rig.queries import (
    Collected,
    collected,
    losses,
    numbers,
    read,
    read_stream,
    refusal,
    run,
)
from integration_tests.rig.servers import VOLATILE_TOPIC

TOLERANT = {"failOnDataLoss": "false"}


def fail(frame, _):
    """Read a micro-batch and let the query end, which then repeats it when it is started again."""
    frame.count()
    raise RuntimeError("this sink fails on purpose")


@pytest.mark.smoke
@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_records_that_expired_before_they_were_read(spark, server, tmp_path):
    """In a batch read of given offsets, and in a stream that stood still too long."""
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(20))
    run(read_stream(spark, server, topic), Collected(), tmp_path)
    produce_numbers(server.master, topic, range(20, 50))
    server.expire(topic)
    produce_numbers(server.master, topic, range(50, 60))

    begin = {"startingOffsets": json.dumps({topic: {"1:0": 28}})}
    condition, sentence = refusal(lambda: read(spark, server, topic, **begin).count())
    assert condition == "TUBEMQ_DATA_LOSS.EXPIRED"
    assert f"{topic}/1:0" in sentence
    assert "offset 28," in sentence
    assert "1400" in sentence
    assert numbers(read(spark, server, topic, **begin, **TOLERANT)) == list(range(50, 60))

    condition, sentence = refusal(lambda: run(read_stream(spark, server, topic), Collected(), tmp_path))
    assert condition == "TUBEMQ_DATA_LOSS.EXPIRED"
    assert "offset 560," in sentence
    assert collected(read_stream(spark, server, topic, **TOLERANT), tmp_path).rows == list(range(50, 60))


@pytest.mark.nightly
def test_records_that_a_crashed_broker_forgot(spark, server, tmp_path):
    """They were read, but the broker had them in memory only, and gives their offsets to others now.

    The ledger has them once: those that a micro-batch was to read, and those that were read.
    """
    planned, checkpoint = tmp_path / "planned", tmp_path / "checkpoint"
    of_planned, of_read = ({**TOLERANT, "lossLedger": str(tmp_path / name)} for name in ("one", "other"))
    produce_numbers(server.master, VOLATILE_TOPIC, range(300))
    assert collected(read_stream(spark, server, VOLATILE_TOPIC), checkpoint).rows == list(range(300))
    with pytest.raises(Exception, match="on purpose"):
        run(read_stream(spark, server, VOLATILE_TOPIC), fail, planned)

    server.crash_broker()
    produce_numbers(server.master, VOLATILE_TOPIC, range(1000, 1010))
    assert server.stored(VOLATILE_TOPIC) == 10

    condition, sentence = refusal(
        lambda: run(read_stream(spark, server, VOLATILE_TOPIC), Collected(), checkpoint)
    )
    assert condition == "TUBEMQ_DATA_LOSS.MOVED_BACK"
    assert f"{VOLATILE_TOPIC}/1:0" in sentence
    with pytest.raises(Exception, match="on purpose"):
        run(read_stream(spark, server, VOLATILE_TOPIC, **of_planned), fail, planned)
    sink = collected(read_stream(spark, server, VOLATILE_TOPIC, **of_planned), planned)
    assert sink.batches[0] == (0, list(range(1000, 1010)))
    place = f"{VOLATILE_TOPIC}/1:0"
    assert losses(spark, of_planned["lossLedger"]) == [
        (place, 280, 8400, 290, "TRUNCATED", 0),
        (place, 280, 8400, None, "MOVED_BACK", None),
    ]

    produce_numbers(server.master, VOLATILE_TOPIC, range(1010, 1020))
    sink = collected(read_stream(spark, server, VOLATILE_TOPIC, **of_read), checkpoint)
    produce_numbers(server.master, VOLATILE_TOPIC, range(1020, 1030))
    run(read_stream(spark, server, VOLATILE_TOPIC, **of_read), sink, checkpoint)
    assert sink.rows == list(range(1020, 1030))
    assert losses(spark, of_read["lossLedger"]) == [(place, 560, 8400, None, "MOVED_BACK", None)]
