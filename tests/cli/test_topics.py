"""Topics are listed, described, created, changed and deleted, on two brokers."""

import io
import json
import re

import pytest

from tests.cases import in_one_test
from tubemq_spark.cli import main as cli
from tubemq_spark.client import MasterAdmin
from tubemq_spark.embedded.server import EmbeddedTubeMQ

TOKEN = "abc"
"""The token of an embedded server, as TubeMQ has it in its examples."""


@pytest.fixture
def changeable(tmp_path, monkeypatch):
    monkeypatch.setenv("TUBEMQ_ADMIN_TOKEN", TOKEN)
    with EmbeddedTubeMQ(tmp_path / "tubemq", {"clicks": (2, 1)}, brokers=2) as running:
        yield running


@pytest.fixture
def run(changeable, command_on):
    return command_on(changeable, "topics")


HOST = "127.0.0.78"
"""Where no other server of this machine has the usual ports."""


@pytest.fixture(scope="module")
def server():
    topics = dict.fromkeys(["clicks", "clicks_late", "orders"], (1, 1))
    with EmbeddedTubeMQ(topics=topics, host=HOST, master_web_port=8780) as running:
        yield running


@pytest.mark.parametrize("named", [True, False])
def test_topics_are_listed_one_per_line(server, capsys, named):
    web = ("--web", server.master_web) if named else ()
    assert cli.main(["topics", "list", "--master", server.master, *web]) == 0
    assert capsys.readouterr() == ("TOPIC\nclicks\nclicks_late\norders\n", "")


def test_a_pattern_is_that_of_whole_names(server, capsys):
    for pattern, names in ("clicks", ["clicks"]), ("clicks.*", ["clicks", "clicks_late"]), ("x", []):
        arguments = ["topics", "list", pattern, "--json", "--master", server.master]
        assert cli.main(arguments) == 0
        assert json.loads(capsys.readouterr().out) == {"topics": names}


def test_without_an_answer_the_exit_code_is_1_and_all_addresses_are_named(capsys):
    with EmbeddedTubeMQ(host="127.0.0.79") as server:
        assert cli.main(["topics", "list", "--master", server.master]) == 1
    told = capsys.readouterr().err
    assert "did not answer at 127.0.0.79:8080, 127.0.0.79:8780: " in told


@in_one_test(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "create", "new"],
        ["topics", "alter", "clicks", "--stores", "2"],
        ["topics", "delete", "clicks", "--yes"],
        ["groups", "list"],
    ],
)
def test_a_wrong_port_of_the_master_is_told_although_its_host_is_right(
    server, capsys, monkeypatch, arguments
):
    monkeypatch.setenv("TUBEMQ_ADMIN_TOKEN", "abc")
    assert cli.main([*arguments, "--master", server.master_web]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert f"[TUBEMQ_NOT_A_MASTER] {server.master_web} is an HTTP server, not a TubeMQ master;" in written.err
    assert set(server.topics()) == {"clicks", "clicks_late", "orders"}


def test_a_port_without_a_master_is_told(server, capsys):
    assert cli.main(["topics", "list", "--master", f"{HOST}:1"]) == 1
    assert f"[TUBEMQ_NO_MASTER] No master answered while registering a producer; tried {HOST}:1" in (
        capsys.readouterr().err
    )


def shapes(report):
    return [(row["topic"], row["brokerId"], row["stores"], row["partitions"]) for row in report["topics"]]


def test_topics_are_created_on_all_brokers_or_some_with_their_properties(changeable, run, told):
    report = told("create", "one", "two", "--stores", "2", "--partitions", "3")
    assert shapes(report) == [(topic, broker, 2, 3) for topic in ("one", "two") for broker in (1, 2)]
    assert {row["ready"] for row in report["topics"]} == {True}
    code, out, err = run("create", "kept", "--brokers", "2", "--property", "deletePolicy=delete,24h")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[1:]] == [["kept", "2", "1", "1", "yes", "yes", "yes"]]
    (item,) = MasterAdmin(changeable.master_web).topic_info("kept")
    assert [place["deletePolicy"] for place in item["topicInfo"]] == ["delete,24h"]


