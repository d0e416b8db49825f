"""The commands that produce and consume, and look at topics and offsets, on three brokers."""

import json
import re
import signal
import subprocess
import sys
import threading

import pytest

from tests.waiting import wait_until
from tubemq_spark.cli import consume, main as cli
from tubemq_spark.cli.consume import unescaped
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError


@pytest.fixture
def server(tmp_path):
    topics = {"shared": (1, 3)} | dict.fromkeys(["plain", "lines", "pipe", "empty", "timed", "gone"], (1, 1))
    with EmbeddedTubeMQ(tmp_path / "tubemq", topics, brokers=3) as running:
        yield running


@pytest.fixture
def run(server, capfdbinary):
    """Run a command; return its exit code, and what it writes to both outputs."""

    def command(name, *arguments):
        code = cli.main([name, *arguments, "--master", server.master, "--timeout", "5"])
        written = capfdbinary.readouterr()
        return code, written.out, written.err.decode()

    return command


@pytest.fixture
def web(server):
    return ("--web", server.master_web)


def process(server, *arguments, **how):
    """Start a command as users do."""
    place = ("--master", server.master, "--timeout", "5")
    return subprocess.Popen([sys.executable, "-m", "tubemq_spark", *arguments, *place], **how)


def test_lines_are_stored_and_come_back(run, server, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\ntwo\r\nthr\xffee\nfour")
    code, out, err = run("produce", "lines", str(file), "--partition", "1:0")
    assert (code, out) == (0, b"")
    assert "4 messages (16 bytes) to 1 partition" in err
    assert run("consume", "lines", "--partition", "1:0") == (0, b"one\ntwo\nthr\xffee\nfour\n", "")
    assert run("consume", "lines", "--count", "2", "--delimiter", r"\0")[1] == b"one\0two\0"
    assert run("consume", "lines", "--from", "28", "--to", "56", "--partition", "1:0")[1] == b"two\n"


def test_short_options_are_those_of_kcat(run, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"anna:1\nben:2\nanna:3\n")
    assert run("produce", "lines", str(file), "-K", ":", "-H", "colour=red", "-p", "1:0")[0] == 0
    assert run("consume", "lines", "-p", "1:0", "-o", "28", "-c", "1", "-D", ";")[1] == b"2;"
    assert run("consume", "lines", "-p", "1:0", "-n", "2", "-f", r"%s\n")[1] == b"2\n3\n"
    told = json.loads(run("consume", "lines", "-p", "1:0", "-c", "1", "-J")[1])
    assert (told["value"], told["attributes"]["colour"]) == ("1", "red")


def test_messages_consumed_as_json_can_be_produced_again(run, tmp_path):
    given = [
        {"value": "a,b", "messageType": "red", "messageTime": "202601020304", "attributes": {"k": "v"}},
        {"valueBase64": "/w==", "key": "anna"},
        {"value": "named", "brokerId": 2, "partition": 0},
    ]
    file = tmp_path / "lines.json"
    file.write_text("".join(json.dumps(line) + "\n" for line in given))
    code, out, _ = run("produce", "plain", str(file), "--json-lines", "--json", "--no-message-time")
    assert code == 0
    told = json.loads(out)
    assert (told["messages"], told["bytes"], told["sentAgain"], told["extraCopiesAtMost"]) == (3, 9, 0, 0)
    assert sum(one["messages"] for one in told["partitions"]) == 3

    _, out, _ = run("consume", "plain", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    by_value = {line.get("value", line.get("valueBase64")): line for line in found}
    assert by_value["a,b"]["messageType"] == "red"
    assert by_value["a,b"]["messageTime"] == "202601020304"
    assert by_value["a,b"]["attributes"] == {"$msgType$": "red", "$msgTime$": "202601020304", "k": "v"}
    assert "attributes" not in by_value["/w=="]
    assert by_value["named"]["brokerId"] == 2
    assert by_value["named"]["offset"] % 28 == 0

    file.write_bytes(out)
    assert run("produce", "shared", str(file), "--json-lines", "--no-message-time")[0] == 0
    _, out, _ = run("consume", "shared", "--json")
    again = [json.loads(line) for line in out.splitlines()]
    told = [(line.get("value"), line.get("valueBase64"), line.get("attributes")) for line in again]
    assert sorted(told, key=str) == sorted(
        [(line.get("value"), line.get("valueBase64"), line.get("attributes")) for line in found], key=str
    )
    assert "offset" not in again[0]


@pytest.mark.parametrize(
    ("line", "arguments", "complaint"),
    [
        (b"", [], "line 2: it is blank"),
        (b"no key", ["--key-delimiter", "="], "line 2: it has no '='"),
        (b"{", ["--json-lines"], "line 2: it is not JSON"),
        (b"[]", ["--json-lines"], "line 2: it is not a JSON object"),
        (
            b'{"value": "x", "brokerId": 1e400, "partition": 0}',
            ["--json-lines"],
            "line 2: its fields have other types.*infinity",
        ),
        (b'{"value": 7}', ["--json-lines"], "line 2: its fields have other types.*value is not a text"),
        (b'{"valueBase64": "?"}', ["--json-lines"], "line 2: .*not base64"),
        (b'{"value": "a", "colour": "red"}', ["--json-lines"], "line 2: it has 'colour', which is none of"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named(run, tmp_path, line, arguments, complaint):
    first = b'{"value": "sound"}' if "--json-lines" in arguments else b"a=sound"
    file = tmp_path / "lines.txt"
    file.write_bytes(first + b"\n" + line + b"\nnever sent\n")
    code, _, err = run("produce", "empty", str(file), *arguments)
    assert code == 2
    assert "stored before it ended: 1 message (" in err
    assert re.search(complaint, err)


def test_what_was_stored_is_told_only_if_something_was(run, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"a\n")
    code, _, err = run("produce", "nowhere", str(file))
    assert code == 1
    assert "Topic 'nowhere' does not exist" in err
    assert "stored before it ended" not in err


def test_an_empty_file_shows_a_topic_or_a_master_that_is_not_there(run, capfdbinary):
    assert run("produce", "plain", "/dev/null") == (0, b"", "0 messages (0 bytes) to 0 partitions\n")
    code, out, err = run("produce", "plian", "/dev/null")
    assert (code, out) == (1, b"")
    assert err == (
        "tubemq-spark: [TUBEMQ_TOPIC_UNKNOWN] Topic 'plian' does not exist; create it, or correct its name.\n"
    )
    assert cli.main(["produce", "plain", "/dev/null", "--master", "127.0.0.1:1"]) == 1
    assert b"[TUBEMQ_NO_MASTER]" in capfdbinary.readouterr().err


def test_blank_lines_can_be_left_out(run, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"\na\n\r\nb\n")
    assert "2 messages" in run("produce", "empty", str(file), "--skip-blank-lines")[2]


def test_topics_are_listed_and_described(run, web):
    listed = run("topics", "list", *web)[1].decode().split()
    assert listed == ["TOPIC", "empty", "gone", "lines", "pipe", "plain", "shared", "timed"]
    code, out, _ = run("topics", "describe", "shared", "plain", "--json", *web)
    stores = json.loads(out)["stores"]
    assert code == 0
    assert {(one["topic"], one["brokerId"], one["partitions"]) for one in stores} == {
        (topic, broker, count) for topic, count in (("plain", 1), ("shared", 3)) for broker in (1, 2, 3)
    }
    assert all(one["messages"] == (one["latest"] - one["earliest"]) // 28 for one in stores)
    header, *rows = run("topics", "describe", "shared", *web)[1].decode().splitlines()
    assert header.split()[:3] == ["TOPIC", "BROKER", "ID"]
    assert len(rows) == 3


def test_offsets_at_a_time(run, web, tmp_path):
    file = tmp_path / "lines.txt"
    for minute in ("202601010000", "202601010005"):
        file.write_text("a\nb\n")
        run("produce", "timed", str(file), "--partition", "3:0", "--message-time", minute)
    where = ("timed", "--partition", "3:0", "--json", *web)
    code, out, _ = run("offsets", *where, "--at", "2026-01-01T00:03")
    assert code == 0
    (row,) = json.loads(out)["partitions"]
    assert (row["earliest"], row["at"], row["latest"]) == (0, 56, 112)
    (row,) = json.loads(run("offsets", *where, "--at", "2026-01-01T08:05+08:00")[1])["partitions"]
    assert row["at"] == 56
    (row,) = json.loads(run("offsets", *where, "--at", "2026-02-01")[1])["partitions"]
    assert row["at"] == 112
    assert run("consume", "timed", "--partition", "3:0", "--from", "2026-01-01T00:03")[1] == b"a\nb\n"


def test_a_broker_that_is_away_leaves_the_others(run, server, web):
    server.faults.stop_broker(2)
    try:
        code, out, err = run("offsets", "gone", "--json", *web)
        assert code == 1
        rows = {row["brokerId"]: row["latest"] for row in json.loads(out)["partitions"]}
        assert rows == {1: 0, 2: None, 3: 0}
        assert "gone/2 store 0: [TUBEMQ_" in err
        code, out, err = run("topics", "describe", "gone", *web)
        assert (code, len(out.splitlines())) == (1, 4)
    finally:
        server.faults.start_broker(2)


def test_a_topic_that_does_not_exist_is_exit_code_1(run, web, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("a\n")
    for arguments in (["produce", "plian", str(file)], ["consume", "plian"], ["offsets", "plian", *web]):
        code, out, err = run(*arguments)
        assert (code, out) == (1, b"")
        assert "Topic 'plian' does not exist" in err.splitlines()[-1]


def test_a_read_of_a_misspelt_topic_is_told_the_one_that_was_perhaps_meant(run, web):
    for command in "consume", "offsets":
        assert run(command, "plian", *web)[2].endswith("correct its name (did you mean 'plain'?).\n")


def test_a_partition_that_does_not_exist_is_refused_with_those_that_do(run):
    code, _, err = run("consume", "plain", "--partition", "9:0")
    assert code == 2
    assert "one of 1:0, 2:0, 3:0" in err


def test_arguments_that_exclude_each_other_are_exit_code_2(run):
    assert run("consume", "plain", "--follow", "--to", "latest")[0] == 2
    assert run("produce", "plain", "--json-lines", "--key-delimiter", ":")[0] == 2


@pytest.mark.parametrize(
    ("text", "meant"), [(r"\n", b"\n"), (r"\\n", b"\\n"), (r"\t|", b"\t|"), ("é", "é".encode()), ("", b"")]
)
def test_delimiters(text, meant):
    assert unescaped(text) == meant


def test_produce_reads_standard_input_and_consume_ends_with_its_reader(server):
    sender = process(server, "produce", "pipe", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _, err = sender.communicate(b"".join(b"%d\n" % number for number in range(20_000)))
    assert sender.returncode == 0, err
    reader = process(server, "consume", "pipe", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdout.readline()
    reader.stdout.close()
    assert reader.wait(60) == 141
    assert reader.stderr.read() == b""
    reader.stderr.close()


def test_messages_that_come_are_followed_until_ctrl_c(server):
    with TubeMQClient.connect(server.master) as client, client.producer() as producer:
        producer.send("empty", b"before").result(10)
        follower = process(
            server, "consume", "empty", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        seen = threading.Event()

        def send_until_it_is_seen():
            """The follower does not tell from which moment on it sees what comes."""
            while not seen.wait(0.1):
                producer.send("empty", b"fresh")

        sending = threading.Thread(target=send_until_it_is_seen)
        sending.start()
        try:
            assert follower.stdout.readline() == b"fresh\n"
            follower.send_signal(signal.SIGINT)
            assert follower.wait(30) == 130
            assert b"Traceback" not in follower.stderr.read()
        finally:
            seen.set()
            sending.join()
            follower.kill()
            follower.wait()
            follower.stdout.close()
            follower.stderr.close()


def test_following_goes_on_while_no_master_leads(server, monkeypatch, capfdbinary):
    """It is told once. A producer that knows the routes sends all the same."""
    monkeypatch.setattr(consume, "_LAYOUT_EVERY_S", 0)
    monkeypatch.setattr(consume, "_LOOK_EVERY_S", 0.01)
    failures, ask = [], TubeMQClient.layout

    def layout(client, topics):
        try:
            return ask(client, topics)
        except TubeMQError as error:
            failures.append(error)
            raise

    monkeypatch.setattr(TubeMQClient, "layout", layout)
    with TubeMQClient.connect(server.master) as client, client.producer() as producer:
        producer.send("plain", b"before").result(10)

        def send_without_a_master():
            server.faults.become_standby()
            wait_until(lambda: len(failures) >= 2, 20)
            producer.send("plain", b"without").result(10)

        sending = threading.Timer(1, send_without_a_master)
        sending.start()
        how = ("--follow", "--from", "earliest", "--count", "2", "--timeout", "1")
        code = cli.main(["consume", "plain", "--master", server.master, *how])
        sending.join()
        server.faults.become_active()
    written = capfdbinary.readouterr()
    assert (code, written.out) == (0, b"before\nwithout\n")
    assert written.err.decode().count("Going on with the partitions that are known") == 1


def test_partitions_are_chosen_in_each_topic(run):
    code, out, _ = run("offsets", "plain", "lines", "--partition", "1:0", "--json")
    assert code == 0
    assert [row["topic"] for row in json.loads(out)["partitions"]] == ["lines", "plain"]


def test_a_first_error_of_the_master_is_one_line(capsys):
    assert cli.main(["consume", "plain", "--master", "127.0.0.1:1", "--timeout", "1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
