"""The embedded server as a process: it says where it is, serves, and ends cleanly."""

import contextlib
import itertools
import re
import signal
import socket
import subprocess
import sys

import pytest

from tubemq_spark.model import Endpoint

ANY_PORTS = [f"--{port}=0" for port in ("master-port", "broker-port", "master-web-port", "broker-web-port")]


@contextlib.contextmanager
def _serving(*arguments):
    command = [sys.executable, "-m", "tubemq_spark", "embedded", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _introduction(process):
    lines = list(itertools.takewhile(lambda line: not line.startswith("Stop"), process.stdout))
    return "".join(lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_exit_code_0(tmp_path, number):
    with _serving(*ANY_PORTS, "--data", str(tmp_path), "--topic", "clicks:3:1") as process:
        introduction = _introduction(process)
        master = Endpoint.parse(re.search(r"^master +(\S+)$", introduction, re.MULTILINE)[1])
        socket.create_connection((master.host, master.port), timeout=5).close()
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
    assert "clicks: 3 stores of 1 partitions" in introduction
    assert (process.returncode, output, errors) == (0, "stopping\n", "")


def test_topics_of_an_earlier_run_are_there_and_shown(tmp_path):
    for arguments in (["--topic", "old:1:2"], ["--topic", "new:1:1"]):
        with _serving(*ANY_PORTS, "--data", str(tmp_path), *arguments) as process:
            introduction = _introduction(process)
            process.terminate()
            process.wait(timeout=20)
    assert "old: 1 stores of 2 partitions" in introduction
    assert "new: 1 stores of 1 partitions" in introduction


def test_a_port_in_use_is_a_sentence_and_exit_code_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _serving(*ANY_PORTS, f"--master-port={port}") as process:
            _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors.startswith("tubemq-spark: ")
    assert str(port) in errors
    assert errors.count("\n") == 1
