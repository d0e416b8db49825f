"""``tubemq-spark checkpoint show`` says what a query has planned and finished, without any server."""

import json

import pytest

from tests.cli.stored_checkpoint import offset, store_checkpoint
from tubemq_spark.cli import main as cli
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.marks import Mark
from tubemq_spark.offsets.source_offset import SourceOffset

BATCHES = (
    (offset("clicks", {"b1_0": 28}, b1_0=56),),
    (offset("clicks", {"b2_0": 0}, b1_0=140, b2_0=84),),
)
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


def test_a_secret_in_a_place_is_not_shown(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["checkpoint", "show", "ftp://me:secret@host/x"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
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
