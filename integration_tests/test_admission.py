"""How large micro-batches are: limits of bytes and of rows, alone and together."""

import random

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import Sample, assert_same_rows, produce, produce_numbers
from integration_tests.rig.queries import Collected, read_stream, run, start

pytestmark = pytest.mark.timeout(300)

ROWS = 4_000
LIMIT = 3_000_000
PRECISION = 0.2
"""How far micro-batches may be from the limit here, where sizes are spread evenly from almost 0 to 8000. A
sample has about 130 rows, so its mean is 5 % off in two of three cases."""
PATIENCE_SECONDS = 60


class Weighed(Collected):
    """Keeps how many bytes each micro-batch has as well."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def __call__(self, frame, batch):
        rows = frame.select("value", "attributes").collect()
        self.batches.append((batch, [int(row.value) for row in rows]))
        self.weights.append(sum(len(row.value) + text_length(row.attributes) for row in rows))


def text_length(attributes):
    """Return the length of attributes as TubeMQ stores them, ``name=value,name=value``."""
    return len(",".join(f"{name}={value}" for name, value in attributes.items())) if attributes else 0


def body(number, size):
    """Return a number as text with blanks in front."""
    return b"%*d" % (size, number)


@pytest.mark.parametrize("shape", ["3x1", "2x3"])
def test_bytes_are_limited_as_precisely_as_the_page_says(spark, server, shape, tmp_path):
    """Every micro-batch but the last is about as large as the limit, whatever the stores."""
    chance = random.Random(7)
    topic = server.fresh_topic(shape)
    rows = (Sample(body(number, chance.randint(4, 8_000)), (("k", "v"),)) for number in range(ROWS))
    produce(server.master, topic, rows)
    sink = Weighed()
    stream = read_stream(spark, server, topic, maxBytesPerTrigger=str(LIMIT), includeAttributes="true")

    run(stream, sink, tmp_path)

    assert_same_rows(sink.rows, range(ROWS))
    *full, rest = sink.weights
    assert len(full) >= 4, sink.weights
    assert all(abs(weight - LIMIT) <= PRECISION * LIMIT for weight in full), sink.weights
    assert rest <= (1 + PRECISION) * LIMIT


@pytest.mark.any_server
def test_rows_wait_for_others_while_a_limit_of_bytes_is_set(spark, server, tmp_path):
    """All limits at once: the minimum holds few rows back, and the delay ends that."""
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(30), width=1_000)
    sink = Collected()
    limits = {
        "minOffsetsPerTrigger": "10",
        "maxOffsetsPerTrigger": "12",
        "maxBytesPerTrigger": "9k",
        "maxTriggerDelay": "4s",
    }
    query = start(read_stream(spark, server, topic, **limits), sink, tmp_path, processingTime="0 seconds")
    wait_until(lambda: len(sink.rows) >= 21, timeout_s=PATIENCE_SECONDS, what="the rows above the minimum")
    wait_until(lambda: len(sink.rows) == 30, timeout_s=PATIENCE_SECONDS, what="the rows below the minimum")
    query.stop()

    assert_same_rows(sink.rows, range(30))
    assert all(len(rows) <= 12 for _, rows in sink.batches)
    by_bytes = 9 * 1024 // 1_000
    assert max(len(rows) for _, rows in sink.batches) <= by_bytes + 3, "each store's share is rounded up"
