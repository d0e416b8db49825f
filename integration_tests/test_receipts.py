"""What a write has stored is written down, not sent again when Spark repeats it, and verified later."""

import json
import re
import shutil

import pytest

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.rig.queries import refusal, to_topic
from tubemq_spark.cli import main as cli
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

TOPIC = "receipted"
FILES, LINES = 3, 200
ROWS = FILES * LINES


class Writing:
    """Writes to one topic of a cluster, with manifests."""

    def __init__(self, spark, cluster, folder):
        self._spark, self._cluster = spark, cluster
        self.receipts, self.checkpoint, self._input = (
            folder / name for name in ("receipts", "checkpoint", "input")
        )
        self._input.mkdir()
        for number in range(FILES):
            self.add_file(number)

    def add_file(self, number, word=""):
        lines = [f"{number}: {word}{'ü' * (line % 7)}{line}" for line in range(LINES)]
        (self._input / f"{number}.txt").write_text("\n".join(lines))

    @property
    def options(self):
        connection = {"tubemq.master.servers": self._cluster.master}
        return connection | {"topic": TOPIC, "receiptsPath": self.receipts.as_uri()}

    @property
    def source(self):
        return self._spark.read.text(str(self._input))

    def batch(self):
        self.source.write.format("tubemq").options(**self.options).mode("append").save()

    def stream(self, **options):
        """Write each file in a micro-batch; return the query, which has ended."""
        rows = self._spark.readStream.option("maxFilesPerTrigger", "1").text(str(self._input))
        return to_topic(rows.repartition(2), self.checkpoint, self.options | options)

    def for_each_batch(self):
        rows = self._spark.readStream.text(str(self._input))
        writer = rows.writeStream.foreachBatch(
            lambda frame, _: frame.write.format("tubemq").options(**self.options).mode("append").save()
        )
        query = (
            writer.option("checkpointLocation", f"{self.checkpoint}_each").trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return query

    def stored(self):
        """Return how many messages there are."""
        with TubeMQClient.connect(self._cluster.master) as client:
            return sum(1 for _ in client.read(TOPIC))

    @property
    def view(self):
        view = self._spark.read.format("tubemq").option("view", "receipts")
        return view.option("receiptsPath", self.receipts.as_uri()).load()

    def forget_the_end_of(self, batch):
        """Leave the checkpoint as it is when the driver dies after the sink's commit and before Spark's."""
        for path in (self.checkpoint / "commits").iterdir():
            if re.fullmatch(rf"\.?{batch}(\.crc)?", path.name):
                path.unlink()

    def manifest_of(self, query, batch):
        return self.receipts / f"query-{query.id}-batch-{batch:010}.json"

    def manifests(self):
        return {path.name: path.read_text() for path in self.receipts.iterdir()}


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory):
    topics = {TOPIC: (2, 1)}
    with EmbeddedTubeMQ(tmp_path_factory.mktemp("receipts"), topics, brokers=3) as server:
        yield server


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real)])
def cluster(request):
    """Three embedded brokers, or two of the Java TubeMQ."""
    if request.param == "real":
        require_real_tubemq()
        return request.getfixturevalue("real_brokers")
    return request.getfixturevalue("three_brokers")


@pytest.fixture
def writing(spark, cluster, tmp_path):
    return Writing(spark, cluster, tmp_path)


