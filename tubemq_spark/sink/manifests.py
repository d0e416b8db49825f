"""Writing manifests to the folder that the user names with ``receiptsPath``, and finding them there again.

**Who writes and who reads.** Only the driver writes: one manifest when a write is complete, before Spark
records that it is, or one when it has failed. Tasks of a streaming write look whether their micro-batch has a
manifest before they send anything.

**A micro-batch that is repeated.** Spark repeats a micro-batch whose end it has not recorded. The manifest
tells two cases apart:

- It is not there: tasks may have sent rows, it is unknown which, and all are sent again.
- It is there: brokers had acknowledged all rows when the driver wrote it. Tasks send nothing, and tell the
  driver what they would have sent: how many rows, and a checksum of their values. If that is not what the
  manifest says, these are other rows, none of which is in TubeMQ: the query ends.

The manifest of a complete write never changes: a driver that finds one keeps it.
"""

import dataclasses
import datetime
import logging
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.errors import FolderError, ReplayError
from tubemq_spark.files.manifests import SUFFIX, Manifest, Outcome, WriteId, manifest_of
from tubemq_spark.files.text_files import TextFiles
from tubemq_spark.model import MicroBatch
from tubemq_spark.options import OnReplayDiffers, WriteOptions
from tubemq_spark.protocol.send_batch import running_checksums
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt, merged, summarise
from tubemq_spark.sink.columns import NO_BODY, bytes_column

logger = logging.getLogger(__name__)


_NO_BODY: Final = zlib.crc32(NO_BODY)


class Contents(NamedTuple):
    """Rows that a task had and did not send."""

    rows: int
    checksum: int
    """Of their values, as receipts have it."""


@dataclasses.dataclass
class TubeMQCommitMessage(WriterCommitMessage):
    """What a task wrote: a receipt per partition."""

    receipts: tuple[Receipt, ...]
    rows: int
    """How many rows the task had."""
    micro_batch: MicroBatch | None = None
    """The micro-batch that the task was a part of, which Spark does not tell the driver."""
    replayed: Contents | None = None
    """What was not sent, because the micro-batch was written before; None: everything was sent."""
    dead_letters: int = 0
    """How many of the rows went to the dead letters instead."""
    uid_prefix: str | None = None
    """How the ids of all these rows begin, dead letters left out; None when some have none or their own."""


def ours(messages: Iterable[WriterCommitMessage | None]) -> list[TubeMQCommitMessage]:
    """Return the messages of the tasks that ended well."""
    return [message for message in messages if isinstance(message, TubeMQCommitMessage)]


