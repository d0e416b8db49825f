"""The command ``tubemq-spark consume``: messages of a topic to standard output, a range or as they come."""

import argparse
import itertools
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.arguments import COUNT, add_time_zone_argument
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.consume.decoding import NAMES, UndecodableError, as_it_is, decoder
from tubemq_spark.cli.consume.formats import PLACEHOLDERS, format_of, parse_format, unescaped
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.places import PLACE, chosen_partitions, offsets_at, parse_partition, parse_place
from tubemq_spark.cli.tables import complain
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.offset_spec import Edge

if TYPE_CHECKING:
    from tubemq_spark.client.reader.records import Record
    from tubemq_spark.client.tubemq import TubeMQClient
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.model import TopicPartition, TopicsLayout
    from tubemq_spark.offsets.loss import LossRecord

_GROUP: Final = "tubemq_spark_consume"
_LOOK_EVERY_S: Final = 0.5
_LAYOUT_EVERY_S: Final = 10.0
"""How often --follow looks for new messages, and for new partitions."""


def add_command(commands: Commands) -> None:
    """Describe the command and its arguments."""
    parser = new_command(
        commands,
        "consume",
        run,
        summary="print messages of a topic",
        description="Print the messages of a topic, one partition after the other, each in its order. No "
        "position of any group is moved. Records that are gone are reported.",
        example="clicks --from 2026-01-31T12:00 --json --master 10.1.2.3",
        failure="messages are gone, or a broker does not answer",
    )
    parser.add_argument("topic", metavar="TOPIC", help="topic to read")
    parser.add_argument(
        "--from",
        "-o",
        dest="start",
        type=parse_place,
        metavar="PLACE",
        help=f"where to begin: {PLACE} (default: earliest; latest with --follow)",
    )
    parser.add_argument(
        "--to", dest="end", type=parse_place, metavar="PLACE", help="where to end, likewise (default: latest)"
    )
    add_time_zone_argument(parser)
    parser.add_argument(
        "--partition",
        "-p",
        action="append",
        type=parse_partition,
        metavar="BROKER_ID:PARTITION_ID",
        help="only this partition; may be given several times",
    )
    parser.add_argument("--count", "-c", type=COUNT, metavar="N", help="end after so many messages")
    parser.add_argument(
        "--follow", action="store_true", help="go on with messages as they come, until Ctrl-C"
    )
    parser.add_argument(
        "--last",
        "-n",
        type=COUNT,
        metavar="N",
        help="only the last N messages of each partition, before --to if that is given",
    )
    parser.add_argument(
        "--format",
        "-f",
        type=parse_format,
        default="raw",
        metavar="FORMAT",
        help="raw: values as they are, each followed by the delimiter; json: one object per line with all "
        f"fields; or a template such as '%%p %%o %%s\\n' with {PLACEHOLDERS.replace('%', '%%')}, and "
        "\\n, \\t, \\r, \\0 (default: %(default)s)",
    )
    parser.add_argument(
        "--json", "-J", dest="format", action="store_const", const="json", help="as --format json"
    )
    parser.add_argument(
        "--delimiter",
        "-D",
        type=unescaped,
        default=b"\n",
        metavar="TEXT",
        help="what follows each raw value (default: a line's end)",
    )
    parser.add_argument(
        "--decode",
        choices=NAMES,
        help="decode values. text: UTF-8, with a mark for what is not; json, avro: shown as JSON; "
        "inlong: each message that InLong packed into a value is printed. A value that does not fit is "
        "reported, and printed as it is",
    )
    parser.add_argument("--schema", type=Path, metavar="FILE", help="the Avro schema that values have")
    parser.add_argument(
        "--registry-head",
        action="store_true",
        help="before each Avro value are the five bytes of a schema registry; --schema still says the schema",
    )
    add_connection_arguments(parser, _GROUP)


