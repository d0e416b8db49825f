"""``tubemq-spark lag`` and ``losses``: what views tell, and when they are a failure."""

import datetime
import json
import subprocess
import sys

import pytest

from tests.cli.stored_checkpoint import offset, store_checkpoint
from tests.waiting import wait_until
from tubemq_spark.cli import main as cli, views
from tubemq_spark.client import ClientConfig
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.offsets.ledger import file_of, micro_batch, planning
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.testing.client import TopicClient

MESSAGES = {("clicks", 1, 0): 10, ("clicks", 2, 0): 20, ("orders", 1, 0): 3, ("orders", 1, 1): 3}


@pytest.fixture
def server():
    """Two brokers; the partitions of a topic share a store."""
    with EmbeddedTubeMQ(topics={"clicks": (1, 1), "orders": (1, 2)}, brokers=2) as running:
        with TopicClient(running.master, "sender") as client:
            for (topic, *partition), count in MESSAGES.items():
                client.send(
                    topic, *("x" * 100,) * count, partition=tuple(partition), message_time="202601010000"
                )
        yield running


@pytest.fixture
def run(server, command_on):
    return command_on(server, "lag")


@pytest.fixture
def checkpoint(tmp_path):
    """A query that has read half of one topic, and of another one unevenly what shares a store."""
    clicks = offset("clicks", {"b1_0": 0, "b2_0": 0}, b1_0=140, b2_0=560)
    orders = offset("orders", {"b1_0": 0, "b1_1": 0, "b2_0": 0, "b2_1": 0}, b1_0=56, b1_1=112, b2_0=0, b2_1=0)
    return str(store_checkpoint(tmp_path / "query", (clicks, orders)))


