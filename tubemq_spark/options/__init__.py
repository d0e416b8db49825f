"""The options of ``format("tubemq")``: parsed and checked once, into frozen values.

Nothing below the data source takes a map of texts.
"""

from tubemq_spark.options.parsed import OptionSet, ReadOptions, WriteOptions
from tubemq_spark.options.table import MessageTime, NoMatch, ParseMode, PayloadFormat, Visibility

__all__ = [
    "MessageTime",
    "NoMatch",
    "OptionSet",
    "ParseMode",
    "PayloadFormat",
    "ReadOptions",
    "Visibility",
    "WriteOptions",
]
