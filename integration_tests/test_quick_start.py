"""The quick start does what it says: a stream that counts, tells its lag, and resumes."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from integration_tests.rig.pages import DOCS, blocks, moved
from tubemq_spark.embedded.server import EmbeddedTubeMQ

PAGE = DOCS / "quick-start.md"
WRITTEN = {"127.0.0.1:8715", "/tmp/tubemq-trial-pages", "9108"}
PATIENCE_SECONDS = 120

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


def job(meant):
    """Return the program of the page, at other places."""
    (text,) = blocks("quick-start.md")
    assert meant.keys() == WRITTEN
    return moved(text, meant)


def send(master):
    """Do step 3 of the page."""
    (sending,) = re.findall(r"^printf '(.*)' \| tubemq-spark (.*) --master", PAGE.read_text(), re.MULTILINE)
    lines, command = sending
    subprocess.run(
        [sys.executable, "-m", "tubemq_spark", *command.split(), "--master", master],
        input=lines.replace("\\n", "\n"),
        text=True,
        check=True,
    )


@contextlib.contextmanager
def running(program, log):
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, str(program)], stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def wait_for(what, log):
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)


def metrics(port):
    with (
        contextlib.suppress(urllib.error.URLError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page,
    ):
        return page.read().decode()
    return ""


def test_a_stream_counts_tells_its_lag_and_resumes(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with EmbeddedTubeMQ(topics={"clicks": (3, 1)}) as server:
        program, log = tmp_path / "stream.py", tmp_path / "log"
        places = {"127.0.0.1:8715": server.master, "/tmp/tubemq-trial-pages": str(tmp_path / "checkpoint")}
        program.write_text(job(places | {"9108": port}))
        send(server.master)

        with running(program, log):
            wait_for(lambda: re.search(r"\|\s*home\|\s+2\|", log.read_text()), log)
            wait_for(lambda: 'tubemq_lag_rows{query="pages"' in metrics(port), log)
        send(server.master)
        with running(program, log):
            wait_for(lambda: re.search(r"\|\s*home\|\s+4\|", log.read_text()), log)
