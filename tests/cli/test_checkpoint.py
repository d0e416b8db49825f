"""``tubemq-spark checkpoint`` shows what a query has planned, and writes a new one as Spark would have.

``integration_tests/test_checkpoint_rewind.py`` shows that a stream goes on from there.
"""

import json

import pytest

from tests.cli.stored_checkpoint import SETTINGS, content, offset, store_checkpoint
from tubemq_spark.cli import main as cli
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.marks import Mark
from tubemq_spark.offsets.source_offset import SourceOffset
from tubemq_spark.source.checkpoints import CheckpointFiles
from tubemq_spark.testing.client import TopicClient

BATCHES = ((offset("clicks", {"b1_0": 28}, b1_0=56),), (offset("clicks", {"b2_0": 0}, b1_0=140, b2_0=84),))
KAFKA = '{"demo":{"0":17}}'


@pytest.fixture
def show(capsys):
    def command(folder, *arguments, code=0):
        assert cli.main(["checkpoint", "show", str(folder), *arguments]) == code
        written = capsys.readouterr()
        return written.err if code else written.out

    return command


def partitions(told, *fields):
    return [tuple(one.get(field) for field in fields) for one in json.loads(told)["partitions"]]


def test_the_last_micro_batch_is_shown(show, tmp_path):
    folder = store_checkpoint(tmp_path / "query", *BATCHES, finished=0)
    told = show(folder, "--json")

    query = json.loads((folder / "metadata").read_text())["id"]
    data = json.loads(told)
    del data["partitions"]
    assert data == {
        "checkpoint": str(folder),
        "queryId": query,
        "keepsState": False,
        "lastPlanned": 1,
        "lastFinished": 0,
        "batch": 1,
        "planned": "2026-01-01T00:00:01.000+00:00",
        "finished": False,
    }
    assert partitions(told, "source", "topic", "brokerId", "partition", "begin", "end", "messages") == [
        ("0", "clicks", 1, 0, 56, 140, 3),
        ("0", "clicks", 2, 0, 0, 84, 3),
    ]


def test_one_micro_batch_is_shown(show, tmp_path):
    told = show(store_checkpoint(tmp_path, *BATCHES), "--batch", "0", "--json")
    data = json.loads(told)
    assert (data["batch"], data["lastPlanned"], data["lastFinished"], data["finished"]) == (0, 1, 1, True)
    assert data["finishedAt"].endswith("+00:00")
    assert partitions(told, "begin", "end", "messages") == [(28, 56, 1)]


