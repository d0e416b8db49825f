"""Topics are listed, with and without an address of the administration API."""

import json

import pytest

from tests.cases import in_one_test
from tubemq_spark.cli import main as cli
from tubemq_spark.embedded.server import EmbeddedTubeMQ

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


def test_a_pattern_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["topics", "list", "(", "--master", "m"])
    assert ended.value.code == 2
    assert "'(' is not a regular expression" in capsys.readouterr().err


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
