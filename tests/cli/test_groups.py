"""Groups are listed and described, and go on where they are set to."""

import contextlib
import itertools
import json
import re
from collections import Counter

import pytest

from tests.cases import in_one_test
from tests.waiting import wait_until
from tubemq_spark.client import ClientConfig, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint

FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)


@pytest.fixture
def server(tmp_path):
    topics = {"clicks": (1, 1), "orders": (1, 2)}
    settings = EmbeddedSettings(balance_period_ms=50)
    with EmbeddedTubeMQ(tmp_path / "tubemq", topics, brokers=2, settings=settings) as running:
        with TubeMQClient.connect(running.master) as client, client.producer() as producer:
            for broker in 1, 2:
                for number in range(10 * broker):
                    producer.send("clicks", b"%d" % number, partition=(broker, 0))
            for number in range(6):
                producer.send("orders", b"%d" % number, partition=(1, number % 2))
        yield running


@pytest.fixture
def run(server, command_on):
    return command_on(server, "groups")


def client_config(master, group):
    return ClientConfig((Endpoint.parse(master),), group, heartbeat_period_ms=50)


@pytest.fixture
def member(server):
    """Return what opens a member of a group, which begins at the beginning if it is new."""

    @contextlib.contextmanager
    def join(group, *topics):
        with (
            TubeMQClient(client_config(server.master, group)) as client,
            client.group_consumer(topics, settings=FIRST) as consumer,
        ):
            yield consumer

    return join


numbers = itertools.count()


def read(consumer, count):
    """Read and confirm so many messages; return the partitions and bodies."""
    messages = []
    while len(messages) < count:
        batch = consumer.fetch(200)
        if batch is not None:
            messages += [(record.topic, record.partition.broker_id, record.value) for record in batch]
            consumer.confirm(batch)
    return messages


def rest(consumer):
    """Read what there is for a group: all until nothing comes from its two partitions for a while."""
    messages = []
    wait_until(lambda: len(consumer.connected) == 2)
    while (batch := consumer.fetch(300)) is not None:
        messages += [(record.topic, record.partition.broker_id, record.value) for record in batch]
        consumer.confirm(batch)
    return Counter(messages)


def clicks(first, second):
    """Return the messages of the two partitions from these on."""
    numbers = [(1, number) for number in range(first, 10)] + [(2, number) for number in range(second, 20)]
    return Counter(("clicks", broker, b"%d" % number) for broker, number in numbers)


def test_an_unknown_group_is_exit_code_1_and_a_sentence(run):
    code, out, err = run("describe", "nosuch")
    assert (code, out) == (1, "")
    assert "The group 'nosuch' has no members, and no broker has a position of it in any topic; " in err
    code, _, err = run("describe", "nosuch", "clicks")
    assert (code, "position of it in clicks;" in err) == (1, True)


def test_a_group_is_listed_and_described_while_it_has_members_and_afterwards(run, told, member):
    with member("watched", "clicks", "orders") as consumer:
        assert len(read(consumer, 36)) == 36
        wait_until(lambda: told("describe", "watched")["lag"] == 0)
        report = told("describe", "watched")
        (online,) = report["members"]
        assert online["partitions"] == 2 + 4
        assert {row["consumer"] for row in report["partitions"]} == {online["client"]}
        assert [row["committed"] for row in report["partitions"] if row["topic"] == "clicks"] == [280, 560]
        (group,) = (one for one in told("list")["groups"] if one["group"] == "watched")
        assert group == {"group": "watched", "members": 1, "topics": ["clicks", "orders"]}
        code, out, _ = run("describe", "watched", "clicks")
        assert code == 0
        assert re.search(r"\nclicks +2 +0 +560 +560 +0  \S+\n", out)
        assert re.search(r"\nMEMBER +PARTITIONS\n\S+ +6\n", out)
    report = told("describe", "watched")
    assert (report["members"], {row["consumer"] for row in report["partitions"]}) == ([], {None})
    assert "No member is online." in run("describe", "watched")[1]
    assert [one["members"] for one in told("list")["groups"] if one["group"] == "watched"] == [0]


def test_the_total_counts_the_lag_of_a_shared_store_once(run, told):
    assert run("reset", "sharing", "orders", "--to", "earliest", "--execute")[0] == 0
    report = told("describe", "sharing")
    assert [row["lag"] for row in report["partitions"]] == [6, 6, 0, 0]
    assert report["lag"] == 6
    assert re.search(r"\ntotal +6\n", run("describe", "sharing")[1])