def test_the_table_is_for_people(show, tmp_path, monkeypatch):
    store_checkpoint(tmp_path / "query", *BATCHES, finished=-1)
    (tmp_path / "query" / "metadata").unlink()
    (tmp_path / "query" / "state" / "0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    lines = show("query").splitlines()
    assert lines[0].split() == ["checkpoint:", str(tmp_path / "query")]
    assert [" ".join(line.split()) for line in lines[1:5]] == [
        "queryId: not known",
        "keepsState: yes",
        "lastPlanned: 1",
        "lastFinished: 0",
    ]
    assert lines[-3].split() == ["SOURCE", "TOPIC", "BROKER", "ID", "PARTITION", "BEGIN", "END", "MESSAGES"]
    assert lines[-1].split() == ["0", "clicks", "2", "0", "0", "84", "3"]


def test_sources_of_others_are_passed_over_and_names_are_shown(show, tmp_path):
    sources = [(KAFKA, offset("clicks", {"b1_0": 0}, b1_0=28)), (KAFKA, offset("clicks", b1_0=84))]
    told = show(store_checkpoint(tmp_path, *sources, names=["kafka", "mine"]), "--json")
    assert partitions(told, "source", "begin", "end") == [("mine", 28, 84)]


def test_where_the_oldest_micro_batch_began_is_not_known(show, tmp_path):
    told = show(store_checkpoint(tmp_path, *BATCHES, first=7), "--batch", "7", "--json")
    assert partitions(told, "begin", "end") == [(28, 56)]
    told = show(store_checkpoint(tmp_path / "b", (offset("clicks", b1_0=56),), first=7), "--json")
    assert partitions(told, "begin", "end", "messages") == [(None, 56, None)]


def test_what_is_not_there_is_refused(show, tmp_path):
    assert "[TUBEMQ_CHECKPOINT_UNREADABLE]" in show(tmp_path / "nowhere", code=2)
    store_checkpoint(tmp_path / "query", *BATCHES, first=7)
    said = show(tmp_path / "query", "--batch", "6", code=2)
    assert "--batch is '6', but must be one that the checkpoint has: 7 to 8." in said


def test_a_secret_in_a_place_is_not_shown(refused):
    said = refused("checkpoint", "show", "ftp://me:secret@host/x")
    assert "ftp://***@host/x" in said
    assert "secret" not in said


def test_marks_are_shown(show, tmp_path):
    place = TopicPartition("clicks", 1, 0)
    end = SourceOffset({place: 56}, {place: 28}, marks=(Mark(place, 28, 1_795_768_270, 0xABCD, 20),))
    folder = store_checkpoint(tmp_path, (end,))

    assert json.loads(show(folder, "--json"))["marks"] == [
        {
            "source": "0",
            "topic": "clicks",
            "brokerId": 1,
            "partition": 0,
            "offset": 28,
            "messageId": 1_795_768_270,
            "checksum": "0000abcd",
            "length": 20,
        }
    ]
    assert show(folder).splitlines()[-1].split() == [
        "0",
        "clicks",
        "1",
        "0",
        "28",
        "1795768270",
        "0000abcd",
        "20",
    ]


def test_a_log_that_was_replaced_begins_where_the_checkpoint_says(show, tmp_path):
    place = TopicPartition("clicks", 1, 0)
    batches = (SourceOffset({place: 140}, {place: 0}),), (SourceOffset({place: 56}, replaced={place: 28}),)
    told = show(store_checkpoint(tmp_path, *batches), "--json")

    assert partitions(told, "begin", "end", "messages") == [(28, 56, 1)]


LATER = '{"demo":{"0":23}}'
REWOUND = (
    (offset("clicks", {"b1_0": 0, "b2_0": 0}, b1_0=28, b2_0=28),),
    (offset("clicks", b1_0=56, b2_0=84),),
    (offset("clicks", b1_0=112, b2_0=84),),
)


@pytest.fixture
def server():
    """Two brokers with five messages each, one per minute."""
    with EmbeddedTubeMQ(topics={"clicks": (1, 1)}, brokers=2) as running:
        with TopicClient(running.master, "sender") as client:
            for broker in (1, 2):
                for minute in range(5):
                    time = f"20260101000{minute}"
                    client.send("clicks", "x", partition=(broker, 0), message_time=time)
        yield running


@pytest.fixture
def rewind(server, capsys, tmp_path):
    """Rewind a checkpoint; return what is told, or the error."""

    def command(*arguments, old=tmp_path / "old", new=tmp_path / "new", code=0):
        given = ["checkpoint", "rewind", str(old), str(new), *arguments, "--json"]
        assert cli.main([*given, "--master", server.master]) == code
        written = capsys.readouterr()
        return written.err if code else json.loads(written.out)

    return command


@pytest.fixture
def old(tmp_path):
    return store_checkpoint(tmp_path / "old", *REWOUND)


def moved(told):
    return [(one["brokerId"], one["now"], one["then"], one["messages"]) for one in told["partitions"]]


def files(folder):
    return CheckpointFiles(FolderUri(str(folder)))


def test_the_new_checkpoint_stands_where_it_was_asked_to(rewind, old, tmp_path):
    before = content(old)
    for number, (arguments, expected) in enumerate(
        [
            (["--to", "earliest"], [(1, 112, 0, -4), (2, 84, 0, -3)]),
            (["--to", "latest"], [(1, 112, 140, 1), (2, 84, 140, 2)]),
            (["--to", "28"], [(1, 112, 28, -3), (2, 84, 28, -2)]),
            (["--to", "2026-01-01T00:03"], [(1, 112, 84, -1), (2, 84, 84, 0)]),
            (["--to", "2026-01-01T09:03+09:00"], [(1, 112, 84, -1), (2, 84, 84, 0)]),
            (["--batch", "1"], [(1, 112, 56, -2), (2, 84, 84, 0)]),
            (["--offsets", '{"clicks":{"2:0":56}}'], [(1, 112, 112, 0), (2, 84, 56, -1)]),
            (["--offsets", '{"clicks":"latest"}'], [(1, 112, 140, 1), (2, 84, 140, 2)]),
            (["--offsets", '{"clicks":{"1:0":-2}}'], [(1, 112, 0, -4), (2, 84, 84, 0)]),
        ]
    ):
        new = tmp_path / f"new{number}"
        assert moved(rewind(*arguments, new=new)) == expected, arguments
        (progress,) = files(new).progress().sources.values()
        assert sorted(progress.reached.items()) == sorted(progress.planned.items())
        assert [at for _, at in sorted(progress.reached.items())] == [then for _, _, then, _ in expected]
    assert content(old) == before


def test_what_spark_finds_is_an_empty_micro_batch_behind_the_old_ones(rewind, old, tmp_path):
    told = rewind("--to", "28")
    new = tmp_path / "new"

    assert sorted(path.name for path in new.rglob("*") if path.is_file()) == ["2", "3", "metadata"]
    assert told["nextBatch"] == 3
    assert json.loads((new / "metadata").read_text()) == {"id": told["queryId"]}
    assert told["queryId"] != files(old).query_id()
    version, settings, end = (new / "offsets" / "3").read_text().split("\n")
    assert (version, end) == ("v1", json.dumps(offset("clicks", b1_0=28, b2_0=28).to_json()))
    assert end == (new / "offsets" / "2").read_text().split("\n")[2]
    assert json.loads(settings)["conf"] == SETTINGS["conf"]
    assert json.loads(settings)["batchWatermarkMs"] == 0
    assert json.loads(settings)["batchTimestampMs"] > 1_785_000_000_000


def test_state_is_left_out_when_that_is_asked_for(rewind, old, tmp_path):
    (old / "state" / "0").mkdir(parents=True)
    refused = rewind("--to", "28", code=2)
    assert "[TUBEMQ_CHECKPOINT_STATE]" in refused
    assert not (tmp_path / "new").exists()

    told = rewind("--to", "28", "--drop-state")
    new = tmp_path / "new"
    assert told["nextBatch"] == 0
    assert sorted(path.name for path in new.rglob("*") if path.is_file()) == ["0", "metadata"]
    first = offset("clicks", {"b1_0": 28, "b2_0": 28}, b1_0=28, b2_0=28)
    assert json.loads((new / "offsets" / "0").read_text().split("\n")[2]) == first.to_json()


def test_state_of_several_sources_cannot_be_left_out(rewind, tmp_path):
    store_checkpoint(tmp_path / "old", (KAFKA, offset("clicks", {"b1_0": 0}, b1_0=56)))
    (tmp_path / "old" / "state" / "0").mkdir(parents=True)
    said = rewind("--batch", "0", "--source", "1", "--drop-state", code=2)
    assert "[TUBEMQ_CHECKPOINT_STATE_OF_SOURCES]" in said


def test_other_sources_go_on_where_the_micro_batch_ended(rewind, tmp_path):
    begins = offset("clicks", {"b1_0": 0, "b2_0": 0}, b1_0=28, b2_0=28)
    batches = [(KAFKA, begins), (LATER, offset("clicks", b1_0=56, b2_0=56))]
    old = store_checkpoint(
        tmp_path / "old", *batches, ("unfinished", batches[1][1]), finished=1, names=["a", "b"]
    )
    kept = old / "sources" / "a" / "deeper" / "7"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"what a source keeps")
    said = rewind("--to", "28", code=2)
    assert "--source is '', but must be the source that is meant of this query's 2" in said
    assert "these read from TubeMQ: b." in said
    assert "--source is 'a'" in rewind("--to", "28", "--source", "a", code=2)

    for name, arguments, kafka in ("x", ("--to", "28"), LATER), ("y", ("--batch", "0"), KAFKA):
        told = rewind(*arguments, "--source", "b", new=tmp_path / name)
        assert told["nextBatch"] == 3
        for number in "2", "3":
            lines = (tmp_path / name / "offsets" / number).read_text().split("\n")
            assert lines[0] == "v2"
            assert lines[2:] == [
                f"a:{kafka}",
                f"b:{json.dumps(offset('clicks', b1_0=28, b2_0=28).to_json())}",
            ]
        assert (tmp_path / name / kept.relative_to(old)).read_bytes() == b"what a source keeps"


