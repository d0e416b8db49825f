"""``tubemq-spark losses`` lists what is in a ledger."""

import datetime
import json

import pytest

from tubemq_spark.cli import main as cli
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.ledger import file_of, micro_batch, planning
from tubemq_spark.offsets.loss import Loss, LossRecord

MET = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
BATCH = micro_batch("etl", "2c09a5c8-query", 7)


@pytest.fixture
def ledger(tmp_path):
    def write(loss, origin, minutes=0):
        name, text = file_of([loss], origin, MET + datetime.timedelta(minutes=minutes))
        (tmp_path / f"{name}.jsonl").write_text(text)

    clicks, orders = TopicPartition("clicks", 1, 0), TopicPartition("orders", 2, 10_000)
    write(LossRecord(Loss.CORRUPT, clicks, 28, 84, 2), BATCH)
    write(LossRecord(Loss.CORRUPT, clicks, 28, 84, 2), BATCH, minutes=1)
    write(LossRecord(Loss.EXPIRED, orders, 0, 280), planning("etl", {"v": 1}), minutes=5)
    return tmp_path


@pytest.fixture
def run(capsys):
    def command(*arguments):
        code = cli.main(["losses", *map(str, arguments)])
        return code, *capsys.readouterr()

    return command


def test_each_gap_is_listed_once_and_makes_the_exit_code_1(run, ledger):
    code, out, err = run(ledger, "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["losses"] == [
        {
            "time": "2026-01-31T12:01:00Z",
            "topic": "clicks",
            "brokerId": 1,
            "partition": 0,
            "startOffset": 28,
            "endOffset": 84,
            "messages": 2,
            "reason": "CORRUPT",
            "consumerGroup": "etl",
            "queryId": "2c09a5c8-query",
            "batchId": 7,
        },
        {
            "time": "2026-01-31T12:05:00Z",
            "topic": "orders",
            "brokerId": 2,
            "partition": 10_000,
            "startOffset": 0,
            "endOffset": 280,
            "reason": "EXPIRED",
            "consumerGroup": "etl",
        },
    ]
    header, first, second = run(ledger)[1].splitlines()
    assert header.split()[:5] == ["TIME", "TOPIC", "BROKER", "ID", "PARTITION"]
    assert first.split()[-4:] == ["CORRUPT", "etl", "2c09a5c8-query", "7"]
    assert second.split()[-2:] == ["EXPIRED", "etl"]


def test_gaps_are_chosen_by_topic_and_by_query(run, ledger):
    def chosen(*arguments):
        code, out, _ = run(ledger, "--json", *arguments)
        return code, [one["topic"] for one in json.loads(out)["losses"]]

    assert chosen("--topic", "orders") == (1, ["orders"])
    assert chosen("--topic", "orders", "--topic", "clicks") == (1, ["clicks", "orders"])
    assert chosen("--query-id", "2c09a5c8-query") == (1, ["clicks"])
    assert chosen("--query-id", "another") == (0, [])


def test_a_ledger_without_losses_is_exit_code_0(run, tmp_path):
    assert run(tmp_path) == (0, "no losses\n", "")
    assert json.loads(run(tmp_path, "--json")[1]) == {"losses": []}


def test_a_folder_that_is_no_ledger_is_exit_code_2(run, tmp_path):
    (tmp_path / "0123.json").write_text("{}")
    code, out, err = run(tmp_path)
    assert (code, out) == (2, "")
    assert err == (
        f"tubemq-spark: [TUBEMQ_FOLDER_UNRELATED] The folder {tmp_path} has no file that lossLedger writes, "
        "but others, such as 0123.json; name the folder that the queries were given.\n"
    )


def test_a_ledger_that_is_not_there_or_damaged_is_told(run, tmp_path):
    code, _, err = run(tmp_path / "nowhere")
    assert (code, "[TUBEMQ_FOLDER_UNUSABLE]" in err) == (1, True)
    (tmp_path / "x.jsonl").write_text("{}\n")
    code, _, err = run(tmp_path)
    assert (code, "[TUBEMQ_LEDGER_MALFORMED]" in err) == (1, True)
