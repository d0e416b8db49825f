"""The demo's phases: publish, count with a stop in the middle, read back, compare, show.

What must come out is computed without TubeMQ and Spark (``Truth``), from the lines as they are published.
"""

import array
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import SparkSession

from tubemq_spark.cli.demo.command import InputFile, InputFiles
from tubemq_spark.cli.demo.job import (
    FILE_ATTRIBUTE,
    LINE_ATTRIBUTE,
    WORD_PATTERN,
    Plan,
    WordKey,
    follow,
    read_counts,
    read_lines,
    start_query,
)
from tubemq_spark.cli.screen import Phase, Screen
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import OptionError, RpcError, TubeMQError
from tubemq_spark.model import Endpoint, StoreId, TopicPartition, rows_between
from tubemq_spark.offsets.notation import write_offsets
from tubemq_spark.protocol.errcodes import ErrCode

_WORD: Final = re.compile(WORD_PATTERN.encode())
_EXAMPLES: Final = 3
_TOP_EXTENSIONS: Final = 8
_TOP_WORDS: Final = 6
_LOST: Final = "lines were published but not read back"
_REPEATED: Final = "rows repeat a line"
_ALTERED: Final = "lines came back with different bytes"
_FOREIGN: Final = "rows are not lines of this run"

Ends = Mapping[TopicPartition, int]
"""Where the partitions of topics end at one moment."""


class Truth:
    """Everything that was published."""

    def __init__(self) -> None:
        self.checksums: dict[str, array.array[int]] = {}
        """The CRC-32 of each line of each file, line 1 first."""
        self.lines: Counter[str] = Counter()
        """Lines of each extension."""
        self._words: dict[str, Counter[bytes]] = {}

    def add(self, name: str, extension: str, lines: list[bytes]) -> int:
        """Record the next lines of a file and return the number (from 1) of the first of them."""
        checksums = self.checksums.setdefault(name, array.array("I"))
        first = len(checksums) + 1
        checksums.extend(map(zlib.crc32, lines))
        # A line ending is not a letter, so no word can span two lines.
        words = _WORD.findall(b"".join(lines).lower())
        self._words.setdefault(extension, Counter()).update(words)
        self.lines[extension] += len(lines)
        return first

    def word_counts(self) -> dict[WordKey, int]:
        """Return how often each word occurs in the files of each extension."""
        return {
            (extension, word.decode()): count
            for extension, words in self._words.items()
            for word, count in words.items()
        }


def compare_lines(truth: Truth, rows: Iterable[tuple[str | None, str | None, int]]) -> tuple[int, list[str]]:
    """Compare rows (file, line number, CRC-32 of the value) with what was published.

    Return how many there were, and what is wrong, as sentences; nothing if every line was read exactly once.
    """
    read, counts = 0, Counter[str]()
    examples: list[str] = []
    unread = {name: bytearray(b"\1" * len(checksums)) for name, checksums in truth.checksums.items()}
    for name, number, checksum in rows:
        read += 1
        index = int(number) - 1 if number is not None and number.isascii() and number.isdigit() else -1
        if name is None or name not in unread or not 0 <= index < len(unread[name]):
            fault = _FOREIGN
        elif not unread[name][index]:
            fault = _REPEATED
        else:
            unread[name][index] = 0
            if truth.checksums[name][index] == checksum:
                continue
            fault = _ALTERED
        counts[fault] += 1
        examples.append(f"{name}:{number}")
        del examples[_EXAMPLES:]
    for name, flags in unread.items():
        if lost := flags.count(1):
            counts[_LOST] += lost
            examples.append(f"{name}:{flags.index(1) + 1}")
    faults = [
        f"{counts[fault]:,} {fault}" for fault in (_LOST, _REPEATED, _ALTERED, _FOREIGN) if counts[fault]
    ]
    return read, [*faults, f"for example {', '.join(examples[:_EXAMPLES])}"] if faults else []


def compare_counts(expected: Mapping[WordKey, int], counts: Mapping[WordKey, int]) -> list[str]:
    """Return what is wrong with Spark's counts, as sentences; none if they are as expected."""
    wrong = [key for key in expected.keys() | counts.keys() if expected.get(key) != counts.get(key)]
    if not wrong:
        return []
    examples = [
        f"{'/'.join(key)}: {counts.get(key, 0):,} instead of {expected.get(key, 0):,}"
        for key in sorted(wrong)[:_EXAMPLES]
    ]
    return [f"{len(wrong):,} of {len(expected):,} word counts are wrong, for example {', '.join(examples)}"]


def topic_ends(cluster: Cluster, topics: Sequence[str]) -> Ends:
    """Ask TubeMQ where topics end; the error about a missing one says how to create it."""
    ends: dict[TopicPartition, int] = {}
    for topic in topics:
        try:
            layout = cluster.layout([topic])
        except RpcError as error:
            if error.code == ErrCode.TOPIC_NOT_DEPLOYED:
                raise OptionError("TUBEMQ_DEMO_NO_TOPIC", topic=topic) from error
            raise
        if not layout.partitions:
            raise OptionError("TUBEMQ_DEMO_NO_TOPIC", topic=topic)
        bounds = cluster.bounds(layout).complete()
        ends |= {partition: bounds[partition.store_id].latest for partition in layout.partitions}
    return ends


def _by_store(ends: Ends, topic: str) -> dict[StoreId, int]:
    """Return the ends of a topic's stores: partitions of a store share offsets."""
    return {partition.store_id: end for partition, end in ends.items() if partition.topic == topic}


def rows_since(before: Ends, after: Ends, topic: str) -> int:
    """Return how many messages were added to a topic."""
    earlier = _by_store(before, topic)
    return sum(rows_between(earlier.get(store, 0), end) for store, end in _by_store(after, topic).items())