def test_the_lag_of_a_group_without_a_position_is_not_known(run, told):
    assert run("reset", "partly", "clicks", "--to", "earliest", "--partition", "1:0", "--execute")[0] == 0
    assert [row["lag"] for row in told("describe", "partly")["partitions"]] == [10, None]
    assert told("describe", "partly")["lag"] is None
    code, out, err = run("describe", "partly")
    assert (code, "\ntotal\n" in out) == (0, True)
    assert err == (
        "tubemq-spark: the group has no position in 1 of 2 partitions, so its lag is not known there; "
        "brokers tell of a position some seconds after a consumer has committed it\n"
    )


def test_a_group_whose_members_hold_nothing_is_not_told_to_have_read_everything(command_on):
    settings = EmbeddedSettings(balance_period_ms=600_000)
    with (
        EmbeddedTubeMQ(topics={"clicks": (1, 1)}, settings=settings) as server,
        TubeMQClient.connect(server.master, group="early") as client,
        client.group_consumer("clicks"),
    ):
        code, out, err = command_on(server, "groups", "describe")("early")
        assert (code, "\ntotal\n" in out, "no position in 1 of 1 partition," in err) == (0, True, True)
        assert re.search(r"\nMEMBER +PARTITIONS\nearly\S+ +0\n", out)
        code, out, err = command_on(server, "lag")("--group", "early")
        assert (code, out, "No broker has an offset of the group 'early'; " in err) == (1, "", True)


def test_groups_of_readers_are_left_out_of_the_list(run, told):
    told("reset", "listed", "clicks", "--to", "0", "--execute")
    assert run("list")[1].startswith("GROUP")
    _, out, err = run("list", "--json")
    assert not [one for one in json.loads(out)["groups"] if one["group"].endswith("_probe")]
    assert re.search(r"\d+ reader groups? of Spark's tasks and of commands left out \(see --all\)\n", err)
    assert "tubemq_spark_groups_probe" in {one["group"] for one in told("list", "--all")["groups"]}


def test_a_reset_shows_what_it_would_do_and_writes_nothing(run, told, member):
    with member("dry", "clicks") as consumer:
        read(consumer, 30)
    code, out, err = run("reset", "dry", "clicks", "--to", "56")
    assert code == 0
    assert "nothing was written; --execute writes these positions" in err
    assert re.search(r"TOPIC +BROKER ID +PARTITION +NOW +THEN +MESSAGES\n", out)
    assert re.search(r"\nclicks +2 +0 +560 +56 +-18\n", out)
    report = told("reset", "dry", "clicks", "--to", "latest")
    assert report["executed"] is False
    assert [row["messages"] for row in report["partitions"]] == [0, 0]
    assert [row["committed"] for row in told("describe", "dry")["partitions"]] == [280, 560]


def test_who_resets_a_group_that_is_named_like_a_reader_group_is_told_what_counts(run):
    code, _, err = run("reset", "of_java_r17", "clicks", "--to", "56", "--execute")
    assert code == 0
    assert "'of_java_r17' is named like a reader group of 'of_java'" in err
    assert "a stream goes on from its checkpoint" in err
    assert "named like" not in run("reset", "of_java", "clicks", "--to", "56")[2]


@in_one_test(
    ("arguments", "expected"),
    [
        (["clicks", "--to", "earliest"], clicks(0, 0)),
        (["clicks", "--to", "latest"], Counter()),
        (["clicks", "--to", "84"], clicks(3, 3)),
        (["clicks", "--to", "84", "--partition", "2:0"], clicks(10, 3)),
        (["clicks", "--to", "2020-01-01"], clicks(0, 0)),
        (["clicks", "--to", "2020-01-01", "--partition", "1:0"], clicks(0, 20)),
        (["clicks", "--to", "2999-01-01"], Counter()),
        (["--offsets", '{"clicks":{"1:0":28,"2:0":-1}}'], clicks(1, 20)),
        (["--offsets", '{"v":1,"topics":{"clicks":{"2:0":532}}}'], clicks(10, 19)),
        (["--offsets", '{"clicks":"earliest"}'], clicks(0, 0)),
    ],
)
def test_a_group_goes_on_exactly_where_it_is_set_to(run, member, arguments, expected):
    group = f"reset_{next(numbers)}"
    with member(group, "clicks") as consumer:
        read(consumer, 30)
    code, out, err = run("reset", group, *arguments, "--execute")
    assert (code, err) == (0, "")
    assert out.startswith("TOPIC")
    with member(group, "clicks") as consumer:
        assert rest(consumer) == expected


