"""What a gateway shows while it serves: on a terminal, and as lines."""

import contextlib
import errno
import io
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from tests.gateway.running import PlainClient, tubemq
from tubemq_spark.cli.gateway_screen import line, table
from tubemq_spark.gateway.operate.overview import Flow, Overview, RouteRow, SessionRow

FLOWS = {"read": Flow(3_000, 2_000_000, 1_500.4, 1_000_000), "published": Flow(0, 0, 0, 0)}


def overview(sessions=1, topics=1, draining=False, **numbers):
    return Overview(
        name="g1",
        cluster="default",
        version="1",
        address="host:11911",
        masters=("m:8715",),
        uptime_ms=1_000,
        draining=draining,
        flows=FLOWS,
        numbers=numbers,
        sessions=tuple(
            SessionRow(f"client{n}", "group", f"peer{n}", "Python", "1", 1_000, n * 100, n, int(n == 15))
            for n in range(sessions)
        ),
        session_count=sessions,
        routes=tuple(RouteRow(f"topic{n}", "group", 30, 3, 500) for n in range(topics)),
    )


def shown(seen):
    console = Console(file=io.StringIO(), width=120)
    console.print(table(seen))
    return console.file.getvalue()


def test_a_line_has_rates_and_what_there_is():
    assert line(overview(reads=2, fetches=0)) == (
        "gateway g1 serves at host:11911, 1 sessions; "
        "read 1,500 messages/s, 1.0 MB/s (3,000 messages, 2.0 MB in total); "
        "published 0 messages/s, 0.0 MB/s (0 messages, 0.0 MB in total); reads: 2"
    )
    assert line(overview()).endswith("; idle")
    assert "about to stop" in line(overview(draining=True))


def test_a_table_has_sessions_and_routes_and_counts_those_left_out():
    text = shown(overview(sessions=20, topics=10))
    lines = [row.split() for row in text.splitlines()]
    # The one with a call under way comes first.
    first = next(row for row in lines if row and row[0].startswith("client") and row[0] != "client")
    assert first == ["client15", "group", "peer15", "15", "1", "1.5", "s"]
    assert "and 12 more" in text
    assert ["topic0", "group", "30", "3", "0.5", "s"] in lines
    assert "and 2 more" in text


@contextlib.contextmanager
def serving(server, stdout, *arguments):
    command = [sys.executable, "-m", "tubemq_spark", "gateway", f"--master-servers={server.master}"]
    command += [f"--master-web={server.master_web}", "--listen=127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(descriptor, pattern, text=""):
    deadline = time.monotonic() + 30
    while not (found := re.search(pattern, text)):
        assert time.monotonic() < deadline, text
        try:
            text += os.read(descriptor, 65_536).decode()
        except OSError as error:
            # What Linux says at the end of a terminal.
            if error.errno != errno.EIO:
                raise
            break
    return text, found


@pytest.mark.process
def test_a_terminal_shows_sessions_as_they_come_and_the_gateway_ends_by_a_signal():
    ours, theirs = pty.openpty()
    with tubemq(demo=(1, 1)) as server, serving(server, theirs, "--node-name=g1") as process:
        os.close(theirs)
        text, found = read_until(ours, r"gateway g1 serves at (127[.\d]+:\d+)\s")
        text, _ = read_until(ours, r"127[.\d:]+, 0 sessions", text)
        with PlainClient(found[1], "somebody") as client:
            client.open()
            client("QueryRoute", topics=["demo"])
            _, seen = read_until(ours, r"(?s), 1 sessions.*somebody.*demo")
            assert seen
        process.send_signal(signal.SIGINT)
        read_until(ours, "there is no more")
        assert process.wait(20) == 0
    os.close(ours)


@pytest.mark.process
def test_report_seconds_writes_the_figures_as_lines():
    with (
        tubemq(demo=(1, 1)) as server,
        serving(server, subprocess.PIPE, "--node-name=g1", "--report-seconds=0.05") as process,
    ):
        lines = [process.stdout.readline().decode() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(20) == 0
        process.stdout.close()
    assert lines[0].startswith("gateway g1 serves at 127.")
    assert all(re.search(r"0 sessions; read 0 messages/s.*; idle\n$", one) for one in lines[1:])
