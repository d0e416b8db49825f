"""A run of ``availableNow`` that ends before the topic does, is stopped half way, and is gone on with."""

import datetime
import json

import pytest
from pyspark.errors import StreamingQueryException

from integration_tests.rig.messages import Sample, produce
from integration_tests.rig.queries import Collected, collected, read_stream, run, start
from integration_tests.rig.servers import partitions
from testkit.arrow_reads import NOON, ms

SHAPE = "2x3"
PER_MINUTE = 20


def send(server, topic, minutes):
    """Send twenty messages of each minute, whose values are their numbers."""
    produce(
        server.master,
        topic,
        (
            Sample(
                b"%d" % number,
                message_time=f"{NOON + datetime.timedelta(minutes=number // PER_MINUTE):%Y%m%d%H%M}",
            )
            for number in range(PER_MINUTE * minutes[0], PER_MINUTE * minutes[-1] + PER_MINUTE)
        ),
    )


def of_minutes(begin, end):
    return list(range(PER_MINUTE * begin, PER_MINUTE * end))


class Failing(Collected):
    """Fails in its third micro-batch, before it has taken it."""

    def __call__(self, frame, batch):
        if len(self.batches) == 2:
            raise ValueError("the job is stopped")
        super().__call__(frame, batch)


@pytest.mark.parametrize("end", ["a time", pytest.param("offsets", marks=pytest.mark.nightly)])
def test_a_stretch_of_history_is_read_once_however_often_it_is_interrupted(spark, server, tmp_path, end):
    topic = server.fresh_topic(SHAPE)
    send(server, topic, range(20))
    until = ms(12) if end == "a time" else json.dumps({topic: dict.fromkeys(partitions(SHAPE), -1)})
    wanted = of_minutes(0, 12 if end == "a time" else 20)

    def stream(**options):
        return read_stream(spark, server, topic, maxOffsetsPerTrigger="60", **options)

    sink = Failing()
    with pytest.raises(StreamingQueryException, match="the job is stopped"):
        run(stream(availableNowUntil=until), sink, tmp_path)
    later = Collected()
    if end == "a time":
        # Messages that come meanwhile belong to later runs.
        send(server, topic, range(20, 25))
    run(stream(availableNowUntil=until), later, tmp_path)
    assert len(later.batches) > 1
    rows = sink.rows + later.rows
    assert len(rows) == len(set(rows))
    assert set(rows) >= set(wanted)
    # Partitions that share a store end at one place, near the time.
    beyond = sorted(set(rows) - set(wanted))
    assert beyond == [] or (end == "a time" and beyond[-1] < PER_MINUTE * 14)

    if end == "a time":
        assert collected(stream(availableNowUntil=until), tmp_path).rows == []
    run(stream(), later, tmp_path)
    last = 25 if end == "a time" else 20
    assert sorted(sink.rows + later.rows) == of_minutes(0, last)


@pytest.mark.any_server
@pytest.mark.nightly
def test_another_trigger_has_no_end(spark, server, tmp_path):
    topic = server.fresh_topic()
    stream = read_stream(spark, server, topic, availableNowUntil=ms(12))
    query = start(stream, Collected(), tmp_path, processingTime="0 seconds")
    with pytest.raises(StreamingQueryException, match="TUBEMQ_UNTIL_WITHOUT_AVAILABLE_NOW"):
        query.awaitTermination(60)
