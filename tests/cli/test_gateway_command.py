"""The gateway as a process: where it serves, how it ends, and which exit code says what went wrong."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from tests.gateway.running import PlainClient, tubemq
from tests.waiting import wait_until
from tubemq_spark.cli.main import main
from tubemq_spark.gateway.settings import load_settings
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.send_batch import SendBatch


@pytest.fixture
def server():
    with tubemq(demo=(1, 1)) as running:
        yield running


@contextlib.contextmanager
def serving(server, *arguments):
    command = [sys.executable, "-m", "tubemq_spark", "gateway", f"--master-servers={server.master}"]
    command += [f"--master-web={server.master_web}", "--listen=127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process):
    return re.fullmatch(r"gateway \S+ serves at (\S+)\n", process.stdout.readline())[1]


# The way to the master counts as a connection.
FIGURES = r"0 sessions; read 0 messages/s.*; (idle|Connections to masters and brokers .*: 1)\n$"


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "report"),
    [(signal.SIGINT, []), (signal.SIGTERM, ["--report-seconds=0.05"])],
    ids=["SIGINT", "SIGTERM, with reports"],
)
def test_a_signal_ends_the_gateway_with_exit_code_0(server, number, report):
    with serving(server, "--node-name=g1", "--metrics=127.0.0.1:0", *report) as process:
        address = address_of(process)
        assert process.stdout.readline().startswith("metrics at http://127.0.0.1:")
        assert process.stdout.readline().startswith("status page at http://127.0.0.1:")
        for _ in range(2 * len(report)):
            assert re.search(FIGURES, process.stdout.readline())
        with PlainClient(address) as client:
            client.open()
            assert list(client("ListTopics").topics) == ["demo"]
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert report or output == ""
    served = r"^\d{4}-\d\d-\d\dT[\d:]{8}Z INFO tubemq_spark\.gateway: gateway g1 .* serves at "
    assert re.search(served, errors, re.MULTILINE)
    assert "gateway g1 has stopped" in errors


@pytest.mark.process
def test_a_second_signal_does_not_wait_for_calls(server):
    with serving(server, "--drain-ms=60000") as process, PlainClient(address_of(process)) as client:
        client.open()
        over = threading.Event()
        held = server.faults.hold(Method.SEND_MESSAGE)

        def commands():
            yield pb.PublishStreamRequest(begin=pb.PublishStreamRequest.Begin())
            yield pb.PublishStreamRequest(batch=sends.to_proto(SendBatch.of("demo", [b"x"])), number=1)
            over.wait(30)

        answers = client.method("PublishStream")(commands(), timeout=60)
        next(answers)
        wait_until(lambda: held.hits)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: client("Heartbeat").draining)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        over.set()
        held.release()
        server.faults.clear()
    assert process.returncode == 0
    assert "a second signal" in errors


def test_a_port_that_is_taken_is_exit_code_3(server, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"--listen=127.0.0.1:{taken.getsockname()[1]}"
        assert main(["gateway", f"--master-servers={server.master}", listen]) == 3
        assert "; set listen (--listen) to another port, or to 0 " in capsys.readouterr().err


def test_no_master_is_exit_code_4_where_one_is_required(capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f"--master-servers=127.0.0.1:{unused.getsockname()[1]}"
        assert main(["gateway", away, "--listen=127.0.0.1:0", "--require-master"]) == 4
    assert "[TUBEMQ_CONNECT_FAILED]" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--master-servers=m", "--lease-ms=soon"]], ids=str)
def test_wrong_settings_are_exit_code_2(capsys, arguments):
    assert main(["gateway", "--check-config", *arguments]) == 2
    assert "[TUBEMQ_GATEWAY_CONFIG]" in capsys.readouterr().err


def test_settings_are_checked_and_printed_without_secrets(capsys, tmp_path, monkeypatch):
    file = tmp_path / "gateway.toml"
    file.write_text('master_servers = ["m1", "m2"]\nlease_ms = 20000\nnode_name = "g1"\n')
    monkeypatch.setenv("TUBEMQ_GATEWAY_READS", "7")
    assert main(["gateway", f"--config={file}", "--check-config"]) == 0
    assert capsys.readouterr().out == "the settings are sound\n"

    assert main(["gateway", f"--config={file}", "--reads=9", "--print-config"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    again = load_settings(printed)
    assert (again.master_servers, again.lease_ms, again.reads) == (
        (Endpoint("m1", 8715), Endpoint("m2", 8715)),
        20_000,
        9,
    )


def test_a_secret_is_no_argument(capsys):
    with pytest.raises(SystemExit):
        main(["gateway", "--master-servers=m", "--master-tls-key-password=hush"])
    assert "hush" not in capsys.readouterr().err.replace("--master-tls-key-password=hush", "")


@pytest.mark.parametrize("package", ["grpc", "grpc_health", "prometheus_client"])
def test_a_package_that_is_missing_is_named(capsys, monkeypatch, package):
    loaded = [name for name in sys.modules if name.startswith(("tubemq_spark.gateway.", package))]
    for name in loaded:
        if name != "tubemq_spark.gateway.settings":
            parent, _, child = name.rpartition(".")
            # A second import replaces it there too, and later tests would patch a module that is not used.
            if parent == "tubemq_spark.gateway":
                monkeypatch.setattr(sys.modules[parent], child, sys.modules[name])
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    assert main(["gateway", "--master-servers=m", "--listen=127.0.0.1:0"]) == 2

    complaint = capsys.readouterr().err
    assert "[TUBEMQ_GATEWAY_MISSING]" in complaint
    assert "pip install 'tubemq_spark[gateway]'" in complaint
