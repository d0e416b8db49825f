"""Arguments of ``receipts verify`` that are wrong, and what they are told."""

import json
from pathlib import Path

import pytest

from tubemq_spark.cli import main as cli
from tubemq_spark.cli.connection import PASSWORD_VARIABLE, cluster_config
from tubemq_spark.model import Endpoint

KEPT = Path(__file__).parents[1] / "files" / "manifests"


def told(capsys, *arguments):
    code = cli.main(["receipts", "verify", *arguments])
    return code, capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told(capsys, tmp_path):
    code, said = told(capsys, str(tmp_path / "nowhere"), "--master", "m:1")
    assert code == 1
    assert "[TUBEMQ_FOLDER_UNUSABLE]" in said


def test_a_relative_path_is_one_of_the_shell(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = told(capsys, "receipts", "--master", "m:1")
    assert code == 1
    assert f"The folder {tmp_path / 'receipts'} cannot be" in said


def test_a_file_that_is_no_manifest_is_named(capsys, tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    code, said = told(capsys, str(tmp_path), "--master", "m:1")
    assert code == 1
    assert "mine.json is not a manifest of a write" in said


def test_a_master_must_be_named(capsys):
    code, said = told(capsys, "/x")
    assert code == 2
    assert "No master is named; give --master HOST:PORT" in said


def test_a_master_that_does_not_answer_is_told(capsys):
    code, said = told(capsys, str(KEPT), "--master", "127.0.0.1:1")
    assert code == 1
    assert "[TUBEMQ_NO_MASTER]" in said


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["--master", "m:x"], "TUBEMQ_BAD_ADDRESS"),
        (["--master", "m", "--group", "my group"], "TUBEMQ_BAD_SETTING"),
        (["--master", "m", "--username", "alice"], "TUBEMQ_BAD_SETTING"),
        (["--master", "m", "--tls-ca", "ca.pem"], "TUBEMQ_OPTION_NEEDED"),
        (["--master", "m", "--tls", "--tls-ca", "/nowhere/ca.pem"], "TUBEMQ_TLS_FILE"),
    ],
)
def test_impossible_connection_arguments_are_exit_code_2(capsys, monkeypatch, arguments, condition):
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    code, said = told(capsys, "/x", *arguments)
    assert (code, condition in said) == (2, True)


def parsed(*arguments):
    return cluster_config(cli.build_parser().parse_args(["receipts", "verify", "/x", *arguments])).client


def test_connection_arguments_become_settings_of_the_client(monkeypatch, tmp_path):
    (tmp_path / "password").write_text("from a file\n")
    monkeypatch.setenv(PASSWORD_VARIABLE, "from the environment")
    given = ("--master", "m1,m2:9", "--group", "audit", "--username", "alice", "--timeout", "1.5")

    client = parsed(*given)
    assert client.masters == (Endpoint("m1", 8715), Endpoint("m2", 9))
    assert (client.group, client.username, client.password) == ("audit", "alice", "from the environment")
    assert (client.fetch_timeout_ms, client.lease_wait_ms) == (1_500, 1_500)
    assert parsed(*given, "--password-file", str(tmp_path / "password")).password == "from a file"
    assert parsed("--master", "m", "--tls").masters == (Endpoint("m", 8716),)
    assert parsed("--master", "m").password is None


def test_the_report_is_printed_as_plain_json(capsys, tmp_path):
    code = cli.main(["receipts", "verify", str(tmp_path), "--master", "m", "--json"])
    assert code == 1
    assert json.loads(capsys.readouterr().out) == {
        "v": 1,
        "sound": False,
        "manifests": 0,
        "verdicts": {},
        "checks": [],
    }
