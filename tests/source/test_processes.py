"""Spark makes a reader in several Python processes, and each of them imports what it uses."""

import json
import subprocess
import sys

PROCESSES = """
import gc, importlib.util, json, sys
import pyarrow, pyspark.worker, pyspark.sql.datasource

sys.modules["__main__"].__spec__ = importlib.util.find_spec("pyspark.daemon")  # as in a process of Spark's
of_python = gc.get_freeze_count()  # CPython 3.12 spares some hundred objects of its own
assert of_python < 1000, "Spark spares its modules itself"

spark = set(sys.modules)
loaded = {}

def note(name):
    loaded[name] = sorted(set(sys.modules) - spark)

import pyspark_tubemq

note("any")
spared = gc.get_freeze_count() - of_python
import tubemq_spark.datasource

source = tubemq_spark.datasource.TubeMQDataSource({"tubemq.master.servers": "master:1", "subscribe": "demo"})
stream = source.streamReader(source.schema())
batch = source.reader(source.schema())
note("plan")
assert not list(stream.read(None)) and not list(batch.read(None))
note("task")
assert stream.reportLatestOffset() is None
note("driver")
print(json.dumps(loaded | {"spared": spared}))
"""


def test_no_process_of_a_reader_imports_what_only_others_need():
    done = subprocess.run([sys.executable, "-c", PROCESSES], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)

    def absent(process, *modules):
        for module in modules:
            assert not [name for name in loaded[process] if f"{name}.".startswith(f"{module}.")], process

    assert loaded["spared"] > 1000, "the collector would walk through Spark's modules because of ours"
    rare = ("grpc", "http", "pyarrow.compute", "pyarrow.fs")
    # The event loop brings what speaks TLS, and begins with the first question or row.
    absent("any", *rare, "asyncio", "ssl", "tubemq_spark.options", "tubemq_spark.model")
    absent(
        "plan",
        *rare,
        "asyncio",
        "ssl",
        "google.protobuf",
        "tubemq_spark.client.master",
        "tubemq_spark.source.planner",
    )
    # The table of names that other clients have is read when a name is wrong.
    guessed = ("tubemq_spark.client.names.others",)
    absent("task", *rare, *guessed, "tubemq_spark.client.producer", "tubemq_spark.source.planner")
    absent("driver", *rare, *guessed, "tubemq_spark.client.producer")
    assert "tubemq_spark.source.task" in loaded["task"]
    assert "tubemq_spark.source.planner" in loaded["driver"]


WITHOUT_SPARK = """
import sys

sys.modules["pyspark"] = None  # as if it were not installed
import tubemq_spark.source.batch_driver, tubemq_spark.source.inlong, tubemq_spark.source.task
"""


def test_messages_are_planned_and_read_without_spark():
    subprocess.run([sys.executable, "-c", WITHOUT_SPARK], check=True)