def test_offsets_may_be_in_a_file(run, told, tmp_path):
    file = tmp_path / "offsets.json"
    file.write_text('{"clicks": {"1:0": 140}}\n')
    assert run("reset", "of_file", "--offsets", str(file), "--execute")[0] == 0
    assert [row["committed"] for row in told("describe", "of_file")["partitions"]] == [140, None]
    file.write_text("[]")
    code, _, err = run("reset", "of_file", "--offsets", str(file))
    assert code == 2
    assert f"The file {file} cannot be read" in err


def test_a_group_with_a_member_is_not_reset(run, told, member):
    with member("used", "clicks") as consumer:
        read(consumer, 30)
        code, out, err = run("reset", "used", "clicks", "--to", "earliest", "--execute")
        assert (code, out) == (1, "")
        assert "The group 'used' has 1 member, for example used_" in err
    wait_until(lambda: [row["committed"] for row in told("describe", "used")["partitions"]] == [280, 560])


@in_one_test(
    ("arguments", "complaint"),
    [
        (["clicks", "--to", "57"], "57 of --to is not an offset; offsets are multiples of 28"),
        (["clicks", "--to", "588"], "asks for offset 588 of clicks/1:0, but its log has offsets "),
        (["clicks", "--to", "0", "--partition", "3:0"], "is '3:0', but must be one of 1:0, 2:0"),
        (["--to", "0"], "no topic is named; name one after the group"),
        (["clicks", "--offsets", "{}"], "--offsets names the topics and partitions itself"),
        (["--offsets", '{"clicks":{"7:0":28}}'], "partitions that do not exist: clicks/7:0"),
        (["--offsets", '{"clicks":{"1:0":29}}'], "--offsets cannot be read"),
        (["--offsets", '{"time":5}'], "it does not name offsets"),
    ],
)
def test_a_place_that_cannot_be_is_exit_code_2_and_nothing_is_written(run, arguments, complaint):
    code, out, err = run("reset", "wrong", *arguments, "--execute")
    assert (code, out) == (2, "")
    assert complaint in err
    assert run("describe", "wrong")[0] == 1


def test_a_position_that_is_not_what_was_written_is_told(run, monkeypatch):
    monkeypatch.setattr("tubemq_spark.cluster.transport_cluster.TransportCluster.move_group", lambda *_: {})
    monkeypatch.setattr("tubemq_spark.cli.groups._STORED_WITHIN_S", 0.1)
    reset = ("reset", "unmoved", "clicks", "--to", "56", "--partition", "2:0", "--execute")
    code, out, err = run(*reset)
    assert code == 1
    assert out.startswith("TOPIC")
    problem = "the broker says nothing instead of 56"
    assert f"clicks/2:0: {problem}" in err
    assert [row["problem"] for row in json.loads(run(*reset, "--json")[1])["partitions"]] == [problem]


def test_without_a_broker_its_partitions_are_told_and_nothing_is_written(run, server):
    assert run("reset", "half", "clicks", "--to", "56", "--execute")[0] == 0
    server.faults.stop_broker(2)
    code, out, err = run("describe", "half", "--timeout", "1")
    assert code == 1
    assert re.search(r"\nclicks +1 +0 +56 +280 +8\n", out)
    assert "tubemq-spark: broker 2: [TUBEMQ_ADMIN_NO_ANSWER]" in err
    code, out, err = run("reset", "half", "clicks", "--to", "0", "--execute", "--timeout", "1")
    assert (code, out) == (1, "")
    report = json.loads(run("describe", "half", "--json", "--timeout", "1")[1])
    assert [row["committed"] for row in report["partitions"]] == [56, None]
    assert run("list", "--timeout", "1")[0] == 1


def test_a_frozen_broker_is_waited_for_once(run, server):
    assert run("reset", "frozen", "clicks", "--to", "56", "--execute")[0] == 0
    server.faults.freeze_broker(2)
    code, out, err = run("describe", "frozen", "--timeout", "3")
    server.faults.start_broker(2)
    assert code == 1
    assert re.search(r"\nclicks +1 +0 +56 +280 +8\n", out)
    assert "tubemq-spark: broker 2: [TUBEMQ_ADMIN_NO_ANSWER]" in err
    assert "within 1000 ms" in err