def run(arguments: argparse.Namespace) -> int:
    """Print messages and return 0, or 1 if some were gone.

    Raises:
        OptionError: the connection, a partition or a place cannot be used.
        TubeMQError: no master answers, a broker is away, or the topic does not exist.
        BrokenPipeError: the output is not read any more.
    """
    for option, is_given in ("--to", arguments.end is not None), ("--from", arguments.start is not None):
        excluded = "--follow" if option == "--to" else "--last"
        if is_given and getattr(arguments, excluded[2:]):
            raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option=excluded, other=option)
    decode = decoder(arguments.decode, arguments.schema, has_head=arguments.registry_head)
    show = format_of(arguments.format, arguments.delimiter)
    config = cluster_config(arguments)
    from tubemq_spark.client.tubemq import TubeMQClient
    from tubemq_spark.cluster.open import open_cluster

    with TubeMQClient(config.client) as client:
        reading = _Reading(client, open_cluster(config), arguments)
        for record in itertools.islice(reading.records(), arguments.count):
            try:
                messages = decode(record)
            except UndecodableError as error:
                reading.failed = True
                place = record.message_id if record.offset is None else record.offset
                complain(f"the message {place} of {record.partition} cannot be decoded: {error}")
                messages = as_it_is(record)
            for message in messages:
                sys.stdout.buffer.write(show(message))
        sys.stdout.buffer.flush()
    return int(reading.failed)


class _Reading:
    """The partitions of a topic, and how far they were read."""

    def __init__(self, client: "TubeMQClient", cluster: "Cluster", arguments: argparse.Namespace) -> None:
        self._client = client
        self._cluster = cluster
        self._arguments = arguments
        self._positions: dict[TopicPartition, int] = {}
        self.failed = False
        """Whether messages were gone, or could not be decoded."""
        self._without_master = False
        """Whether no master has answered lately, which was told."""

    def records(self) -> "Iterator[Record]":
        """Yield what is there, and with --follow what comes."""
        arguments = self._arguments
        layout = self._cluster.layout((arguments.topic,))
        partitions = chosen_partitions(layout, arguments.partition)
        bounds = self._client.bounds(layout).complete()
        # An offset of 0 is a place, too.
        first = Edge.LATEST if arguments.follow else Edge.EARLIEST
        start = first if arguments.start is None else arguments.start
        end = Edge.LATEST if arguments.end is None else arguments.end
        zone = arguments.message_time_zone
        self._positions = offsets_at(self._cluster, layout, bounds, start, "--from", zone)
        ends = offsets_at(self._cluster, layout, bounds, end, "--to", zone, ending=True)
        if arguments.last is None:
            yield from self._up_to(layout, partitions, ends)
        else:
            chosen = {partition: ends[partition] for partition in partitions}
            yield from self._client.read(
                arguments.topic, last=arguments.last, end=chosen, partitions=chosen, on_loss=self._lose
            )
        if arguments.follow:
            yield from self._follow(layout, partitions)

    def _up_to(
        self,
        layout: "TopicsLayout",
        partitions: "Collection[TopicPartition]",
        ends: "dict[TopicPartition, int]",
    ) -> "Iterator[Record]":
        for partition in partitions:
            start, end = self._positions[partition], ends[partition]
            if start < end:
                records = OffsetRange(partition, start, end)
                yield from self._client.read_range(layout, records, on_loss=self._lose)
                self._positions[partition] = end

    def _follow(self, layout: "TopicsLayout", partitions: "Collection[TopicPartition]") -> "Iterator[Record]":
        looked_at = time.monotonic()
        while True:
            sys.stdout.buffer.flush()
            time.sleep(_LOOK_EVERY_S)
            if time.monotonic() - looked_at >= _LAYOUT_EVERY_S:
                looked_at = time.monotonic()
                layout = self._newest(layout)
                partitions = chosen_partitions(layout, self._arguments.partition)
            bounds = self._client.bounds(layout).by_store
            ends = {}
            for partition in partitions:
                span = bounds.get(partition.store_id)
                if span is not None:  # otherwise its broker is away, and is asked again
                    self._positions.setdefault(partition, span.earliest)
                    ends[partition] = span.latest
            yield from self._up_to(layout, sorted(ends), ends)

    def _newest(self, known: "TopicsLayout") -> "TopicsLayout":
        """Return where the partitions are, as the master says, or said last while none answers."""
        try:
            layout = self._client.layout(self._arguments.topic)
        except TubeMQError as error:
            if not error.retriable:
                raise
            if not self._without_master:
                complain(f"{error} Going on with the partitions that are known.")
            self._without_master = True
            return known
        self._without_master = False
        return layout

    def _lose(self, loss: "LossRecord") -> None:
        self.failed = True
        complain(loss)
