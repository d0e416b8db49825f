"""Manifests of what was written: what their files say, and how they are named.

A manifest is about one *write*: a micro-batch of a streaming query, or one run of a batch write. It has the
receipts of the brokers, one per partition, and the driver makes it when all tasks have ended.

- ``written``: the write is complete. The name of its file says which write it is, so that a query that
  repeats a micro-batch sees that it was written before. Such a file never changes.
- ``aborted``: the write failed. The manifest has what the tasks that ended well had stored; what the
  others had sent is unknown. A micro-batch may have several of these, and a complete one besides.

Manifests and ledgers are JSON, written in one way only (``canonical``), and read with errors that name the
file (``read_record``). Every such object has a version ``v``. Releases read what older ones wrote, and refuse
what newer ones did.
"""

import dataclasses
import datetime
import enum
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from tubemq_spark.errors import ManifestFormatError, TubeMQError
from tubemq_spark.model import MicroBatch, TopicPartition
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

VERSION: Final = 1
SUFFIX: Final = ".json"
_BATCH_DIGITS: Final = 10
"""Of a micro-batch's number in a file's name: the order of names is that of numbers."""
_DIGEST_DIGITS: Final = 16
_DEAD_LETTER_TOPIC: Final = "deadLetterTopic"


class Outcome(enum.Enum):
    """How a write ended; the value stands in manifests."""

    WRITTEN = "written"
    ABORTED = "aborted"


@dataclasses.dataclass(frozen=True, slots=True)
class WriteId:
    """Which write; one of both is always known."""

    micro_batch: MicroBatch | None = None
    """The micro-batch that was written, or in which a batch write ran (``foreachBatch``)."""
    run_id: str | None = None
    """Names one run of a batch write; None for the micro-batch of a streaming write."""

    @property
    def name(self) -> str:
        """The name of the file of its manifest when it is complete, without the suffix."""
        if self.micro_batch is None or self.run_id is not None:
            return f"run-{self.run_id}"
        return f"query-{self.micro_batch.query_id}-batch-{self.micro_batch.batch_id:0{_BATCH_DIGITS}}"

    def __str__(self) -> str:
        return str(self.micro_batch) if self.run_id is None else f"batch write {self.run_id}"


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What one write has stored, as brokers acknowledged it."""

    outcome: Outcome
    write: WriteId
    time: datetime.datetime
    """When all tasks had ended, in UTC."""
    options: Mapping[str, str]
    """The options of the write; of those of the connection only the masters."""
    rows: int
    """How many rows the tasks had, those of tasks that failed left out."""
    receipts: tuple[Receipt, ...]
    """One per partition, in the partitions' order; each has a checksum."""
    uid_prefix: str | None = None
    """How the ids of all messages begin (``messageUid``), those of dead letters left out; None when some
    have none, or the user's own."""

    @property
    def checksum(self) -> int:
        """The checksum of all messages together."""
        return sum(receipt.checksum or 0 for receipt in self.receipts) % CHECKSUM_MODULUS

    def uid_prefix_in(self, topic: str) -> str | None:
        """Return how the ids of all messages of a topic begin; None when that is unknown."""
        return None if topic == self.options.get(_DEAD_LETTER_TOPIC) else self.uid_prefix

    @property
    def name(self) -> str:
        """The name of its file, without the suffix."""
        if self.outcome is Outcome.WRITTEN:
            return self.write.name
        return f"aborted-{hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST_DIGITS]}"

    @property
    def text(self) -> str:
        """The text of its file."""
        batch = self.write.micro_batch
        return canonical(
            {
                "v": VERSION,
                "outcome": self.outcome.value,
                "queryId": None if batch is None else batch.query_id,
                "batchId": None if batch is None else batch.batch_id,
                "runId": self.write.run_id,
                "time": self.time.astimezone(datetime.UTC).isoformat(timespec="milliseconds"),
                "options": dict(self.options),
                "rows": self.rows,
                "uidPrefix": self.uid_prefix,
                "partitions": [_to_json(receipt) for receipt in self.receipts],
            }
        )


def manifest_of(text: str, source: str) -> Manifest:
    """Return the manifest in a file."""

    def malformed(problem: str) -> ManifestFormatError:
        return ManifestFormatError("TUBEMQ_MANIFEST_MALFORMED", source=source, problem=problem)

    return read_record(text, source, VERSION, _manifest, malformed)


def _manifest(data: dict[str, Any]) -> Manifest:
    query, batch = optional_text(data["queryId"]), optional_int(data["batchId"])
    run = optional_text(data["runId"])
    if (query is None) != (batch is None) or (query is None and run is None):
        raise ValueError("it names neither a micro-batch nor a run")
    micro_batch = None if query is None or batch is None else MicroBatch(query, batch)
    return Manifest(
        Outcome(data["outcome"]),
        WriteId(micro_batch, run),
        datetime.datetime.fromisoformat(data["time"]).astimezone(datetime.UTC),
        {str(name): str(value) for name, value in dict(data["options"]).items()},
        int(data["rows"]),
        tuple(_receipt(receipt) for receipt in data["partitions"]),
        optional_text(data["uidPrefix"]),
    )


def _receipt(data: dict[str, Any]) -> Receipt:
    receipt = Receipt(
        TopicPartition(str(data["topic"]), int(data["brokerId"]), int(data["partition"])),
        int(data["count"]),
        int(data["firstOffset"]),
        int(data["lastOffset"]),
        int(data["retried"]),
        int(data["unanswered"]),
        int(data["bytes"]),
        int(data["checksum"]),
    )
    if not 0 <= receipt.first_offset <= receipt.last_offset:
        raise ValueError(
            f"{receipt.partition} has no offsets {receipt.first_offset} to {receipt.last_offset}"
        )
    return receipt


def _to_json(receipt: Receipt) -> dict[str, Any]:
    return {
        "topic": receipt.partition.topic,
        "brokerId": receipt.partition.broker_id,
        "partition": receipt.partition.partition_id,
        "firstOffset": receipt.first_offset,
        "lastOffset": receipt.last_offset,
        "count": receipt.count,
        "bytes": receipt.bytes,
        # A text: above 2**53 many readers of JSON would round a number.
        "checksum": str(receipt.checksum),
        "retried": receipt.retried,
        "unanswered": receipt.unanswered,
    }


Record = TypeVar("Record")


def canonical(value: object) -> str:
    """Return the one text of a value: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def read_record(
    text: str,
    source: str,
    version: int,
    make: Callable[[dict[str, Any]], Record],
    malformed: Callable[[str], TubeMQError],
) -> Record:
    """Return the record that ``make`` makes of the object in a file, or raise an error of ``malformed``."""
    try:
        data = json.loads(text)
        data_version = int(data["v"])
        record = make(data) if data_version <= version else None
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise malformed(f"{type(error).__name__}: {error}") from None
    if record is None:
        raise type(malformed(""))(
            "TUBEMQ_OFFSETS_VERSION", source=source, version=data_version, supported=version
        )
    return record


def optional_int(value: str | int | None) -> int | None:
    """Return a number that may be absent."""
    return None if value is None else int(value)


def optional_text(value: object) -> str | None:
    """Return a text that may be absent."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is not a text")
