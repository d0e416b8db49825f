"""Commands of tests read no configuration file but their own."""

import json

import pytest

from tubemq_spark.cli import main as cli


@pytest.fixture(autouse=True)
def no_configuration_file(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
    for name in ("TUBEMQ_CONFIG", "TUBEMQ_MASTER", "TUBEMQ_WEB"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def refused(capsys):
    """Run a command whose arguments are refused before it begins; return what is said of them."""

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return command


@pytest.fixture
def command_on(capsys):
    """Return a function that binds a command to a server; calls return the exit code and what was written."""

    def of(server, *words):
        def command(*arguments):
            capsys.readouterr()
            code = cli.main([*words, *arguments, "--master", server.master, "--web", server.master_web])
            return code, *capsys.readouterr()

        return command

    return of


@pytest.fixture
def told(run):
    """Run a command that must succeed; return what it says as JSON."""

    def command(*arguments):
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return command
