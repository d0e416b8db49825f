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

import datetime
import logging
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.errors import FolderError, ReplayError
from tubemq_spark.files.manifests import SUFFIX, Manifest, Outcome, WriteId, manifest_of
from tubemq_spark.files.text_files import TextFiles
from tubemq_spark.model import MicroBatch
from tubemq_spark.options import OnReplayDiffers, WriteOptions
from tubemq_spark.protocol.send_batch import running_checksums
from tubemq_spark.receipts import CHECKSUM_MODULUS, summarise
from tubemq_spark.sink import coding
from tubemq_spark.sink.dead_letters import NO_BODY
from tubemq_spark.sink.receipts import Contents, TubeMQCommitMessage, ours, receipts_of

logger = logging.getLogger(__name__)

_NO_BODY: Final = zlib.crc32(NO_BODY)


class Manifests:
    """The folder as one process sees it; without ``receiptsPath`` it does nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        folder = options.receipts_path
        self._files = None if folder is None else TextFiles(folder, "receiptsPath", SUFFIX)

    def prepare(self) -> None:
        """Make the folder, and see that it can be written to."""
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
        """Return what there is to write down; None when it is unknown which write it is."""
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
        values = coding.bytes_column(batch.column("value"))
        rows += batch.num_rows
        checksum += running_checksums(values)[-1]
        # Only dead letters can be without a value, and they have another body instead.
        checksum += _NO_BODY * int((np.diff(values.offsets) == 0).sum())
    return TubeMQCommitMessage((), rows, micro_batch, Contents(rows, checksum % CHECKSUM_MODULUS))


def _contents(messages: Sequence[TubeMQCommitMessage]) -> Contents:
    """Return what all tasks had, whether they sent it or not."""
    skipped = sum(message.replayed.checksum for message in messages if message.replayed)
    sent = sum(receipt.checksum or 0 for message in messages for receipt in message.receipts)
    return Contents(sum(message.rows for message in messages), (skipped + sent) % CHECKSUM_MODULUS)


def _described(contents: Contents) -> str:
    return f"{contents.rows} rows of checksum {contents.checksum}"
