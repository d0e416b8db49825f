"""The commands that produce and consume, and look at topics and offsets, on two Java brokers.

``tests/cli/test_messages.py`` tries all their arguments on the embedded server.
"""

import itertools
import json
import re
import signal
import subprocess
import sys

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.real.servers import ADMIN_TOKEN
from integration_tests.rig.messages import assert_same_rows
from integration_tests.rig.raw_client import RawClient
from tubemq_spark.cli import main as cli

ROWS = 3_000
OFFSETS_PER_MESSAGE = 28
PATIENCE_S = 30


@pytest.fixture
def run(real_brokers, capfdbinary):
    """Run a command; return its exit code and what it writes to standard output."""

    def command(*arguments):
        capfdbinary.readouterr()
        code = cli.main([*arguments, "--master", real_brokers.master])
        return code, capfdbinary.readouterr().out

    return command


@pytest.fixture
def told(run):
    """Run a command that must succeed; return what it says as JSON."""

    def command(*arguments):
        code, out = run(*arguments, "--json")
        assert code == 0
        return json.loads(out)

    return command


def test_lines_are_produced_consumed_and_found_by_the_java_consumer(
    real_brokers, java_client, run, told, tmp_path
):
    topic, group, web = "commanded", "commanded_java", ("--web", real_brokers.master_web)
    lines = [b"line %d" % number for number in range(ROWS)]
    stored = []
    for broker, half in (1, lines[::2]), (2, lines[1::2]):
        file = tmp_path / f"{broker}.txt"
        file.write_bytes(b"".join(line + b"\n" for line in half))
        how = ("--partition", f"{broker}:0", "--attribute", "k=v", "--message-type", "red")
        answer = told("produce", topic, str(file), *how)
        assert (answer["messages"], answer["bytes"]) == (len(half), sum(map(len, half)))
        assert answer["extraCopiesAtMost"] == 0
        stored += answer["partitions"]
    assert [one["brokerId"] for one in stored] == [1, 2]

    assert topic in told("topics", "list", *web)["topics"]
    stores = told("topics", "describe", topic, *web)["stores"]
    assert {one["brokerId"]: one["messages"] for one in stores} == {
        one["brokerId"]: one["messages"] for one in stored
    }
    assert {one["address"] for one in stores} == {
        broker.address for number, broker in real_brokers.brokers.items() if number in (1, 2)
    }

    assert_same_rows(run("consume", topic)[1].splitlines(), lines)
    code, out = run("consume", topic, "--json")
    messages = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert_same_rows([message["value"].encode() for message in messages], lines)
    assert {(message["attributes"]["k"], message["messageType"]) for message in messages} == {("v", "red")}
    for one in stored:
        offsets = [message["offset"] for message in messages if message["brokerId"] == one["brokerId"]]
        assert (offsets[0], offsets[-1]) == (one["firstOffset"], one["lastOffset"])
        assert all(first < second for first, second in itertools.pairwise(offsets))

    where = ("groups", "describe", group, topic, *web)
    assert run(*where, "--json") == (1, b"")  # no broker knows the group before it has read
    received = java_client.read_all(real_brokers.master, topic, group, expected=ROWS)
    assert_same_rows([message.body for message in received], lines)

    def has_no_lag():
        code, out = run(*where, "--json")
        return code == 0 and all(one["lag"] == 0 for one in json.loads(out)["partitions"])

    wait_until(
        has_no_lag,
        timeout_s=PATIENCE_S,
        what="the brokers to book the group's positions",
    )
    for one, partition in zip(told(*where)["partitions"], stored, strict=True):
        end = partition["lastOffset"] + OFFSETS_PER_MESSAGE
        assert (one["brokerId"], one["latest"], one["committed"]) == (partition["brokerId"], end, end)
    lag = told("lag", topic, "--group", group, *web)
    assert (lag["lag"], [one["messagesUntilExpiry"] for one in lag["partitions"]]) == (0, [ROWS // 2] * 2)

    last = [b"%d:0 " % broker + line for broker in (1, 2) for line in lines[broker - 1 :: 2][-2:]]
    assert run("consume", topic, "--last", "2", "--format", r"%p %s\n")[1].splitlines() == last


def test_a_group_of_which_a_broker_cannot_tell_hides_no_other(real_brokers, capfdbinary):
    """A Java broker refuses a question about all groups when only its administration API has named one."""
    topic, odd, others = "commanded", "commanded_odd", {"commanded_one", "commanded_two"}
    broker, listing = real_brokers.brokers[1], ("groups", "list", "--web", real_brokers.master_web)

    def connect(group):
        with RawClient(broker.address, topic, group) as client:
            assert client.register().success
            client.unregister()

    def groups():
        capfdbinary.readouterr()
        code = cli.main([*listing, "--json", "--master", real_brokers.master])
        written = capfdbinary.readouterr()
        names = {group["group"] for group in json.loads(written.out)["groups"]}
        return code, {odd, *others} & names, written.err.decode()

    for other in others:
        connect(other)
    wait_until(lambda: groups()[1] == others, timeout_s=PATIENCE_S, what="the broker to book the groups")
    broker.admin.group_offset(topic, odd, 0, real_offset=True)
    wait_until(lambda: groups()[0] == 1, timeout_s=PATIENCE_S, what="the broker to book the odd group")
    code, names, err = groups()
    assert (code, names) == (1, others), err
    assert re.search(rf"broker 1: \[TUBEMQ_GROUPS_NOT_TOLD\] .* {odd} ", err)
    assert "broker 2" not in err
    connect(odd)
    code, names, err = groups()
    assert (code, names) == (0, {odd, *others})
    assert "TUBEMQ" not in err


def test_messages_are_followed_while_others_are_produced(real_brokers, run, tmp_path):
    follower = subprocess.Popen(
        [
            *(sys.executable, "-m", "tubemq_spark", "consume", "followed", "--follow", "--from", "earliest"),
            *("--master", real_brokers.master),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        for number in range(3):
            file = tmp_path / f"{number}.txt"
            file.write_bytes(b"%d\n" % number)
            assert run("produce", "followed", str(file))[0] == 0
            assert follower.stdout.readline() == b"%d\n" % number
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=PATIENCE_S)
        assert follower.returncode == 130
        assert not re.search(rb"Traceback|\[TUBEMQ", err), err
    finally:
        follower.kill()
        follower.communicate()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_topics_are_created_grow_and_are_deleted_with_their_data(
    real_brokers, run, told, tmp_path, monkeypatch
):
    """A Java master takes its time: half a minute to publish something new, and as long to remove a topic."""
    monkeypatch.setenv("TUBEMQ_ADMIN_TOKEN", ADMIN_TOKEN)
    web, topic = ("--web", real_brokers.master_web), "made_by_command"

    def shapes(answer):
        return [(row["brokerId"], row["stores"], row["partitions"], row["ready"]) for row in answer["topics"]]

    answer = told("topics", "create", topic, "--partitions", "2", "--brokers", "1,2", *web)
    assert shapes(answer) == [(broker, 1, 2, True) for broker in (1, 2)]
    assert run("topics", "create", topic, *web)[0] == 1
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(100)))
    assert told("produce", topic, str(file))["messages"] == 100

    assert shapes(told("topics", "alter", topic, "--stores", "2", *web)) == [(b, 2, 2, True) for b in (1, 2)]
    closed = told("topics", "alter", topic, "--accept-publish", "false", *web)
    assert shapes(closed) == [(broker, 2, 2, True) for broker in (1, 2)]
    stores = told("topics", "describe", topic, *web)["stores"]
    assert [(one["brokerId"], one["store"]) for one in stores] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert {(one["publish"], one["subscribe"]) for one in stores} == {(False, True)}
    assert sum(one["messages"] for one in stores) == 100
    assert len(run("consume", topic)[1].splitlines()) == 100
    code, _ = run("produce", topic, str(file), "--timeout", "3")
    assert code == 1

    assert told("topics", "delete", topic, "--yes", *web)["removed"]
    assert topic not in told("topics", "list", *web)["topics"]
