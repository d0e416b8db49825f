"""The command ``tubemq-spark consume``: messages of a topic to standard output, a range or as they come."""

import argparse
import base64
import json
import re
import sys
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.arguments import COUNT, add_time_zone_argument
from tubemq_spark.cli.connection import add_connection_arguments, cluster_config
from tubemq_spark.cli.parser import Commands, new_command
from tubemq_spark.cli.places import PLACE, chosen_partitions, offsets_at, parse_partition, parse_place
from tubemq_spark.cli.tables import complain, without_nulls
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.offset_spec import Edge

if TYPE_CHECKING:
    from tubemq_spark.client.reader.records import Record
    from tubemq_spark.client.tubemq import TubeMQClient
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.model import TopicPartition, TopicsLayout
    from tubemq_spark.offsets.loss import LossRecord

_GROUP: Final = "tubemq_spark_consume"
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\([nrt0\\])")
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
        action="append",
        type=parse_partition,
        metavar="BROKER_ID:PARTITION_ID",
        help="only this partition; may be given several times",
    )
    parser.add_argument("--count", type=COUNT, metavar="N", help="end after so many messages")
    parser.add_argument(
        "--follow", action="store_true", help="go on with messages as they come, until Ctrl-C"
    )
    parser.add_argument(
        "--format",
        choices=["raw", "json"],
        default="raw",
        help="raw: bodies as they are, each followed by the delimiter; json: one object per line with all "
        "fields (default: %(default)s)",
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="as --format json")
    parser.add_argument(
        "--delimiter",
        type=_delimiter,
        default=b"\n",
        metavar="TEXT",
        help="what follows each raw body (default: a line's end)",
    )
    add_connection_arguments(parser, _GROUP)


def run(arguments: argparse.Namespace) -> int:
    """Print messages and return 0, or 1 if some were gone.

    Raises:
        OptionError: the connection, a partition or a place cannot be used.
        TubeMQError: no master answers, a broker is away, or the topic does not exist.
        BrokenPipeError: the output is not read any more.
    """
    if arguments.follow and arguments.end is not None:
        from tubemq_spark.errors import OptionError

        raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option="--follow", other="--to")
    config = cluster_config(arguments)
    from tubemq_spark.client.tubemq import TubeMQClient
    from tubemq_spark.cluster.open import open_cluster

    with TubeMQClient(config.client) as client:
        reading = _Reading(client, open_cluster(config), arguments)
        remaining = arguments.count
        for record in reading.records():
            if remaining is not None and remaining <= 0:
                break
            sys.stdout.buffer.write(_shown(record, arguments))
            remaining = None if remaining is None else remaining - 1
            if remaining == 0:
                break
        sys.stdout.buffer.flush()
    return int(reading.lost)


class _Reading:
    """The partitions of a topic, and how far they were read."""

    def __init__(self, client: "TubeMQClient", cluster: "Cluster", arguments: argparse.Namespace) -> None:
        self._client = client
        self._cluster = cluster
        self._arguments = arguments
        self._positions: dict[TopicPartition, int] = {}
        self.lost = False
        """Whether records were gone."""
        self._without_master = False
        """Whether no master has answered lately, which was told."""

    def records(self) -> "Iterator[Record]":
        """Yield what is there, and with --follow what comes."""
        arguments = self._arguments
        layout = self._client.layout(arguments.topic)
        partitions = chosen_partitions(layout, arguments.partition)
        bounds = self._client.bounds(layout).complete()
        first = Edge.LATEST if arguments.follow else Edge.EARLIEST
        zone = arguments.message_time_zone
        self._positions = offsets_at(self._cluster, layout, bounds, arguments.start or first, "--from", zone)
        ends = offsets_at(
            self._cluster, layout, bounds, arguments.end or Edge.LATEST, "--to", zone, ending=True
        )
        yield from self._up_to(layout, partitions, ends)
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
        self.lost = True
        complain(loss)


def _shown(record: "Record", arguments: argparse.Namespace) -> bytes:
    if arguments.format == "raw":
        delimiter: bytes = arguments.delimiter
        return bytes(record.value) + delimiter
    return json.dumps(without_nulls(_fields(record)), ensure_ascii=False).encode() + b"\n"


def _fields(record: "Record") -> dict[str, Any]:
    body: dict[str, Any]
    try:
        body = {"value": record.value.decode()}
    except UnicodeDecodeError:
        body = {"valueBase64": base64.b64encode(record.value).decode()}
    return {
        "topic": record.topic,
        "brokerId": record.partition.broker_id,
        "partition": record.partition.partition_id,
        "offset": record.offset,
        "messageId": record.message_id,
        "messageType": record.message_type,
        "messageTime": record.message_time,
        "attributes": record.attributes,
        **body,
    }


def _delimiter(text: str) -> bytes:
    r"""Read a delimiter: ``\n``, ``\r``, ``\t``, ``\0`` and ``\\`` are what they are in Python."""
    return _ESCAPE.sub(lambda match: _ESCAPED[match[1]], text).encode()