def as_option(ends: Ends, topic: str) -> str:
    """Return the ends of a topic in the form of ``startingOffsets`` and ``endingOffsets``."""
    return json.dumps(write_offsets({place: end for place, end in ends.items() if place.topic == topic}))


def publish(
    producer: Producer, topic: str, files: Sequence[InputFile], truth: Truth, advance: Callable[[int], None]
) -> None:
    """Send every line of the files as a message, and record it in ``truth``; the producer is then flushed."""
    for file in files:
        for lines in file.chunks():
            first = truth.add(file.name, file.extension, lines)
            for number, line in enumerate(lines, first):
                attributes = {FILE_ATTRIBUTE: file.name, LINE_ATTRIBUTE: str(number)}
                producer.send(topic, line, attributes=attributes, message_type=file.extension)
            advance(len(lines))
    producer.flush()


class DemoRun:
    """One run, with a Spark session and a TubeMQ that are already running."""

    def __init__(self, plan: Plan, selection: InputFiles, session: SparkSession, screen: Screen) -> None:
        self._plan = plan
        self._selection = selection
        self._session = session
        self._screen = screen
        masters = tuple(Endpoint.parse(text) for text in plan.masters.split(","))
        self._config = ClientConfig(masters=masters, group=plan.group).validate()
        self._truth = Truth()
        self._faults: list[str] = []
        self._batches = 0
        self._row_limit = 0

    def run(self) -> None:
        """Run every phase and show the results; an error tells of checks that failed."""
        plan, cluster = self._plan, open_cluster(ClusterConfig(self._config))
        topics = plan.lines_topic, plan.counts_topic
        # The topics may hold older messages; only what is added from here on belongs to this run.
        before = topic_ends(cluster, topics)
        # The limit is divided among the stores, and each share is at least one row.
        self._row_limit = plan.rows_per_batch + len(_by_store(before, plan.lines_topic))
        with (
            self._screen.phase("publish lines", "lines", self._selection.line_count) as phase,
            TubeMQClient(self._config) as client,
            client.producer() as producer,
        ):
            publish(producer, plan.lines_topic, self._selection.files, self._truth, phase.advance)
        self._count_words(as_option(before, plan.lines_topic))
        after = topic_ends(cluster, topics)
        counts = self._read_back(before, after)
        self._show(before, after, counts)
        if self._faults:
            raise TubeMQError("TUBEMQ_DEMO_FAULTS", faults="; ".join(self._faults))
        self._screen.conclude(
            f"{self._truth.lines.total():,} lines were published, counted in {self._batches} micro-batches "
            "with a restart in between, and read back: none was lost, none repeated",
            good=True,
        )

    def _count_words(self, start: str) -> None:
        """Run the query, stop it halfway, and run it to the end from its checkpoint."""
        total = self._truth.lines.total()
        with self._screen.phase("count words, first half", "lines", total) as phase:
            query = start_query(self._session, self._plan, start, available_now=False)
            follow(query, self._on_batch(phase), lambda: 2 * phase.done >= total)
            query.stop()
            first_half = phase.done
            phase.note = f"stopped after micro-batch {self._batches}"
        with self._screen.phase("count words, after a restart", "lines", total - first_half) as phase:
            query = start_query(self._session, self._plan, start, available_now=True)
            follow(query, self._on_batch(phase), lambda: False)
            phase.note = f"up to micro-batch {self._batches}"

    def _on_batch(self, phase: Phase) -> Callable[[int, int], None]:
        def on_batch(batch_id: int, rows: int) -> None:
            self._batches = batch_id + 1
            if rows > self._row_limit:
                self._faults.append(
                    f"micro-batch {batch_id} read {rows:,} lines, more than the limit of {self._row_limit:,}"
                )
            phase.advance(rows)

        return on_batch

    def _read_back(self, before: Ends, after: Ends) -> dict[WordKey, int]:
        """Read what was added to both topics, compare it with the truth, and return the word counts."""
        plan = self._plan
        with self._screen.phase("read lines back and compare", "lines", self._truth.lines.total()) as phase:
            added = as_option(before, plan.lines_topic), as_option(after, plan.lines_topic)
            read, faults = compare_lines(self._truth, read_lines(self._session, plan, added))
            self._faults += faults
            phase.advance(read)
        results = rows_since(before, after, plan.counts_topic)
        with self._screen.phase("read results and compare", "results", results) as phase:
            added = as_option(before, plan.counts_topic), as_option(after, plan.counts_topic)
            words = read_counts(self._session, plan, added)
            self._faults += compare_counts(self._truth.word_counts(), words)
            phase.advance(results)
            phase.note = f"{len(words):,} words"
        return words

    def _show(self, before: Ends, after: Ends, counts: Mapping[WordKey, int]) -> None:
        def most_frequent(words: Counter[str]) -> str:
            return ", ".join(f"{word} {count:,}" for word, count in words.most_common(_TOP_WORDS))

        words: dict[str, Counter[str]] = {}
        for (extension, word), count in counts.items():
            words.setdefault(extension, Counter())[word] = count
        self._screen.table(
            "What Spark counted",
            ("extension", "lines", "words", "most frequent words"),
            (
                (extension, lines, words[extension].total(), most_frequent(words[extension]))
                for extension, lines in self._truth.lines.most_common(_TOP_EXTENSIONS)
                if extension in words
            ),
        )
        self._screen.table(
            "Offsets of the topics: 28 per message; partition 10000 is the first one of store 1",
            ("topic", "broker:partition", "offset before", "offset after", "messages in the store"),
            (
                (partition.topic, partition.local_id, start, end, rows_between(start, end))
                for partition, end in sorted(after.items())
                for start in [before.get(partition, 0)]
            ),
        )