def receipts_of(messages: Sequence[WriterCommitMessage | None]) -> list[Receipt]:
    """Return what all tasks wrote together, a receipt per partition."""
    return merged(receipt for message in ours(messages) for receipt in message.receipts)


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Say how many rows went to how many partitions and how many may be stored twice, for the log."""
    dead = dead_letters_of(messages)
    return summarise(receipts_of(messages), "row") + (f"; {dead} of them are dead letters" if dead else "")


def dead_letters_of(messages: Iterable[WriterCommitMessage | None]) -> int:
    """Return how many rows of all tasks went to the dead letters."""
    return sum(message.dead_letters for message in ours(messages))


def level(messages: Sequence[WriterCommitMessage | None]) -> int:
    """Return the level of the log at which to say that: a warning when rows may be stored twice."""
    telling = dead_letters_of(messages) or any(receipt.unanswered for receipt in receipts_of(messages))
    return logging.WARNING if telling else logging.INFO


class Manifests:
    """The folder as one process sees it; without ``receiptsPath`` it does nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        folder = options.receipts_path
        self._files = None if folder is None else TextFiles(folder, "receiptsPath", SUFFIX)

    def prepare(self) -> None:
        """Create the folder, and check that it can be written to."""
        if self._files is not None:
            self._files.prepare()

    def has(self, micro_batch: MicroBatch) -> bool:
        """Tell whether a micro-batch was written before."""
        return self._find(WriteId(micro_batch)) is not None

    def commit(self, messages: Sequence[WriterCommitMessage | None], run_id: str | None = None) -> bool:
        """Write the manifest of a complete write, unless it was written before; return whether it was."""
        if self._files is None:
            return False
        manifest = self._manifest(Outcome.WRITTEN, messages, run_id)
        if manifest is None:
            logger.warning("Spark did not tell the tasks which micro-batch this is: it has no manifest")
            return False
        earlier = self._find(manifest.write)
        if earlier is None:
            self._files.write(manifest.name, manifest.text)
            return False
        self._keep(earlier, ours(messages))
        return True

    def abort(self, messages: Sequence[WriterCommitMessage | None], run_id: str | None = None) -> None:
        """Write down what a failed write has stored, if that is known; its error is on its way already."""
        manifest = self._manifest(Outcome.ABORTED, messages, run_id)
        if self._files is None or manifest is None or not manifest.receipts:
            return
        try:
            self._files.write(manifest.name, manifest.text)
        except FolderError as error:
            logger.warning("there is no manifest of what the failed write has stored: %s", error)

    def _keep(self, earlier: Manifest, messages: Sequence[TubeMQCommitMessage]) -> None:
        """Say what became of a micro-batch that was written before."""
        before = f"{earlier.write} was written before, at {earlier.time:%Y-%m-%d %H:%M:%S} UTC"
        repeats = receipts_of(messages)
        if repeats:
            logger.warning(
                "%s, by another run of the query that ran at the same time; these are repeats: %s",
                before,
                summarise(repeats, "row"),
            )
        unsent = sum(message.replayed.rows for message in messages if message.replayed)
        if not unsent and repeats:
            return
        logger.warning("%s: its %d rows were not sent again, and its manifest stays as it is", before, unsent)
        now = _contents(messages)
        written = Contents(earlier.rows, earlier.checksum)
        if now == written:
            return
        difference = {
            "micro_batch": earlier.write,
            "written": _described(written),
            "found": _described(now),
        }
        if self._options.on_replay_differs is OnReplayDiffers.FAIL:
            raise ReplayError("TUBEMQ_REPLAY_DIFFERS", **difference, manifest=f"{earlier.name}{SUFFIX}")
        logger.warning(
            "%(micro_batch)s was written with %(written)s, and now has %(found)s: TubeMQ has those of before",
            difference,
        )

    def _find(self, write: WriteId) -> Manifest | None:
        text = None if self._files is None else self._files.get(write.name)
        return (
            None if text is None else manifest_of(text, f"{self._options.receipts_path}/{write.name}{SUFFIX}")
        )

    def _manifest(
        self, outcome: Outcome, messages: Sequence[WriterCommitMessage | None], run_id: str | None
    ) -> Manifest | None:
        """Return the manifest to write; None if the write is not known."""
        micro_batch = next((message.micro_batch for message in ours(messages)), None)
        if micro_batch is None and run_id is None:
            return None
        prefixes = {message.uid_prefix for message in ours(messages)}
        return Manifest(
            outcome,
            WriteId(micro_batch, run_id),
            datetime.datetime.now(datetime.UTC),
            dict(self._options.shown),
            sum(message.rows for message in ours(messages)),
            tuple(receipts_of(messages)),
            prefixes.pop() if len(prefixes) == 1 else None,
        )


def skip_rows(batches: Iterable[pa.RecordBatch], micro_batch: MicroBatch) -> TubeMQCommitMessage:
    """Return the message of a task whose micro-batch was written before; nothing is sent."""
    rows = checksum = 0
    for batch in batches:
        values = bytes_column(batch.column("value"))
        rows += batch.num_rows
        checksum += running_checksums(values)[-1]
        # Only dead letters can be without a value, and they have another body instead.
        checksum += _NO_BODY * int((np.diff(values.offsets) == 0).sum())
    return TubeMQCommitMessage((), rows, micro_batch, Contents(rows, checksum % CHECKSUM_MODULUS))


def _contents(messages: Sequence[TubeMQCommitMessage]) -> Contents:
    """Return the contents of all tasks, whether sent now or in an earlier attempt."""
    skipped = sum(message.replayed.checksum for message in messages if message.replayed)
    sent = sum(receipt.checksum or 0 for message in messages for receipt in message.receipts)
    return Contents(sum(message.rows for message in messages), (skipped + sent) % CHECKSUM_MODULUS)


def _described(contents: Contents) -> str:
    return f"{contents.rows} rows of checksum {contents.checksum}"
