"""The mistakes: a user's program each, where it goes wrong, and what is the same in each run's output."""

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ

TOPIC: Final = "orders"
_FOR_TESTS_ONLY: Final = Path(__file__).parents[1] / "preloaded"
"""What makes Spark's daemons start faster in the other tests."""

_HEAD: Final = """\
import os, sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
from pyspark.sql import SparkSession

master, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    .config("spark.sql.warehouse.dir", folder)
    .getOrCreate()
)
tubemq = {"tubemq.master.servers": master}
"""
_READ: Final = 'spark.read.format("tubemq").options(**tubemq, subscribe="orders")'
_STREAM: Final = (
    'spark.readStream.format("tubemq").options(**tubemq, subscribe="orders", startingOffsets="earliest")'
)
_TO_FILES: Final = """\
    query = (
        stream.writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
"""


def _master(server: EmbeddedTubeMQ) -> str:
    return server.master


def _broker(server: EmbeddedTubeMQ) -> str:
    return server.broker


def _web(server: EmbeddedTubeMQ) -> str:
    return server.master_web


def _unused_port(_: EmbeddedTubeMQ) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _with_path(*first: str) -> dict[str, str]:
    """Return a user's environment, in which Python finds some folders first."""
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    users = [folder for folder in inherited if Path(folder) != _FOR_TESTS_ONLY]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*first, *users])}


def _as_it_is(_: Path) -> Mapping[str, str]:
    return _with_path()


def _without_java(folder: Path) -> Mapping[str, str]:
    """The tools that Spark's scripts call are there, and Java is not."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "dirname", "env", "ls", "uname"):
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found)
    return {key: value for key, value in _with_path().items() if key != "JAVA_HOME"} | {"PATH": str(tools)}


def _without_the_package(folder: Path) -> Mapping[str, str]:
    """Spark's Python processes run a Python that has everything but this package."""
    bare = folder / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(
        "import os, sys\n"
        "sys.path[:] = [each for each in sys.path if not os.path.isdir(each + '/tubemq_spark')]\n"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{bare}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return {**_with_path(), "PYSPARK_PYTHON": str(python)}


def _with_older_spark(folder: Path) -> Mapping[str, str]:
    """The newest PySpark that is too old, before the one that is installed."""
    older = folder / "older"
    packages = ["pyspark==4.1.*", "py4j"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(older),
        *packages,
    ]
    subprocess.run(command, check=True)
    return {**_with_path(str(older)), "SPARK_HOME": str(older / "pyspark")}


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A program that goes wrong."""

    body: str
    """What follows the head."""
    condition: str
    """The condition of the sentence that tells the user: ours begin with ``TUBEMQ_``, others are Spark's."""
    master: Callable[[EmbeddedTubeMQ], str] = _master
    environment: Callable[[Path], Mapping[str, str]] = _as_it_is
    settings: EmbeddedSettings = dataclasses.field(default_factory=EmbeddedSettings)

    @property
    def is_told_by_spark(self) -> bool:
        """Whether Spark fails before it knows of this package."""
        return not self.condition.startswith("TUBEMQ_")

    @property
    def program(self) -> str:
        """The whole program."""
        return _HEAD + self.body


MISTAKES: Final[dict[str, Mistake]] = {
    "wrong_port": Mistake(f"{_READ}.load().show()\n", "TUBEMQ_NO_MASTER", master=_unused_port),
    "port_of_a_broker": Mistake(f"{_READ}.load().show()\n", "TUBEMQ_NOT_A_MASTER", master=_broker),
    "web_port": Mistake(f"{_READ}.load().show()\n", "TUBEMQ_NOT_A_MASTER", master=_web),
    "misspelt_topic_read": Mistake(
        f"{_READ.replace('orders', 'ordres')}.load().show()\n", "TUBEMQ_TOPIC_NOT_DEPLOYED"
    ),
    "misspelt_topic_written": Mistake(
        'spark.createDataFrame([("book",)], "value string").write.format("tubemq")'
        '.options(**tubemq, topic="ordres").mode("append").save()\n',
        "TUBEMQ_TOPIC_UNKNOWN",
    ),
    "package_missing": Mistake(
        f"{_READ}.load().show()\n", "DATA_SOURCE_NOT_FOUND", environment=_without_the_package
    ),
    "older_pyspark": Mistake(
        f"{_READ}.load().show()\n", "TUBEMQ_SPARK_TOO_OLD", environment=_with_older_spark
    ),
    "wrong_checkpoint": Mistake(
        "rows = spark.createDataFrame([('book', 'orders'), ('5', 'payments')], 'value string, topic string'\n"
        ")\n"
        "rows.write.format('tubemq').options(**tubemq).mode('append').save()\n"
        "for topics in ('orders,payments', 'orders'):\n"
        f"    stream = {_STREAM}.option('subscribe', topics).load()\n{_TO_FILES}",
        "TUBEMQ_CHECKPOINT_TOPICS",
    ),
    "no_java": Mistake(f"{_READ}.load().show()\n", "JAVA_GATEWAY_EXITED", environment=_without_java),
    "wrong_password": Mistake(
        "tubemq |= {'tubemq.username': 'anna', 'tubemq.password': 'wrong'}\n" + f"{_READ}.load().show()\n",
        "TUBEMQ_NOT_AUTHENTICATED.WRONG_PASSWORD",
        settings=EmbeddedSettings(authenticate_consumers=True, users={"anna": "right"}),
    ),
    "unknown_column": Mistake(
        f'{_READ}.schema("value binary, key binary").load().show()\n', "TUBEMQ_SCHEMA_UNKNOWN_COLUMN"
    ),
    "unknown_option": Mistake(
        f'{_READ}.option("startingOffset", "latest").load().show()\n', "TUBEMQ_OPTION_UNKNOWN"
    ),
    "server_gone": Mistake(
        "from tubemq_spark.embedded.server import EmbeddedTubeMQ\n"
        "\n"
        "with EmbeddedTubeMQ(topics={'orders': (1, 1)}) as server:\n"
        "    tubemq['tubemq.master.servers'] = server.master\n"
        f"    rows = {_READ}.load()\n"
        "rows.show()\n",
        "TUBEMQ_NO_MASTER",
    ),
}
"""By the names of the kept files."""


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
