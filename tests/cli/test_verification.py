"""What was acknowledged is compared with what three brokers have, whatever has become of it."""

import datetime
import itertools
import json
import re
import time

import pytest

from tubemq_spark.cli import main as cli
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.files.manifests import SUFFIX, Manifest, Outcome, WriteId
from tubemq_spark.files.text_files import TextFiles
from tubemq_spark.model import Endpoint, MicroBatch

pytestmark = pytest.mark.sampled

NOON = datetime.datetime(2026, 3, 4, 12, tzinfo=datetime.UTC)
UNFLUSHED = 1 << 30
"""No message is on a broker's disk before it stops: neither so many nor so many ms."""


@pytest.fixture
def server(tmp_path):
    rarely = {"flush_messages": UNFLUSHED, "flush_interval_ms": UNFLUSHED}
    topics = {"plain": (1, 1), "shared": (1, 3), "lossy": TopicSpec(1, 1, **rarely)}
    with EmbeddedTubeMQ(tmp_path / "tubemq", topics, brokers=3) as running:
        yield running


class Writer:
    """Writes with receipts, and manifests of that."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        config = ClientConfig((Endpoint.parse(server.master),), "writer", checksums=True)
        self.client = TubeMQClient(config)
        self._files = TextFiles(FolderUri.parse(str(folder)), "receiptsPath", SUFFIX)
        self._files.prepare()
        self._numbers = itertools.count()

    def send(self, topic, *values, uids=None, **how):
        """Send messages; return their receipts."""
        with self.client.producer() as producer:
            for number, value in enumerate(values):
                attributes = {"messageUid": uids[number], "k": "v"} if uids else None
                producer.send(topic, value, attributes=attributes, **how)
            producer.flush()
            return tuple(producer.receipts())

    def write(self, topic, *values, outcome=Outcome.WRITTEN, uid_prefix=None, batch_id=None, **how):
        """Send messages and write their manifest; return its file's name."""
        receipts = self.send(topic, *values, **how)
        batch = MicroBatch("query", next(self._numbers) if batch_id is None else batch_id)
        manifest = Manifest(outcome, WriteId(batch), NOON, {}, len(values), receipts, uid_prefix)
        self._files.write(manifest.name, manifest.text)
        return manifest.name + SUFFIX


@pytest.fixture
def writer(server, tmp_path):
    made = Writer(server, tmp_path / "receipts")
    with made.client:
        yield made