def test_nothing_has_finished(rewind, tmp_path):
    store_checkpoint(tmp_path / "old", (KAFKA, REWOUND[0][0]), finished=-1)
    assert moved(rewind("--to", "56", "--source", "1")) == [(1, 0, 56, 2), (2, 0, 56, 2)]
    lines = (tmp_path / "new" / "offsets" / "1").read_text().split("\n")
    assert lines[2] == "-", "the other source has no offset"
    said = rewind("--batch", "0", "--source", "1", new=tmp_path / "other", code=2)
    assert "a finished micro-batch of source 1 that the checkpoint still has: none has finished." in said


def test_a_source_that_came_later_has_no_earlier_micro_batch(rewind, tmp_path):
    begins = offset("clicks", {"b1_0": 0, "b2_0": 0}, b1_0=28, b2_0=28)
    store_checkpoint(tmp_path / "old", (KAFKA,), (LATER, begins), names=["a", "b"])
    said = rewind("--batch", "0", "--source", "b", code=2)
    assert "a finished micro-batch of source b that the checkpoint still has: 1 to 1." in said


def test_partitions_that_are_new_go_on_there_too_and_those_that_are_gone_stay(rewind, tmp_path):
    store_checkpoint(tmp_path / "old", (offset("clicks", {"b1_0": 0, "b9_0": 0}, b1_0=28, b9_0=28),))
    told = rewind("--to", "56")
    assert moved(told) == [(1, 28, 56, 1), (2, None, 56, None), (9, 28, 28, 0)]
    lines = (tmp_path / "new" / "offsets" / "1").read_text().split("\n")
    assert json.loads(lines[2])["from"] == {"clicks": {"2:0": 56}}