def test_who_creates_partitions_that_share_a_store_is_told_what_that_costs(run):
    code, _, err = run("create", "shared", "--stores", "2", "--partitions", "3")
    assert code == 0
    assert err == (
        "tubemq-spark: several partitions share each store, so brokers do not tell each message's own "
        "offset (in Spark the column offset is null); --stores 6 without --partitions would give each "
        "partition a store of its own\n"
    )
    assert run("create", "alone", "--stores", "6")[2] == ""


def test_all_topics_are_described_unless_some_are_named(run, told):
    told("create", "other", "--brokers", "2", "--partitions", "3")
    stores = told("describe")["stores"]
    assert [(row["topic"], row["brokerId"], row["store"], row["partitionIds"]) for row in stores] == [
        *[("clicks", broker, store, [store * 10_000]) for broker in (1, 2) for store in (0, 1)],
        ("other", 2, 0, [0, 1, 2]),
    ]
    code, out, err = run("describe")
    assert (code, err) == (0, "")
    header, *rows = (re.split("  +", line) for line in out.splitlines())
    assert header[3:6] == ["STORE", "PARTITIONS", "EARLIEST"]
    assert [row[4] for row in rows] == ["1:0", "1:10000", "2:0", "2:10000", "2:0 to 2:2"]
    assert run("delete", "clicks", "other", "--yes")[0] == 0
    assert run("describe") == (
        1,
        "",
        "tubemq-spark: [TUBEMQ_COMMAND_NO_TOPIC] The cluster has no topic; create one with topics create.\n",
    )


def test_a_topic_that_exists_is_an_error_unless_that_is_allowed(run, told):
    code, out, err = run("create", "new", "clicks")
    assert (code, out) == (1, "")
    assert "Topic 'clicks' exists, and nothing was created; " in err
    assert told("list")["topics"] == ["clicks"]
    report = told("create", "new", "clicks", "--if-not-exists")
    assert shapes(report) == [
        *[("clicks", broker, 2, 1) for broker in (1, 2)],
        *[("new", broker, 1, 1) for broker in (1, 2)],
    ]


def test_topics_grow_and_close_and_open(told, run):
    report = told("alter", "clicks", "--stores", "3", "--accept-publish", "false", "--brokers", "1")
    assert shapes(report) == [("clicks", 1, 3, 1)]
    rows = told("describe", "clicks")["stores"]
    assert [(row["brokerId"], row["publish"], row["subscribe"]) for row in rows] == [
        *[(1, False, True)] * 3,
        *[(2, True, True)] * 2,
    ]
    assert shapes(told("alter", "clicks", "--stores", "3")) == [("clicks", 1, 3, 1), ("clicks", 2, 3, 1)]
    assert run("alter", "clicks", "--accept-publish", "true")[0] == 0
    assert {row["publish"] for row in told("describe", "clicks")["stores"]} == {True}


