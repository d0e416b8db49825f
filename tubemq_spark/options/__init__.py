"""The options of ``format("tubemq")``: parsed and checked once, into frozen values.

Nothing below the data source takes a map of texts.
"""

from tubemq_spark.options.parsed import OptionSet
from tubemq_spark.options.table import LossesOptions, ReadOptions, ReceiptsOptions, ViewOptions, WriteOptions
from tubemq_spark.options.values import (
    MessageTime,
    NoMatch,
    OnReplayDiffers,
    ParseMode,
    PayloadFormat,
    TimestampSearch,
    ViewName,
    Visibility,
)

__all__ = [
    "LossesOptions",
    "MessageTime",
    "NoMatch",
    "OnReplayDiffers",
    "OptionSet",
    "ParseMode",
    "PayloadFormat",
    "ReadOptions",
    "ReceiptsOptions",
    "TimestampSearch",
    "ViewName",
    "ViewOptions",
    "Visibility",
    "WriteOptions",
]