def test_each_partition_has_its_lag_and_each_store_counts_once(run, checkpoint):
    code, out, err = run("--checkpoint", checkpoint, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    lags = {(one["topic"], one["brokerId"], one["partition"]): one["lag"] for one in told["partitions"]}
    assert lags[("clicks", 1, 0)] == 5
    assert lags[("clicks", 2, 0)] == 0
    assert (lags[("orders", 1, 0)], lags[("orders", 1, 1)]) == (4, 2)
    assert told["lag"] == 5 + 4
    assert told["messagesExpired"] == 0
    assert told["time"].endswith("Z")
    first = told["partitions"][0]
    assert first["source"] == "0"
    assert (first["offset"], first["earliest"], first["latest"], first["messagesUntilExpiry"]) == (
        140,
        0,
        280,
        5,
    )
    assert first["bytes"] > 5 * 100
    assert first["nextTime"] == "2026-01-01T00:00:00Z"
    assert "error" not in first


def test_people_get_bars_and_totals(run, checkpoint):
    code, out, _ = run("--checkpoint", checkpoint)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == [
        *("SOURCE", "TOPIC", "BROKER", "ID", "PARTITION", "LAG", "BYTES", "AGE", "LEFT", "EXPIRED", "STATE")
    ]
    assert lines[1].split()[:6] == ["0", "clicks", "1", "0", "5", "#" * 20]
    assert next(line.split()[4:6] for line in lines if " orders " in line) == ["4", "#" * 16]
    assert "#" not in lines[2]
    assert "  9 messages unread (" in lines[-1]


def test_topics_are_chosen(run, checkpoint):
    _, out, _ = run("orders", "--checkpoint", checkpoint, "--json")
    assert {one["topic"] for one in json.loads(out)["partitions"]} == {"orders"}
    code, out, err = run("other", "--checkpoint", checkpoint)
    assert (code, err) == (1, "tubemq-spark: none of these topics is read\n")


def test_the_exit_code_tells_of_too_much(run, checkpoint):
    assert run("--checkpoint", checkpoint, "--max-rows", "9")[0] == 0
    code, _, err = run("--checkpoint", checkpoint, "--max-rows", "8", "--json")
    assert (code, err) == (1, "tubemq-spark: 9 messages are unread, more than 8\n")
    code, _, err = run("--checkpoint", checkpoint, "--max-rows", "8", "--watch")
    assert code == 2
    assert "Only one of --watch and --max-rows" in err


def test_a_group_is_behind_what_it_has_committed(server, run):
    cluster = open_cluster(ClusterConfig(ClientConfig((Endpoint.parse(server.master),), "etl")))
    layout = cluster.layout(["clicks"])
    assert not cluster.move_group(
        layout, {TopicPartition("clicks", 1, 0): 28, TopicPartition("clicks", 2, 0): 56}
    )
    wait_until(lambda: run("--group", "etl")[0] == 0)
    told = json.loads(run("--group", "etl", "--json")[1])
    assert told["lag"] == 9 + 18
    assert "source" not in told["partitions"][0]
    assert run("--group", "etl")[1].split()[0] == "TOPIC", "a group has no sources"
    code, _, err = run("--group", "nosuch")
    assert code == 1
    assert err == (
        "tubemq-spark: [TUBEMQ_GROUP_UNKNOWN] No broker has an offset of the group 'nosuch'; correct its "
        "name, or try again some seconds after its first consumer came.\n"
    )


def test_what_expired_and_what_is_not_known_is_exit_code_1(server, run, checkpoint):
    server.apply_retention("clicks", older_than_ms=0)
    code, out, err = run("clicks", "--checkpoint", checkpoint)
    assert code == 1
    assert "clicks/1:0: [TUBEMQ_DATA_LOSS.EXPIRED]" in err
    assert out.splitlines()[-1].endswith("0 messages unread (0 B); 5 expired unread")
    server.faults.stop_broker(2)
    code, out, err = run("clicks", "--checkpoint", checkpoint)
    assert code == 1
    assert "clicks/2:0: [TUBEMQ_CONNECT" in err
    assert out.splitlines()[-1].endswith("5 expired unread; unknown in 1 of 2 partitions")


def test_what_is_watched_is_a_line_each_time_where_no_terminal_is(server, checkpoint):
    for as_json in False, True:
        watching = subprocess.Popen(
            [
                *(sys.executable, "-m", "tubemq_spark", "lag", "--checkpoint", checkpoint, "--watch", "0.05"),
                *("--master", server.master, *(["--json"] if as_json else [])),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        with watching:
            lines = [watching.stdout.readline() for _ in range(2)]
            watching.kill()
        for line in lines:
            assert json.loads(line)["lag"] == 9 if as_json else "  9 messages unread (" in line


def test_a_terminal_shows_the_table_again_and_again(run, checkpoint, monkeypatch):
    shown = []

    def pause(_):
        if len(shown) == 2:
            raise KeyboardInterrupt

    class Screen:
        def __enter__(self):
            return lambda text: shown.append(text.plain)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("tubemq_spark.cli.screen.live", Screen)
    monkeypatch.setattr(views.time, "sleep", pause)
    monkeypatch.setattr(views.sys.stdout, "isatty", lambda: True, raising=False)
    assert run("--checkpoint", checkpoint, "--watch")[0] == 130
    assert len(shown) == 2
    assert "#" * 20 in shown[0]


@pytest.mark.parametrize(
    ("size", "text"), [(None, None), (0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB")]
)
def test_sizes_are_short(size, text):
    assert views._size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, None), (59, "0m"), (60, "1m"), (3_900, "1h 5m"), (90_000, "1d 1h")]
)
def test_ages_are_short(seconds, text):
    assert views._age(seconds) == text


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
def losses(capsys):
    def command(*arguments):
        code = cli.main(["losses", *map(str, arguments)])
        return code, *capsys.readouterr()

    return command


def test_each_gap_is_listed_once_and_makes_the_exit_code_1(losses, ledger):
    code, out, err = losses(ledger, "--json")
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
    header, first, second = losses(ledger)[1].splitlines()
    assert header.split()[:5] == ["TIME", "TOPIC", "BROKER", "ID", "PARTITION"]
    assert first.split()[-4:] == ["CORRUPT", "etl", "2c09a5c8-query", "7"]
    assert second.split()[-2:] == ["EXPIRED", "etl"]


def test_gaps_are_chosen_by_topic_and_by_query(losses, ledger):
    def chosen(*arguments):
        code, out, _ = losses(ledger, "--json", *arguments)
        return code, [one["topic"] for one in json.loads(out)["losses"]]

    assert chosen("--topic", "orders") == (1, ["orders"])
    assert chosen("--topic", "orders", "--topic", "clicks") == (1, ["clicks", "orders"])
    assert chosen("--query-id", "2c09a5c8-query") == (1, ["clicks"])
    assert chosen("--query-id", "another") == (0, [])


def test_a_ledger_without_losses_is_exit_code_0(losses, tmp_path):
    assert losses(tmp_path) == (0, "no losses\n", "")
    assert json.loads(losses(tmp_path, "--json")[1]) == {"losses": []}


def test_a_folder_that_is_no_ledger_is_exit_code_2(losses, tmp_path):
    (tmp_path / "0123.json").write_text("{}")
    code, out, err = losses(tmp_path)
    assert (code, out) == (2, "")
    assert err == (
        f"tubemq-spark: [TUBEMQ_FOLDER_UNRELATED] The folder {tmp_path} has no file that lossLedger writes, "
        "but others, such as 0123.json; name the folder that the queries were given.\n"
    )


def test_a_ledger_that_is_not_there_or_damaged_is_told(losses, tmp_path):
    code, _, err = losses(tmp_path / "nowhere")
    assert (code, "[TUBEMQ_FOLDER_UNUSABLE]" in err) == (1, True)
    (tmp_path / "x.jsonl").write_text("{}\n")
    code, _, err = losses(tmp_path)
    assert (code, "[TUBEMQ_LEDGER_MALFORMED]" in err) == (1, True)
