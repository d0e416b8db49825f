"""Runs of programs that go wrong, and what is the same in the output of each run."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from integration_tests.seen.mistakes import TOPIC, Mistake
from tubemq_spark.embedded.server import EmbeddedTubeMQ

KEPT: Final = Path(__file__).with_name("kept")

_OF_THE_MACHINE: Final = (
    r"(?m)^.*(NativeCodeLoader|default log4j profile|default log level|adjust logging level|Your hostname"
    r"|Set SPARK_LOCAL_IP|incubator modules).*\n"
)
_CHANGING: Final = (
    (_OF_THE_MACHINE, ""),
    (r"\b\d\d/\d\d/\d\d \d\d:\d\d:\d\d\b", "TIME"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"(?m)^(\s+)at .*\n(?:\1at .*\n|\s+\.\.\. \d+ more\n)*", r"\1at ...\n"),
    (r'File "[^"]*/(pyspark|py4j|tubemq_spark)/', r'File "\1/'),
    (r'File "<frozen [^"]*"', 'File "FROZEN"'),
    (r"\bline \d+", "line N"),
    (r"(?m)^( *)(File .*, line N, in .*\n)(?:\1  .*\n)+", r"\1\2"),
    (r"\bo\d+\.", "oN."),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\(\S+ executor driver\)", "(HOST executor driver)"),
    (r"\(PID \d+\)|pid=\d+", "(PID)"),
    (r"(?<=\w)@[0-9a-f]{5,8}\b", "@HASH"),
    (r"(?<=\w)#\d+L?", "#N"),
    (r"(?m)^Using Spark.*\n|^WARNING: (Using|A|Use|Please|All).*\n", ""),
)  # fmt: skip
"""Patterns of what differs from run to run, and what stands for it; frames of the JVM count as one line.

Each Python quotes the source of a frame in its own way, so that is left out.
"""


def run(mistake: Mistake, folder: Path) -> str:
    """Return what a program prints, on both outputs, in its order."""
    program = folder / "job.py"
    program.write_text(mistake.program)
    topics = {TOPIC: (1, 1), "payments": (1, 1)}
    with EmbeddedTubeMQ(topics=topics, settings=mistake.settings) as server:
        done = subprocess.run(
            [sys.executable, str(program), mistake.master(server), str(folder)],
            env=mistake.environment(folder),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode != 0, done.stdout
    return _same_in_each_run(done.stdout, folder)


def _same_in_each_run(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "FOLDER")
    for pattern, instead in _CHANGING:
        text = re.sub(pattern, instead, text)
    return text
