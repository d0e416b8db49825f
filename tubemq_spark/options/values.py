"""The words that options take as values, and what Spark does with them."""

import enum
from typing import Final


class Mode(enum.Enum):
    """What Spark does with the source; the value names it in messages."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a streaming read"
    WRITE = "a write"
    PARTITIONS_VIEW = "the view 'partitions'"
    LAG_VIEW = "the view 'lag'"
    GROUPS_VIEW = "the view 'groups'"
    LOSSES_VIEW = "the view 'losses'"
    RECEIPTS_VIEW = "the view 'receipts'"


class ViewName(enum.Enum):
    """What a batch read has in its rows; the value is what users write."""

    MESSAGES = "messages"
    PARTITIONS = "partitions"
    LAG = "lag"
    GROUPS = "groups"
    LOSSES = "losses"
    RECEIPTS = "receipts"

    @property
    def mode(self) -> Mode:
        """What Spark does when it reads this view."""
        return _MODES[self]


_MODES: Final = {
    ViewName.MESSAGES: Mode.BATCH_READ,
    ViewName.PARTITIONS: Mode.PARTITIONS_VIEW,
    ViewName.LAG: Mode.LAG_VIEW,
    ViewName.GROUPS: Mode.GROUPS_VIEW,
    ViewName.LOSSES: Mode.LOSSES_VIEW,
    ViewName.RECEIPTS: Mode.RECEIPTS_VIEW,
}


class MessageTime(enum.Enum):
    """Which message time the sink gives a row; the value is what users write."""

    NOW = "now"
    """That of the row, or else the time of writing."""
    COLUMN = "column"
    """That of the row, or else none."""
    NONE = "none"
    """None, also where the row has one."""


class OnError(enum.Enum):
    """What becomes of a row that cannot be written; the value is what users write."""

    FAIL = "fail"
    """Its task fails."""
    DEAD_LETTER = "deadLetter"
    """It goes to another topic, with the reason."""


class OnReplayDiffers(enum.Enum):
    """What becomes of other rows in a micro-batch that was written before; the value is what users write."""

    FAIL = "fail"
    """Its query ends."""
    KEEP = "keep"
    """Nothing is sent: the rows of the first time are in TubeMQ, and these are not."""


class Visibility(enum.Enum):
    """How far a query reads; the value is what users write."""

    MEMORY = "memory"
    """Up to what a broker has acknowledged last."""
    FLUSHED = "flushed"
    """Up to what is on the broker's disk."""


class NoMatch(enum.Enum):
    """What to do where no record is of the time to begin at; the value is what users write."""

    ERROR = "error"
    LATEST = "latest"


class TimestampSearch(enum.Enum):
    """How a read by times finds its messages; the value is what users write."""

    PROBE = "probe"
    """By a few looks into each partition: where they begin and end, as far as times rise."""
    EXACT = "exact"
    """By reading all messages, and leaving out those of other times."""


class PayloadFormat(enum.Enum):
    """What bodies of messages are; the value is what users write."""

    RAW = "raw"
    """Anything: a row has a body as it is."""
    INLONG = "inlong"
    """Containers of InLong: each message in them is a row."""


class ParseMode(enum.Enum):
    """What becomes of a malformed body; names and meanings are those of Spark's own formats."""

    PERMISSIVE = "PERMISSIVE"
    """A row that has the body in the column ``_corrupt_record``."""
    DROPMALFORMED = "DROPMALFORMED"
    """No row."""
    FAILFAST = "FAILFAST"
    """The query fails."""


READS: Final = frozenset({Mode.BATCH_READ, Mode.STREAM_READ})
STREAM: Final = frozenset({Mode.STREAM_READ})
BATCH: Final = frozenset({Mode.BATCH_READ})
WRITES: Final = frozenset({Mode.WRITE})
CLUSTER_VIEWS: Final = frozenset({Mode.PARTITIONS_VIEW, Mode.LAG_VIEW, Mode.GROUPS_VIEW})
"""The views that ask the cluster."""
READS_AND_VIEWS: Final = READS | CLUSTER_VIEWS
MUST_SUBSCRIBE: Final = READS | {Mode.PARTITIONS_VIEW}
"""What must be told which topics."""
ALL: Final = READS | WRITES | CLUSTER_VIEWS
"""What reaches a cluster."""