def test_of_chosen_partitions_only_these_go_on(rewind, tmp_path):
    """What ``assign`` left out is not read."""
    chosen = SourceOffset(
        {TopicPartition("clicks", 1, 0): 28}, {TopicPartition("clicks", 1, 0): 0}, partial=True
    )
    store_checkpoint(tmp_path / "old", (chosen,))
    assert moved(rewind("--to", "56")) == [(1, 28, 56, 1)]
    (progress,) = files(tmp_path / "new").progress().sources.values()
    assert progress.partial


def test_a_dry_run_writes_nothing(rewind, old, tmp_path):
    told = rewind("--to", "28", "--dry-run")
    assert (moved(told)[0], told["written"]) == ((1, 112, 28, -3), False)
    assert not (tmp_path / "new").exists()


def test_the_times_of_the_messages_to_go_on_with_are_shown(rewind, old):
    told = rewind("--offsets", '{"clicks":{"1:0":28,"2:0":140}}', "--dry-run")
    assert [one["time"] for one in told["partitions"]] == ["2026-01-01T00:01Z", None]
    told = rewind("--to", "2026-01-01T00:03", "--message-time-zone", "Asia/Shanghai", "--dry-run")
    assert {one["time"] for one in told["partitions"]} == {None}
    told = rewind("--to", "2025-12-31T16:03", "--message-time-zone", "Asia/Shanghai", "--dry-run")
    assert {one["time"] for one in told["partitions"]} == {"2025-12-31T16:03Z"}


