"""Two brokers whose topics are changed by commands."""

import json

import pytest

from tubemq_spark.cli import main as cli
from tubemq_spark.embedded.server import EmbeddedTubeMQ

TOKEN = "abc"
"""The token of an embedded server, as TubeMQ has it in its examples."""


@pytest.fixture
def changeable(tmp_path, monkeypatch):
    monkeypatch.setenv("TUBEMQ_ADMIN_TOKEN", TOKEN)
    with EmbeddedTubeMQ(tmp_path / "tubemq", {"clicks": (2, 1)}, brokers=2) as running:
        yield running


@pytest.fixture
def run(changeable, capsys):
    """Run a command; return its exit code and what it writes."""

    def command(*arguments):
        capsys.readouterr()
        place = ("--master", changeable.master, "--web", changeable.master_web)
        code = cli.main(["topics", *arguments, *place])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def told(run):
    """Run a command that must succeed; return what it says as JSON."""

    def command(*arguments):
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return command
