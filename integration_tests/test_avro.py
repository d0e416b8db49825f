"""The code of ``docs/spark/avro.md``, on messages that are made byte by byte."""

import os
import subprocess
import sys

import pytest

from integration_tests.real.artifacts import PACKAGES, required, spark_jars
from integration_tests.rig.messages import Sample, client_config, produce
from integration_tests.rig.pages import blocks, moved, spark_variables
from tubemq_spark.client import TubeMQClient

OF_3, OF_7 = b"\0\0\0\0\3", b"\0\0\0\0\7"
"""Heads, of messages with two schemas."""
TOPICS = ("newer", "both", "bare")
"""Only messages of schema 7; of both; one without a head."""
ROWS_OF = """
def messages_of(topic):
    options = {**tubemq, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("tubemq").options(**options).load()


def rows_of(frame, name):
    query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(tuple(row) for row in spark.table(name).collect())
"""
ENDS_AT_BARE = """
try:
    rows_of(clicks_of_all, "bare")
except Exception as error:
    assert "a message begins with 08" in str(error), error
else:
    raise AssertionError("a message without a head is decoded")
"""

pytestmark = [pytest.mark.spark, pytest.mark.ecosystem, pytest.mark.timeout(600)]


def string(text):
    """Return a text as Avro writes it; short ones only."""
    return bytes([2 * len(text)]) + text.encode()


def number(value):
    """Return a number as Avro writes it: zigzag, seven bits per byte, the lowest first."""
    rest, written = 2 * value, bytearray()
    while rest > 127:
        written.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*written, rest])


def program(server, topics, folder):
    """Return the page's code, in its order, with what its rows must be."""
    first, several, writing = blocks("spark/avro.md")
    package = f'"spark.jars.packages", "{PACKAGES["avro"]}"'
    places = {
        package: '"spark.ui.enabled", "false"',
        "127.0.0.1:8715": server.master,
        'subscribe="clicks"': f'subscribe="{topics["newer"]}"',
    }
    parts = [
        moved(first, places),
        ROWS_OF,
        'assert rows_of(clicks, "newer") == [("cart", 300), ("home", 2)]',
        f'messages = messages_of("{topics["both"]}")',
        several,
        'assert rows_of(clicks_of_all, "both") == [("cart", 300), ("home", 0), ("home", 2)]',
        moved(writing, {"/data/longer": str(folder / "longer"), '"longer"': f'"{topics["longer"]}"'}),
        f'messages = messages_of("{topics["bare"]}")',
        several,
        ENDS_AT_BARE,
    ]
    return "\n".join(parts)


def test_the_code_of_the_page(server, tmp_path):
    home, cart = OF_7 + string("home") + number(2), OF_7 + string("cart") + number(300)
    topics = {name: server.fresh_topic() for name in (*TOPICS, "longer")}
    produce(server.master, topics["newer"], [Sample(home), Sample(cart)])
    produce(server.master, topics["both"], [Sample(home), Sample(OF_3 + string("home")), Sample(cart)])
    produce(server.master, topics["bare"], [Sample(string("home"))])
    job = tmp_path / "job.py"
    job.write_text(program(server, topics, tmp_path))
    jars = {"spark.jars": required(lambda: spark_jars("avro"))}
    variables = {**os.environ, **spark_variables(tmp_path, jars)}

    subprocess.run([sys.executable, str(job)], env=variables, check=True, timeout=500)

    with TubeMQClient(client_config(server.master)) as client:
        written = sorted(record.value for record in client.read(topics["longer"]))
    assert written == [OF_7 + string("cart") + number(301), OF_7 + string("home") + number(3)]
