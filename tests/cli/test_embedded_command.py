"""The embedded server as a process: it prints its addresses, serves, and ends cleanly."""

import contextlib
import io
import itertools
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from testkit.connections import opened_connections
from testkit.message_sender import MessageSender
from tests.cases import in_one_test
from tubemq_spark.cli import embedded
from tubemq_spark.cli.embedded import Meter, line, table
from tubemq_spark.cli.main import build_parser, main
from tubemq_spark.cli.screen import live
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.embedded.log.records import Traffic
from tubemq_spark.embedded.nodes import BrokerCondition
from tubemq_spark.embedded.server import EmbeddedSettings, Overview
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint, OffsetBounds, StoreId
from tubemq_spark.net.tls import ServerTls

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


@pytest.mark.process
def test_the_line_to_copy_lets_commands_create_a_topic():
    with _serving(*ANY_PORTS) as process:
        (exports,) = re.findall(r"^    export (.+)$", _introduction(process), re.MULTILINE)
        variables = dict(pair.split("=") for pair in exports.split())
        created = subprocess.run(
            [sys.executable, "-m", "tubemq_spark", "topics", "create", "orders"],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (created.returncode, created.stderr) == (0, "")
    assert "orders" in created.stdout


@pytest.mark.process
def test_a_signal_ends_the_embedded_server_with_exit_code_0_and_the_next_run_has_its_topics(tmp_path):
    for number, topic in ((signal.SIGINT, "old:3:1"), (signal.SIGTERM, "new:1:2")):
        with _serving(*ANY_PORTS, "--data", str(tmp_path), "--topic", topic) as process:
            introduction = _introduction(process)
            master = Endpoint.parse(re.search(r"^master +(\S+)$", introduction, re.MULTILINE)[1])
            socket.create_connection((master.host, master.port), timeout=5).close()
            process.send_signal(number)
            output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (0, "stopping\n", "")
        assert "old: 3 stores of 1 partition" in introduction
    assert "new: 1 store of 2 partitions" in introduction


def test_a_port_in_use_is_a_sentence_with_the_options_of_all_and_exit_code_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["embedded", *ANY_PORTS, f"--broker-port={port}"]) == 1
    options, error = capsys.readouterr().err.splitlines()
    assert options == (
        f"tubemq-spark: the ports are --master-port 0, --broker-port {port}, --master-web-port 0, "
        "--broker-web-port 0"
    )
    assert error.startswith(f"tubemq-spark: [TUBEMQ_LISTEN_FAILED] Cannot listen on 127.0.0.1:{port}")
    assert error.endswith("; set --broker-port to another port, or to 0 for any free one.")


@pytest.mark.process
def test_several_brokers_are_told_with_their_addresses_and_a_report_is_a_line_every_so_often():
    arguments = ("--brokers", "3", "--topic", "clicks:1:1", "--report-seconds", "0.05")
    with _serving(*ANY_PORTS, *arguments) as process:
        introduction = _introduction(process)
        assert process.stdout.readline().startswith(
            "in 0 messages/s, 0.0 MB/s (0 messages, 0.0 MB in total); out"
        )
        _produce(introduction, 100)
        assert any("(100 messages, 0.0 MB in total); out" in line for line in process.stdout)
        process.terminate()
        output, errors = process.communicate(timeout=20)
    brokers = re.findall(r"^broker +(\S+):", introduction, re.MULTILINE)
    assert brokers == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert (process.returncode, errors) == (0, "")
    assert output.endswith("stopping\n")


def _produce(introduction, count):
    master = Endpoint.parse(re.search(r"^master +(\S+)$", introduction, re.MULTILINE)[1])
    with (
        opened_connections() as connections,
        MessageSender(ClientConfig((master,), "etl"), connections) as producer,
    ):
        for number in range(count):
            producer.send("clicks", b"%d" % number)


@pytest.mark.process
def test_a_terminal_shows_a_table_and_ends_cleanly(tmp_path):
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "tubemq_spark", "embedded", *ANY_PORTS, "--topic", "clicks:1:1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=environment)
    os.close(writer)
    try:
        text = ""
        while "partitions being read" not in text:
            text += os.read(reader, 4096).decode()
        process.send_signal(signal.SIGINT)
        text += _rest_of(reader)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
    assert process.returncode == 0
    assert errors == b""
    assert text.rstrip().endswith("stopping")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is shown again"