def test_no_server_is_needed_to_go_back_to_a_micro_batch(old, tmp_path, capsys):
    assert cli.main(["checkpoint", "rewind", str(old), str(tmp_path / "new"), "--batch", "1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["TOPIC", "BROKER", "ID", "PARTITION", "NOW", "THEN", "MESSAGES"]
    assert out[1].split() == ["clicks", "1", "0", "112", "56", "-2"]
    assert out[-1].startswith(f"start the query with checkpointLocation {tmp_path / 'new'}; ")


def test_a_place_that_is_none_is_refused(rewind, old, tmp_path):
    for arguments, code, said in (
        (["--to", "29"], 2, "29 of --to is not an offset; offsets are multiples of 28"),
        (["--to", "168"], 2, "asks for offset 168 of clicks/1:0, but its log has offsets from 0 to 140"),
        (["--offsets", '{"clicks":{"3:0":0}}'], 2, "partitions that do not exist: clicks/3:0"),
        (["--offsets", '{"orders":{"1:0":0}}'], 2, "partitions that do not exist: orders/1:0"),
        (["--offsets", '{"clicks":{"1:0":{"time":0}}}'], 2, "it does not name offsets"),
        (["--batch", "3"], 2, "still has: 0 to 2."),
    ):
        assert said in rewind(*arguments, code=code), arguments
    assert not (tmp_path / "new").exists()


def test_only_a_new_folder_is_written_to(rewind, old, tmp_path):
    (tmp_path / "file").write_text("taken")
    (tmp_path / "full" / "folder").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    before = content(tmp_path)
    for place in tmp_path / "full", old, old / "new":
        said = rewind("--batch", "1", new=place, code=2)
        assert "must be a folder that is not there, or is empty, and not a part of the old checkpoint" in said
    assert content(tmp_path) == before
    rewind("--batch", "1", new=tmp_path / "empty")
    rewind("--batch", "1", old=f"file://{old}", new=f"file://{tmp_path}/uri")
    assert files(tmp_path / "uri").progress() == files(tmp_path / "empty").progress()
    within = f"file://{old}/new"
    assert "not a part of the old checkpoint" in rewind("--batch", "1", new=within, code=2)
    for unusable in tmp_path / "file", "file:///proc/nowhere/new":
        assert "[TUBEMQ_FOLDER_UNUSABLE]" in rewind("--batch", "1", new=unusable, code=1)


def test_marks_before_the_new_offsets_are_kept(rewind, tmp_path):
    places = [TopicPartition("clicks", broker, 0) for broker in (1, 2)]
    first, second = (Mark(place, 56, 7, 8, 9) for place in places)
    end = SourceOffset(dict.fromkeys(places, 84), marks=(first, second))
    store_checkpoint(tmp_path / "old", *REWOUND, (end,))

    rewind("--offsets", '{"clicks":{"1:0":56}}')

    files = CheckpointFiles(FolderUri.parse(str(tmp_path / "new")))
    (kept,) = files.log(files.last).of_ours().values()
    assert kept.marks == (second,)


def test_marks_of_a_micro_batch_are_kept(rewind, tmp_path):
    place = TopicPartition("clicks", 1, 0)
    ends = [
        SourceOffset({place: 28 * (number + 1)}, marks=(Mark(place, 28 * number, number, 8, 9),))
        for number in range(3)
    ]
    store_checkpoint(tmp_path / "old", *((end,) for end in ends))

    rewind("--batch", "1")

    files = CheckpointFiles(FolderUri.parse(str(tmp_path / "new")))
    (kept,) = files.log(files.last).of_ours().values()
    assert kept.marks == ends[1].marks
