"""What a row costs between the answer to a fetch and the record batch for Spark, by both twins.

    make bench-read-path                    # both twins, in turns
    python benchmarks/read_path.py --rounds 9

The answers are made here; no server and no Spark run. Figures are CPU time per row, the best of all rounds.
"""

import sys
import time
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql.types import StructField, StructType

from benchmarks.twins import Row, compare
from testkit.wire import decode_fetch
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.payload import checksum, encode_payload
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.source.arrow import BatchBuilder
from tubemq_spark.source.schema import arrow_schema, default_schema
from tubemq_spark.spark.columns import READ

FETCH_BYTES = 512 << 10
FETCHES = 40
SIZES = {"100 B": 100, "1 KiB": 1024}
MINUTES = 4
"""How many distinct message times there are in an answer."""
PARTITION = TopicPartition("demo", 1, 0)


def answer(size: int) -> tuple[bytes, int]:
    """Return an answer of about ``FETCH_BYTES`` with message times, and how many messages it has."""
    count = FETCH_BYTES // size
    found = broker_pb2.GetMessageResponseB2C(success=True, errCode=200, currOffset=0, maxOffset=28 * count)
    for number in range(count):
        minute = f"2026010100{number * MINUTES // count:02d}"
        data, flag = encode_payload(b"%012d" % number + b"x" * (size - 12), message_time=minute)
        found.messages.add(messageId=number, checkSum=checksum(data), payLoadData=data, flag=flag)
    return found.SerializeToString(), count


def schemas() -> dict[str, StructType]:
    """Return the asked columns by name."""
    return {
        "value only": StructType([StructField("value", READ["value"].type)]),
        "default": default_schema(include_attributes=False),
        "with attributes": default_schema(include_attributes=True),
    }


def ways(body: bytes, count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is measured, by name."""
    yield "decode", lambda: [decode_fetch(body) for _ in range(FETCHES)]
    for name, schema in schemas().items():
        yield f"decode and build: {name}", lambda schema=schema: build(body, count, schema)


def build(body: bytes, count: int, schema: StructType) -> None:
    """Decode and build as a task does."""
    builder = BatchBuilder(arrow_schema(schema), zoneinfo.ZoneInfo("UTC"))
    for number in range(FETCHES):
        _, columns, _ = decode_fetch(body)
        start = 28 * count * number
        batch = FetchedBatch(PARTITION, start, start + 28 * count, columns, dense=True)
        for _ in builder.add(batch, exact_offsets=True):
            pass
    for _ in builder.finish():
        pass


def measure() -> Iterator[tuple[Row, float]]:
    """Measure everything once; yield CPU us per row."""
    for label, size in SIZES.items():
        body, count = answer(size)
        for name, way in ways(body, count):
            began = time.process_time()
            way()
            yield (label, name), (time.process_time() - began) / (FETCHES * count) * 1e6


if __name__ == "__main__":
    compare(__doc__, ("message", "what"), "us/row", measure)
