"""The files in deploy/ and the compose file: what they start serves, and is healthy; the page's example."""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request

import pytest

from testkit.git import ROOT
from tests.gateway.fleet import fleet_of
from tests.gateway.running import tubemq
from tubemq_spark.gateway.policy import load_policy
from tubemq_spark.gateway.settings import ENVIRONMENT_PREFIX, SETTINGS, load_settings
from tubemq_spark.model import Endpoint

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "tubemq-gateway@.service"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def unit(name, file=UNIT):
    return re.findall(rf"^{name}=(.*)$", file.read_text(), re.MULTILINE)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextlib.contextmanager
def started(arguments, **environment):
    """A gateway with the arguments and the environment of a file, before an embedded server."""
    with tubemq(demo=(1, 1)) as server:
        environment = {
            f"{ENVIRONMENT_PREFIX}MASTER_SERVERS": server.master,
            f"{ENVIRONMENT_PREFIX}LISTEN": "127.0.0.1:0",
            **environment,
        }
        command = [sys.executable, "-m", "tubemq_spark", "gateway", *arguments]
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout.readline().startswith("gateway ")
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=20)


def test_the_configuration_is_sound_and_fits_the_memory_of_the_unit():
    settings = load_settings(DEPLOY / "gateway.toml", {}, {})
    assert settings.reuse_port
    assert settings.listen == Endpoint("0.0.0.0", 11911)
    (megabytes,) = re.findall(r"^MemoryMax=(\d+)M$", UNIT.read_text(), re.MULTILINE)
    assert int(megabytes) << 20 >= 2 * settings.total_bytes + (512 << 20)
    assert int(unit("TimeoutStopSec")[0]) * 1000 > settings.drain_ms


@pytest.mark.process
def test_the_unit_starts_a_gateway_whose_name_is_the_port_of_its_page():
    port = free_port()
    (start,) = unit("ExecStart")
    command, *arguments = shlex.split(start.replace("%i", str(port)).replace("%H", "host"))
    arguments[arguments.index("--config") + 1] = str(DEPLOY / "gateway.toml")
    assert command.endswith("/tubemq-gateway")
    with started(arguments, **{f"{ENVIRONMENT_PREFIX}REUSE_PORT": "false"}):
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        with page:
            assert f"Gateway host-{port}" in page.read().decode()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit_and_its_drop_in(tmp_path):
    installed = tmp_path / UNIT.name.replace("@", "@9191")
    drop_in = tmp_path / f"{installed.name}.d" / "tls.conf"
    drop_in.parent.mkdir()
    shutil.copy(DEPLOY / "tls.conf", drop_in)
    installed.write_text(
        re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE)
    )
    checked = subprocess.run(
        ["systemd-analyze", "verify", installed], check=False, capture_output=True, text=True
    )
    assert [line for line in checked.stderr.splitlines() if "tubemq" in line or "tls.conf" in line] == []


def test_the_drop_in_names_settings_and_the_credential_that_it_loads():
    assignments = dict(text.split("=", 1) for text in unit("Environment", DEPLOY / "tls.conf"))
    assert {name.removeprefix(ENVIRONMENT_PREFIX).lower() for name in assignments} <= SETTINGS.keys()
    (credential,) = unit("LoadCredential", DEPLOY / "tls.conf")
    assert f"%d/{credential.partition(':')[0]}" in assignments.values()


def test_the_policy_is_sound_and_lets_no_token_in():
    policy = load_policy(DEPLOY / "policy.toml", certificates=False)
    assert policy.clients.keys() == {"etl", "collector", "monitoring"}
    # A spark job that only writes names its group, and no other.
    assert policy.clients["collector"].may("group", "tubemq_spark")


@pytest.mark.process
def test_the_image_is_healthy_as_long_as_the_gateway_serves():
    environment = dict(re.findall(r"^ENV (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    check = json.loads(re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[1])
    environment[f"{ENVIRONMENT_PREFIX}LISTEN"] = "127.0.0.1:0"
    environment[f"{ENVIRONMENT_PREFIX}METRICS"] = f"127.0.0.1:{free_port()}"
    load_settings(None, environment, {"master_servers": "m"})

    def healthy():
        found = subprocess.run(
            [sys.executable, *check[1:]],
            env={**os.environ, **environment},
            check=False,
            stderr=subprocess.DEVNULL,
        )
        return found.returncode == 0

    with started([], **environment):
        assert healthy()
    assert not healthy()


def test_containers_of_the_compose_file_have_settings_that_there_are():
    environments = re.findall(rf"((?:^      {ENVIRONMENT_PREFIX}\w+: \S+\n)+)", COMPOSE, re.MULTILINE)
    assert len(environments) == 2
    for text in environments:
        load_settings(None, dict(line.strip().split(": ") for line in text.splitlines()))


def test_ports_of_the_compose_file_are_this_machine_s_only():
    ports = re.findall(r'^      - "(.*:\d+)"', COMPOSE, re.MULTILINE)
    assert len(ports) == 8
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_what_the_image_is_built_from_is_there():
    """And nothing else, such as ``.git``."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    names = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert [name for name in names if not (ROOT / name).exists()] == []
    assert {"setup.py", "tubemq_spark"} <= set(names)


def test_the_example_of_a_client_reads_what_there_is_and_ends(capsys):
    page = (ROOT / "docs" / "gateway" / "gateway.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import array\n.*?)```", page, re.DOTALL)
    with tubemq(clicks=(1, 1)) as server, fleet_of(server) as fleet:
        for broker_id in (1, 2, 3):
            fleet.publish("clicks", b"one", b"two", broker_id=broker_id)
        exec(compile(example.replace("gateway1:11911", fleet.served.address), "gateway.md", "exec"), {})
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(["b'one'", "b'two'"] * 3)