@in_one_test(
    ("arguments", "code", "complaint"),
    [
        (["alter", "clicks", "--stores", "1"], 2, "--stores is '1', but must be 2 or more, which topic"),
        (["alter", "clicks"], 2, "nothing is to be changed"),
        (["alter", "nosuch", "--stores", "3"], 1, "Topic 'nosuch' does not exist"),
        (["alter", "clicks", "--stores", "3", "--brokers", "7"], 1, "Topic 'clicks' does not exist"),
        (["create", "x1", "--brokers", "7"], 2, "--brokers is '7', but must be one of 1, 2"),
        (["create", "x1", "--property", "deletePolicy=7y"], 1, "[TUBEMQ_ADMIN_REFUSED]"),
        (["delete", "clicks", "nosuch", "--yes"], 1, "Topic 'nosuch' does not exist"),
        (["delete", "clicks"], 2, "there is no terminal to ask at; add --yes"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(run, told, arguments, code, complaint):
    assert run(*arguments)[:2] == (code, "")
    assert complaint in run(*arguments)[2]
    assert [(row["brokerId"], row["store"]) for row in told("describe", "clicks")["stores"]] == [
        (broker, store) for broker in (1, 2) for store in (0, 1)
    ]
    assert told("list")["topics"] == ["clicks"]


def test_a_topic_is_deleted_with_its_data_also_when_it_is_closed(run, told):
    told("create", "other")
    for what in "publish", "subscribe":
        assert run("alter", "other", f"--accept-{what}", "false", "--brokers", "1")[0] == 0
    code, out, err = run("delete", "clicks", "other", "--yes")
    assert (code, out, err) == (0, "removed: clicks, other\n", "")
    assert told("list")["topics"] == []
    told("create", "clicks")
    assert told("delete", "clicks", "--yes") == {"topics": ["clicks"], "brokers": [1, 2], "removed": True}


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_at_a_terminal_it_is_asked_first(run, told, monkeypatch, answer, code):
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    done, _, err = run("delete", "clicks")
    assert done == code
    assert "Delete 1 topic (clicks) on brokers 1, 2 with all data, which cannot be undone? [y/N] " in err
    assert ("nothing was deleted" in err) == bool(code)
    assert told("list")["topics"] == (["clicks"] if code else [])


def test_the_token_is_that_of_a_file_or_of_the_environment(changeable, run, tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("guessed\n")
    code, _, err = run("create", "new", "--token-file", str(file))
    assert code == 1
    assert err.startswith(
        f"tubemq-spark: [TUBEMQ_ADMIN_TOKEN] {changeable.master_web} refused admin_add_new_topic_record, "
        "because the token that it carries is wrong (code 400: "
    )
    assert err.endswith(
        "; give the confModAuthToken of the masters in --token-file or in TUBEMQ_ADMIN_TOKEN.\n"
    )
    assert "guessed" not in err
    monkeypatch.delenv("TUBEMQ_ADMIN_TOKEN")
    code, _, err = run("create", "new")
    assert code == 2
    assert err == (
        "tubemq-spark: [TUBEMQ_COMMAND_NO_TOKEN] Changes of the cluster need its token (confModAuthToken of "
        "the masters); set TUBEMQ_ADMIN_TOKEN in the environment, or name a file that holds it in "
        "--token-file. An embedded server has TubeMQ's public default unless it was started with another "
        "one: TUBEMQ_ADMIN_TOKEN=abc.\n"
    )
    file.write_text("abc\n")
    assert run("create", "new", "--token-file", str(file))[0] == 0


@pytest.fixture
def hidden(monkeypatch):
    """Hide changes from clients until a master was asked so many times."""
    monkeypatch.setattr("tubemq_spark.cli.connection._LOOK_EVERY_MS", 1)
    ask, asked = MasterAdmin.topic_info, []

    def hide(questions):
        def topic_info(admin, topic=None):
            asked.append(topic)
            items = ask(admin, topic)
            if len(asked) <= questions:
                for item in items:
                    for place in item["topicInfo"]:
                        place["runInfo"] = dict.fromkeys(place["runInfo"], "-")
            return items

        monkeypatch.setattr(MasterAdmin, "topic_info", topic_info)
        return asked

    return hide


def test_a_new_topic_is_waited_for_until_clients_are_told(run, hidden):
    asked = hidden(5)
    code, out, err = run("create", "new")
    assert code == 0
    assert err.startswith("tubemq-spark: waiting for up to 180 s until clients are told of it")
    assert len(asked) == 6
    assert out.splitlines()[1].split()[-1] == "yes"


def test_the_wait_ends(run, hidden):
    hidden(10**6)
    code, out, err = run("create", "new", "--wait", "0.05", "--json")
    assert code == 1
    assert [row["ready"] for row in json.loads(out)["topics"]] == [False, False]
    assert "clients were not told of all of it within 0.05 s; see topics describe later" in err


def test_what_is_deleted_is_waited_for(run, monkeypatch):
    monkeypatch.setattr("tubemq_spark.cli.connection._LOOK_EVERY_MS", 1)
    monkeypatch.setattr(MasterAdmin, "remove_topic", lambda *_: None)
    code, out, err = run("delete", "clicks", "--yes", "--wait", "0.05")
    assert (code, out) == (1, "deleted, not removed: clicks\n")
    assert "the brokers had not removed all data after 0.05 s; they go on" in err