@pytest.fixture
def verify(server, writer, capsys):
    """Run the command; return its exit code and what it says in JSON."""

    def run(*arguments):
        at = ("receipts", "verify", str(writer.folder), "--master", server.master, "--json")
        code = cli.main([*at, *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


def bodies(count, what=b"body"):
    return [b"%s %d" % (what, number) for number in range(count)]


def verdicts(report):
    return {(one["topic"], one["brokerId"]): one["verdict"] for one in report["checks"]}


@pytest.mark.parametrize("topic", ["plain", "shared"])
def test_written_messages_are_intact(writer, verify, topic):
    names = [writer.write(topic, *bodies(500, b"%d" % number)) for number in range(3)]

    code, report = verify()

    assert (code, report["sound"], report["manifests"]) == (0, True, 3)
    assert report["verdicts"] == {"intact": len(report["checks"])}
    assert {name for one in report["checks"] for name in one["manifests"]} == set(names)
    assert {one["brokerId"] for one in report["checks"]} == {1, 2, 3}
    assert sum(one["found"]["count"] for one in report["checks"]) == 1_500
    assert all(one["found"] == one["acknowledged"] for one in report["checks"])


def test_people_read_a_table_of_what_is_not_intact_and_a_sentence(server, writer, capsys):
    at = ["receipts", "verify", str(writer.folder), "--master", server.master]
    writer.write("plain", *bodies(10), partition=(1, 0))
    assert cli.main(at) == 0
    assert "1 manifest, 10 messages in 1 range: 1 intact" in capsys.readouterr().out

    server.faults.lose_messages("plain", 4)
    assert cli.main(at) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Not intact" in said
    assert re.search(r"plain/1:0 .* 10 .* 6 .* missing", said)
    assert "10 messages in 1 range: 1 missing" in said


def test_messages_that_a_crash_took_are_missing(server, writer, verify):
    writer.write("lossy", *bodies(96))
    server.faults.crash_broker(2)
    server.faults.start_broker(2)

    code, report = verify()

    assert (code, report["sound"]) == (1, False)
    assert verdicts(report) == {("lossy", 1): "intact", ("lossy", 2): "missing", ("lossy", 3): "intact"}
    (lost,) = [one for one in report["checks"] if one["brokerId"] == 2]
    assert lost["missing"] == lost["acknowledged"]["count"] == 32
    assert [one["reason"] for one in lost["losses"]] == ["TRUNCATED"]


def test_messages_whose_offsets_others_have_got_are_changed(server, writer, verify):
    """As many as a crash took came after it: no reader could notice that by the offsets."""
    writer.write("plain", *bodies(10), partition=(1, 0))
    server.faults.lose_messages("plain", 4)
    writer.send("plain", *bodies(4, b"other"), partition=(1, 0))

    code, report = verify()

    assert (code, verdicts(report)) == (1, {("plain", 1): "changed"})


def test_messages_that_retention_removed_are_expired(server, writer, verify):
    writer.write("plain", *bodies(10), partition=(1, 0))
    server.apply_retention("plain", older_than_ms=0)
    writer.write("plain", *bodies(5), partition=(1, 0))

    code, report = verify()
    assert (code, report["verdicts"]) == (1, {"intact": 1, "expired": 1})

    code, report = verify("--allow-expired")
    assert (code, report["sound"], report["verdicts"]) == (0, True, {"intact": 1, "expired": 1})


def test_messages_that_are_damaged_on_the_disk_are_told(server, writer, verify, tmp_path):
    writer.write("plain", *bodies(10), partition=(1, 0))
    server.faults.stop_broker(1, graceful=True)
    server.faults.start_broker(1)
    (path,) = [one for one in (tmp_path / "tubemq").rglob("*.tube") if b"body 7" in one.read_bytes()]
    path.write_bytes(path.read_bytes().replace(b"body 7", b"BODY 7"))

    code, report = verify()

    assert (code, verdicts(report)) == (1, {("plain", 1): "damaged"})
    assert report["checks"][0]["missing"] == 1


def test_a_topic_that_was_removed_is_told_and_others_are_verified(server, writer, verify):
    writer.write("plain", *bodies(96))
    writer.write("shared", *bodies(30), partition=(2, 1))
    server.remove_topic("plain")

    code, report = verify()

    assert code == 1
    assert verdicts(report) == {("shared", 2): "intact"} | {("plain", n): "removed" for n in (1, 2, 3)}


def test_a_broker_that_is_away_is_told_and_others_are_verified(server, writer, verify):
    writer.write("plain", *bodies(300))
    server.faults.stop_broker(3)

    code, report = verify("--timeout", "1")

    assert code == 1
    assert verdicts(report) == {("plain", 1): "intact", ("plain", 2): "intact", ("plain", 3): "unreadable"}
    (away,) = [one for one in report["checks"] if one["brokerId"] == 3]
    assert "[TUBEMQ_NO_PROGRESS]" in away["error"]


@pytest.mark.parametrize("topic", ["plain", "shared"])
def test_messages_of_other_writers_make_a_check_unclear_and_are_no_fault(writer, verify, topic):
    """Without ids they cannot be told apart."""
    with writer.client.producer() as ours, writer.client.producer() as other:
        for value in bodies(10):
            for producer in (ours, other):
                producer.send(topic, value, partition=(1, 0))
                producer.flush()
        receipts = tuple(ours.receipts())
    manifest = Manifest(Outcome.WRITTEN, WriteId(MicroBatch("query", 0)), NOON, {}, 10, receipts)
    (writer.folder / f"{manifest.name}.json").write_text(manifest.text)

    code, report = verify()

    assert (code, report["sound"], verdicts(report)) == (0, True, {(topic, 1): "unclear"})
    assert report["checks"][0]["found"]["count"] == 19
    assert report["checks"][0]["others"] is None


def test_with_ids_copies_and_messages_of_others_are_told_apart(writer, verify):
    """A copy of each third message, and another producer's after each."""
    uids = [f"abcdefgh{number:020}" for number in range(12)]
    values = bodies(12)
    with writer.client.producer() as producer:
        for number, (uid, value) in enumerate(zip(uids, values, strict=True)):
            for _ in range(2 if number % 3 == 0 else 1):
                producer.send("shared", value, attributes={"a": "b", "messageUid": uid}, partition=(1, 0))
            others = {"messageUid": f"another_{number:020}"} if number % 2 else None
            producer.send("shared", value, attributes=others, partition=(1, 0))
            producer.flush()
    with writer.client.producer() as producer:
        producer.send("shared", values[0], attributes={"messageUid": uids[0]}, partition=(1, 0))
        producer.flush()
        (end,) = producer.receipts()
    name = writer.write("shared", *values, uids=uids, uid_prefix="abcdefgh", partition=(1, 0))
    manifest = json.loads((writer.folder / name).read_text())
    manifest["partitions"][0] |= {"firstOffset": 0, "lastOffset": end.last_offset}
    (writer.folder / name).write_text(json.dumps(manifest))

    code, report = verify()

    assert (code, verdicts(report)) == (0, {("shared", 1): "repeated"})
    (check,) = report["checks"]
    assert check["found"] == check["acknowledged"]
    assert (check["copies"], check["others"]) == (5, 12)


def test_with_ids_a_missing_message_is_noticed_among_those_of_other_writers(server, writer, verify):
    uids = [f"abcdefgh{number:020}" for number in range(10)]
    writer.write("plain", *bodies(10), uids=uids, uid_prefix="abcdefgh", partition=(1, 0))
    server.faults.lose_messages("plain", 1)
    writer.send("plain", *bodies(5, b"other"), partition=(1, 0))

    code, report = verify()

    assert (code, verdicts(report)) == (1, {("plain", 1): "missing"})
    assert (report["checks"][0]["missing"], report["checks"][0]["others"]) == (1, 1)


def test_a_micro_batch_that_was_aborted_and_repeated_is_intact(writer, verify):
    writer.write("plain", *bodies(6), outcome=Outcome.ABORTED, batch_id=7, partition=(1, 0))
    writer.write("plain", *bodies(9), batch_id=7, partition=(1, 0))
    assert verify()[1]["verdicts"] == {"intact": 2}


def test_only_some_writes_are_verified_with_those_that_overlap(server, writer, verify):
    for number in range(3):
        writer.write("plain", *bodies(5), batch_id=number, partition=(1, 0))
    server.faults.lose_messages("plain", 5)

    assert verify("--batch-id", "1")[0] == 0
    assert verify("--batch-id", "2")[0] == 1
    code, report = verify("--query-id", "query", "--batch-id", "0")
    assert (code, report["manifests"], len(report["checks"])) == (0, 1, 1)
    for nothing in (("--query-id", "x"), ("--run-id", "x"), ("--batch-id", "9")):
        code, report = verify(*nothing)
        assert (code, report["manifests"], report["sound"]) == (1, 0, False)


def test_writes_that_are_not_there_are_told_with_those_that_are(server, writer, capsys):
    how = ["receipts", "verify", str(writer.folder), "--master", server.master]
    for batch_id, arguments, told in (
        (7, ["--run-id", "x"], "there is 1 manifest, which is not of --run-id x"),
        (
            8,
            ["--query-id", "query", "--batch-id", "9"],
            "there are 2 manifests, none of which is of --query-id query and --batch-id 9",
        ),
    ):
        writer.write("plain", *bodies(5), batch_id=batch_id, partition=(1, 0))
        assert cli.main([*how, *arguments]) == 1
        written = capsys.readouterr()
        assert written.out == ""
        assert written.err == (
            f"tubemq-spark: nothing was verified: {told}; the names have the ids, "
            f"as in query-query-batch-000000000{batch_id}.json\n"
        )


@pytest.mark.parametrize("topic", ["plain", "shared"])
@pytest.mark.parametrize("with_ids", [True, False])
def test_of_many_short_writes_the_one_that_is_not_intact_is_named(server, writer, verify, topic, with_ids):
    """All are read in one go first."""
    for number in range(20):
        prefix = f"{number:08}" if with_ids else None
        uids = with_ids and [f"{number:08}{row:020}" for row in range(90)]
        writer.write(topic, *bodies(90), uids=uids, uid_prefix=prefix, batch_id=number)
    assert verify()[1]["verdicts"] == {"intact": 60}
    server.faults.lose_messages(topic, 1, broker=2)

    code, report = verify()

    assert (code, report["verdicts"]) == (1, {"intact": 59, "missing": 1})
    (one,) = [one for one in report["checks"] if one["verdict"] == "missing"]
    assert one["manifests"] == ["query-query-batch-0000000019.json"]
    assert (one["brokerId"], one["missing"]) == (2, 1)


def test_a_broker_that_is_away_is_waited_for_once(server, writer, verify):
    for number in range(12):
        writer.write("plain", *bodies(96), batch_id=number)
        writer.send("plain", *bodies(960, b"other"))
    server.faults.stop_broker(3)
    began = time.monotonic()

    code, report = verify("--timeout", "4")

    assert (code, report["verdicts"]["unreadable"]) == (1, 12)
    assert time.monotonic() - began < 40, "each of them was waited for"


def test_no_manifest_is_a_fault(server, writer, capsys):
    assert cli.main(["receipts", "verify", str(writer.folder), "--master", server.master]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert f"nothing was verified: there is no manifest in {writer.folder}; name the" in written.err
