"""The files in deploy/ and the compose file start a gateway as it is: settings and arguments exist."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest

from testkit.git import ROOT
from tubemq_spark.cli.main import main
from tubemq_spark.gateway.settings import load_settings
from tubemq_spark.model import Endpoint

UNIT = ROOT / "deploy" / "tubemq-gateway@.service"


def unit(name):
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_configuration_is_sound():
    made = load_settings(ROOT / "deploy" / "gateway.toml", {}, {})
    assert made.reuse_port
    assert made.listen == Endpoint("0.0.0.0", 11911)


def test_the_unit_starts_a_gateway_and_waits_until_it_has_drained(capsys):
    (start,) = unit("ExecStart")
    command, *arguments = shlex.split(start.replace("%i", "1").replace("%H", "host"))
    arguments[arguments.index("--config") + 1] = str(ROOT / "deploy" / "gateway.toml")
    assert command.endswith("/tubemq-gateway")
    assert main(["gateway", *arguments, "--print-config"]) == 0
    settings = tomllib.loads(capsys.readouterr().out)
    assert settings["metrics"] == "127.0.0.1:9191"
    assert int(unit("TimeoutStopSec")[0]) * 1000 > int(settings["drain_ms"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit(tmp_path):
    installed = tmp_path / UNIT.name.replace("@", "@1")
    installed.write_text(
        re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE)
    )
    checked = subprocess.run(
        ["systemd-analyze", "verify", installed], check=False, capture_output=True, text=True
    )
    assert [line for line in checked.stderr.splitlines() if UNIT.stem in line or "@1" in line] == []


@pytest.mark.parametrize("file", ["docker-compose.yml", "deploy/Dockerfile"])
def test_containers_start_with_arguments_that_there_are(file, capsys):
    lists = re.findall(r'^\s*(?:command:|CMD) (\["--.*\])$', (ROOT / file).read_text(), re.MULTILINE)
    assert lists
    for found in lists:
        assert main(["gateway", "--master-servers=m", *json.loads(found), "--check-config"]) == 0