@pytest.fixture
def verify(cluster, writing, capsys):
    def run(*arguments):
        at = ("receipts", "verify", str(writing.receipts), "--master", cluster.master, "--json")
        code = cli.main([*at, *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_what_is_written_has_manifests_that_are_verified(writing, verify):
    """By a stream, a batch and a batch of a stream; Spark computes the same checksum of what was written."""
    query = writing.stream()
    writing.batch()
    each = writing.for_each_batch()

    expected = writing.source.selectExpr(
        "count(*)", "sum(octet_length(value))", "sum(crc32(cast(value as binary)))"
    ).first()
    writes = writing.view.groupBy("queryId", "batchId", "runId").agg({"count": "sum"}).collect()
    assert sorted(
        (row.queryId or "", row.batchId, row.runId is None, row[3]) for row in writes if row.queryId
    ) == sorted([(query.id, number, True, LINES) for number in range(FILES)] + [(each.id, 0, False, ROWS)])
    assert [row[3] for row in writes if row.queryId is None] == [ROWS]
    totals = writing.view.groupBy("queryId").agg({"count": "sum", "bytes": "sum", "checksum": "sum"})
    for row in totals.collect():
        found = row.asDict()
        assert (found["sum(count)"], found["sum(bytes)"], found["sum(checksum)"]) == tuple(expected)

    code, report = verify()
    assert (code, report["sound"], report["manifests"]) == (0, True, FILES + 2)
    assert report["verdicts"] == {"intact": len(report["checks"])}
    assert sum(one["found"]["count"] for one in report["checks"]) == 3 * ROWS
    assert len({one["brokerId"] for one in report["checks"]}) > 1


def test_a_micro_batch_that_spark_repeats_is_not_sent_again(writing, verify):
    before = writing.stored()
    query = writing.stream()
    assert writing.stored() - before == ROWS
    manifests = writing.manifests()

    writing.forget_the_end_of(FILES - 1)
    assert writing.stream().id == query.id
    assert writing.stored() - before == ROWS
    assert writing.manifests() == manifests

    writing.add_file(FILES)
    writing.stream()
    assert writing.stored() - before == ROWS + LINES
    assert verify()[0] == 0


@pytest.mark.any_server
def test_a_micro_batch_without_its_manifest_is_sent_again(writing):
    """So it is the manifest that Spark's repetition above stops at."""
    before = writing.stored()
    query = writing.stream()
    writing.manifest_of(query, FILES - 1).unlink()
    writing.forget_the_end_of(FILES - 1)

    writing.stream()

    assert writing.stored() - before == ROWS + LINES
    assert writing.manifest_of(query, FILES - 1).exists()


@pytest.mark.any_server
def test_other_rows_under_the_number_of_a_micro_batch_end_the_query(writing):
    """A checkpoint that was restored has other rows under the numbers of earlier micro-batches."""
    query = writing.stream()
    backup = writing.checkpoint.with_name("backup")
    shutil.copytree(writing.checkpoint, backup)
    writing.add_file(FILES)
    writing.stream()
    shutil.rmtree(writing.checkpoint)
    backup.rename(writing.checkpoint)
    writing.add_file(FILES, "other")
    before = writing.stored()

    condition, sentence = refusal(writing.stream)

    assert condition == "TUBEMQ_REPLAY_DIFFERS"
    assert f"micro-batch {FILES} of query {query.id} was written with {LINES} rows of checksum " in sentence
    assert f", and now it has {LINES} rows of checksum " in sentence
    assert writing.stored() == before

    writing.stream(onReplayDiffers="keep")
    assert writing.stored() == before


@pytest.mark.any_server
def test_a_folder_that_cannot_be_used_ends_a_write_before_anything_is_sent(writing):
    writing.receipts.write_text("not a folder")
    before = writing.stored()
    for action in (writing.batch, writing.stream):
        condition, sentence = refusal(action)
        assert condition == "TUBEMQ_FOLDER_UNUSABLE"
        assert "'receiptsPath' cannot be written to" in sentence
    assert writing.stored() == before


@pytest.mark.any_server
def test_what_a_broker_lost_when_it_was_killed_is_missing(cluster, writing, verify):
    """It had acknowledged messages that were not on its disk; a Java broker may have flushed all of them.

    So may an embedded one on a slow machine: it loses its newest message even so.
    """
    writing.batch()
    if isinstance(cluster, EmbeddedTubeMQ):
        cluster.faults.lose_messages(TOPIC, 1, broker=2)
    else:
        cluster.kill_broker(2)
        cluster.start_broker(2)

    code, report = verify()

    of_others = {one["verdict"] for one in report["checks"] if one["brokerId"] != 2}
    assert of_others == {"intact"}
    lost = [one for one in report["checks"] if one["brokerId"] == 2]
    missing = sum(one["missing"] for one in lost)
    assert missing > 0 or not isinstance(cluster, EmbeddedTubeMQ)
    assert ("missing" in {one["verdict"] for one in lost}) == (missing > 0)
    assert code == int(missing > 0)
