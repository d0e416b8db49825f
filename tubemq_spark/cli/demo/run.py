"""The demo's phases: publish, count with a stop in the middle, read back, compare, show."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tubemq_spark.cli.demo.check import Truth, WordKey, compare_counts, compare_lines
from tubemq_spark.cli.demo.input import Selection
from tubemq_spark.cli.demo.job import WordCountJob, follow, read_counts, read_lines
from tubemq_spark.cli.demo.screen import Phase, Screen
from tubemq_spark.cli.demo.topics import TopicEnds, publish, topic_ends
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, rows_between

_TOP_EXTENSIONS: Final = 8
_TOP_WORDS: Final = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    selection: Selection
    masters: str
    """Addresses as the option ``tubemq.master.servers`` takes them."""
    group: str
    lines_topic: str
    counts_topic: str
    rows_per_batch: int
    checkpoint: Path

    @property
    def topics(self) -> tuple[str, str]:
        """Both topics."""
        return self.lines_topic, self.counts_topic

    def client_config(self) -> ClientConfig:
        """Return the configuration of the client that publishes."""
        masters = tuple(Endpoint.parse(text) for text in self.masters.split(","))
        return ClientConfig(masters=masters, group=self.group).validate()

    def spark_options(self) -> dict[str, str]:
        """Return the options of every reader and writer."""
        return {"tubemq.master.servers": self.masters, "tubemq.group": self.group}


class DemoRun:
    """One run, with a Spark session and a TubeMQ that are already running."""

    def __init__(self, plan: Plan, session: SparkSession, screen: Screen) -> None:
        self._plan = plan
        self._session = session
        self._screen = screen
        self._cluster = open_cluster(ClusterConfig(plan.client_config()))
        self._truth = Truth()
        self._faults: list[str] = []
        self._batches = 0
        self._row_limit = 0

    def run(self) -> None:
        """Run every phase and show the results.

        Raises:
            OptionError: a topic does not exist.
            TubeMQError: a check failed (``TUBEMQ_DEMO_FAULTS``), or TubeMQ did.
            PySparkException: Spark failed.
        """
        # The topics may hold older messages; only what is added from here on belongs to this run.
        before = topic_ends(self._cluster, self._plan.topics)
        # The limit is divided among the stores, and each share is at least one row.
        self._row_limit = self._plan.rows_per_batch + len(before.of(self._plan.lines_topic).by_store())
        self._publish()
        self._count_words(before.of(self._plan.lines_topic))
        after = topic_ends(self._cluster, self._plan.topics)
        counts = self._read_back(before, after)
        self._show(before, after, counts)
        if self._faults:
            raise TubeMQError("TUBEMQ_DEMO_FAULTS", faults="; ".join(self._faults))
        self._screen.success(
            f"{self._truth.line_count:,} lines were published, counted in {self._batches} micro-batches "
            "with a restart in between, and read back: none was lost, none repeated"
        )

    def _publish(self) -> None:
        total = self._plan.selection.line_count
        with (
            self._screen.phase("publish lines", "lines", total) as phase,
            TubeMQClient(self._plan.client_config()) as client,
            client.producer() as producer,
        ):
            publish(producer, self._plan.lines_topic, self._plan.selection.files, self._truth, phase.advance)

    def _count_words(self, start: TopicEnds) -> None:
        """Run the query, stop it halfway, and run it to the end from its checkpoint."""
        total = self._truth.line_count
        job = WordCountJob(
            self._session,
            self._plan.spark_options(),
            lines_topic=self._plan.lines_topic,
            counts_topic=self._plan.counts_topic,
            starting_offsets=start.as_option(),
            rows_per_batch=self._plan.rows_per_batch,
            checkpoint=self._plan.checkpoint,
        )
        with self._screen.phase("count words, first half", "lines", total) as phase:
            query = job.start(available_now=False)
            follow(query, self._on_batch(phase), lambda: 2 * phase.done >= total)
            query.stop()
            first_half = phase.done
            phase.note = f"stopped after micro-batch {self._batches}"
        with self._screen.phase("count words, after a restart", "lines", total - first_half) as phase:
            query = job.start(available_now=True)
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

    def _read_back(self, before: TopicEnds, after: TopicEnds) -> dict[WordKey, int]:
        """Read what was added to both topics, compare it with the truth, and return the word counts."""
        lines, counts = self._plan.topics
        options = self._plan.spark_options()
        with self._screen.phase("read lines back and compare", "lines", self._truth.line_count) as phase:
            rows = read_lines(self._session, options, lines, _both(before, after, lines))
            report = compare_lines(self._truth, rows)
            self._faults += report.faults()
            phase.advance(report.read)
        results = after.of(counts).rows_since(before.of(counts))
        with self._screen.phase("read results and compare", "results", results) as phase:
            words = read_counts(self._session, options, counts, _both(before, after, counts))
            self._faults += compare_counts(self._truth.word_counts(), words)
            phase.advance(results)
            phase.note = f"{len(words):,} words"
        return words

    def _show(self, before: TopicEnds, after: TopicEnds, counts: Mapping[WordKey, int]) -> None:
        words: dict[str, Counter[str]] = {}
        for (extension, word), count in counts.items():
            words.setdefault(extension, Counter())[word] = count
        self._screen.table(
            "What Spark counted",
            ("extension", "lines", "words", "most frequent words"),
            (
                (extension, lines, words[extension].total(), _most_frequent(words[extension]))
                for extension, lines in Counter(self._truth.lines_by_extension).most_common(_TOP_EXTENSIONS)
                if extension in words
            ),
        )
        self._screen.table(
            "Offsets of the topics: 28 per message; partition 10000 is the first one of store 1",
            ("topic", "broker:partition", "offset before", "offset after", "messages in the store"),
            (
                (partition.topic, partition.local_id, start, end, rows_between(start, end))
                for partition, end in sorted(after.ends.items())
                for start in [before.ends.get(partition, 0)]
            ),
        )


def _both(before: TopicEnds, after: TopicEnds, topic: str) -> tuple[str, str]:
    """Return a topic's range as ``startingOffsets`` and ``endingOffsets``."""
    return before.of(topic).as_option(), after.of(topic).as_option()


def _most_frequent(words: Counter[str]) -> str:
    return ", ".join(f"{word} {count:,}" for word, count in words.most_common(_TOP_WORDS))