def _rest_of(reader):
    """Read to the end of a terminal, which Linux reports as an error."""
    text = ""
    with contextlib.suppress(OSError):
        while data := os.read(reader, 4096):
            text += data.decode()
    return text


@in_one_test(
    ("words", "sentence"),
    [
        (
            ["--master-port=99999"],
            "argument --master-port: '99999' is not a port; use 0 to 65535; see tubemq-spark embedded -",
        ),
        (["--broker-web-port=http"], "argument --broker-web-port: 'http' is not a port"),
        (["--data={file}"], "[TUBEMQ_DATA_DIR_UNUSABLE] The directory {file} cannot be used"),
        (["--data={file}/below"], "[TUBEMQ_DATA_DIR_UNUSABLE] The directory {file}/below cannot be used"),
        (["--data=/proc/tubemq"], "[TUBEMQ_DATA_DIR_UNUSABLE] The directory /proc/tubemq cannot be used"),
        (
            ["--host=8.8.8.8", "--token-file={file}"],
            "[TUBEMQ_HOST_ELSEWHERE] '8.8.8.8' is not an address of this machine",
        ),
        (["--host=0.0.0.0"], "[TUBEMQ_OPEN_TO_ALL] Other machines can reach the server on 0.0.0.0"),
        (
            ["--host=no.such.host.invalid"],
            "[TUBEMQ_HOST_ELSEWHERE] 'no.such.host.invalid' is not an address of this machine",
        ),
        (["--segment-mib=0"], "argument --segment-mib: '0' is not a size in MiB; use 1 to 1048576"),
        (
            ["--index-segment-entries=none"],
            "argument --index-segment-entries: 'none' is not a number of messages; use 1 to 67108864",
        ),
        (
            ["--tls-cert={file}.pem"],
            "[TUBEMQ_TLS_FILE] ServerTls.cert_file names {file}.pem, which cannot be used: No such",
        ),
        (
            ["--tls-cert={file}"],
            "[TUBEMQ_TLS_FILE] ServerTls.cert_file names {file}, which cannot be used: it is not a",
        ),
        (["--tls-key={file}"], "--tls-cert must be specified, since --tls-key needs it"),
        (["--brokers=0"], "'0' is not a number of brokers; use 1 to 100"),
        (["--brokers=101"], "'101' is not a number of brokers; use 1 to 100"),
        (["--report-seconds=0"], "'0' is not a number of seconds"),
        (["--report-seconds=nan"], "'nan' is not a number of seconds"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(tmp_path, capsys, words, sentence):
    file = tmp_path / "file"
    file.write_text("a token")
    arguments = [argument.format(file=file) for argument in (*ANY_PORTS, *words)]
    try:
        code = main(["embedded", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    errors = capsys.readouterr().err
    assert code == 2
    assert errors.startswith("tubemq-spark")
    assert sentence.format(file=file) in errors
    assert errors.count("\n") == 1


def test_segments_and_the_token_are_as_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("TUBEMQ_ADMIN_TOKEN", "of the environment")
    token = tmp_path / "token"
    token.write_text("mine\n")
    arguments = build_parser().parse_args(
        ["embedded", "--segment-mib=4", "--index-segment-entries=1000", f"--token-file={token}"]
    )
    settings = embedded._settings(arguments)
    assert (settings.data_segment_bytes, settings.index_segment_bytes) == (4 << 20, 28_000)
    assert settings.admin_token == "mine"
    plain = build_parser().parse_args(["embedded"])
    assert embedded._settings(plain).admin_token == "of the environment"
    monkeypatch.delenv("TUBEMQ_ADMIN_TOKEN")
    assert embedded._settings(plain) == EmbeddedSettings()


def test_a_token_is_no_argument_since_others_see_those(tmp_path):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["embedded", "--admin-token=mine"])
    empty = tmp_path / "empty"
    empty.touch()
    for file in (empty, tmp_path / "nowhere"):
        arguments = build_parser().parse_args(["embedded", f"--token-file={file}"])
        with pytest.raises(OptionError, match="--token-file"):
            embedded._settings(arguments)


def test_tls_is_as_asked_for():
    def tls_of(*words):
        return embedded._settings(build_parser().parse_args(["embedded", *words])).tls

    assert tls_of() is None
    assert tls_of("--tls-cert", "both.pem") == ServerTls("both.pem")
    assert tls_of("--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca") == ServerTls(
        "c", "k", client_ca_file="ca"
    )
    for word in ("--tls-key", "--tls-client-ca"):
        with pytest.raises(OptionError, match=f"'--tls-cert' must be specified, since '{word}' needs it"):
            tls_of(word, "x.pem")


@pytest.mark.parametrize(
    ("limits", "set_to"),
    [
        ((256, resource.RLIM_INFINITY), 10_240),
        ((1024, 4096), 4096),
        ((4096, 4096), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
    ids=["macOS", "Linux", "at its limit", "none"],
)
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_lets(monkeypatch, limits, set_to):
    seen = []

    def set_limit(_, pair):
        if not 0 < pair[0] <= 10_240:
            raise ValueError("current limit exceeds maximum limit")
        seen.append(pair)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    embedded._allow_many_files()
    assert seen == ([] if set_to is None else [(set_to, limits[1])])


def test_a_limit_that_cannot_be_raised_is_a_warning(monkeypatch, caplog):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    embedded._allow_many_files()
    assert "the limit of 256 open files cannot be raised to 1024: not allowed" in caplog.text


def test_the_usual_ports_are_not_those_of_a_spark_cluster():
    arguments = build_parser().parse_args(["embedded"])
    ports = {
        arguments.master_port,
        arguments.broker_port,
        arguments.master_web_port,
        arguments.broker_web_port,
    }
    assert len(ports) == 4
    assert not ports & {4040, 6066, 7077, 7337, 8080, 8081, 15002, 18080}


def overview(messages_in=0, messages_out=0, stores=1, brokers=("running",)):
    return Overview(
        Traffic(messages_in, messages_in * 1000, messages_out, messages_out * 1000),
        connections=4,
        producers=1,
        consumers=2,
        leases=3,
        stores={
            StoreId("clicks", broker, number): OffsetBounds(28, 28 * 1001)
            for broker in range(1, len(brokers) + 1)
            for number in range(stores)
        },
        brokers={number: BrokerCondition(state) for number, state in enumerate(brokers, 1)},
    )


def meter():
    ticks = iter(range(0, 1000, 2))
    return Meter(clock=lambda: next(ticks))


def test_speeds_are_those_since_the_last_look():
    counter = meter()
    counter.flows(overview())
    incoming, outgoing = counter.flows(overview(3000, 500))
    assert incoming == "1,500 messages/s, 1.5 MB/s (3,000 messages, 3.0 MB in total)"
    assert outgoing == "250 messages/s, 0.2 MB/s (500 messages, 0.5 MB in total)"
    incoming, _ = counter.flows(overview(3000, 500))
    assert incoming == "0 messages/s, 0.0 MB/s (3,000 messages, 3.0 MB in total)"


def test_two_looks_at_the_same_moment():
    counter = Meter(clock=lambda: 7.0)
    counter.flows(overview())
    counter.flows(overview(1))


def test_a_line_has_traffic_and_clients():
    seen = overview(20, 10)
    text = line(seen, meter().flows(seen))
    assert text == (
        "in 10 messages/s, 0.0 MB/s (20 messages, 0.0 MB in total); "
        "out 5 messages/s, 0.0 MB/s (10 messages, 0.0 MB in total); "
        "4 connections, 1 producer, 2 consumers, 3 partitions being read"
    )


def test_brokers_are_shown_with_their_state_where_there_are_several():
    seen = overview(brokers=("running", "frozen", "stopped"))
    assert line(seen, meter().flows(seen)).endswith("; brokers: 1 running, 2 frozen, 3 stopped")
    screen = shown(seen)
    assert "brokers: 1 running, 2 frozen, 3 stopped" in screen
    assert "1/0: 28-28028  2/0: 28-28028  3/0: 28-28028" in screen
    assert "brokers" not in shown(overview())


def shown(seen):
    file = io.StringIO()
    with live(Console(file=file, width=120, force_terminal=True)) as show:
        show(table(seen, meter().flows(seen)))
    return file.getvalue()


def test_a_table_has_the_offsets_of_every_topic():
    text = shown(overview(stores=2))
    assert "4 connections" in text
    assert "2,000" in text
    assert "0: 28-28028  1: 28-28028" in text


def test_a_topic_of_many_stores_is_cut_short():
    text = shown(overview(stores=9))
    assert "3: 28-28028  and 5 more" in text
    assert "4: 28" not in text
