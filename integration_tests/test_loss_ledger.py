"""What ``failOnDataLoss=false`` passes over is in the ledger once, whatever is repeated."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.rig.messages import produce_numbers
from integration_tests.rig.queries import Collected, losses, numbers, read, read_stream, refusal, run

PROGRAM = Path(__file__).parent / "programs" / "stream_over_losses.py"
JOB_SECONDS = 240

on_embedded = pytest.mark.parametrize("server", ["embedded"], indirect=True)


def planned_only(*_):
    """Fail, as the sink of a query that ends when the offsets of its first micro-batch are written down."""
    raise RuntimeError("this sink fails on purpose")


@pytest.mark.nightly
@on_embedded
def test_a_gap_is_written_once_though_tasks_fail_and_the_query_is_killed(spark, server, tmp_path):
    """By attempts of a task, by the process that is killed, and by the one that repeats the micro-batch."""
    topic, ledger, checkpoint = server.fresh_topic(), tmp_path / "losses", tmp_path / "checkpoint"
    produce_numbers(server.master, topic, range(20))
    with pytest.raises(Exception, match="fails on purpose"):
        run(read_stream(spark, server, topic), planned_only, checkpoint)
    server.expire(topic)
    produce_numbers(server.master, topic, range(20, 30))

    job = subprocess.run(
        [sys.executable, str(PROGRAM), server.master, topic, str(ledger), str(checkpoint)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert job.returncode == -signal.SIGKILL, job.stdout.decode()[-3000:]
    gap = (f"{topic}/1:0", 0, 560, 20, "EXPIRED", 0)
    assert losses(spark, ledger) == [gap]

    sink = Collected()
    options = {"failOnDataLoss": "false", "lossLedger": str(ledger)}
    query = run(read_stream(spark, server, topic, **options), sink, checkpoint)
    assert sink.batches == [(0, []), (1, list(range(20, 30)))]
    assert losses(spark, ledger) == [gap]
    assert len(list(ledger.iterdir())) == 1
    view = spark.read.format("tubemq").option("view", "losses").option("lossLedger", ledger.as_uri()).load()
    (row,) = view.where(
        "consumerGroup = 'it_group' and time > current_timestamp() - interval 1 hour"
    ).collect()
    assert row.queryId == query.id


@on_embedded
@pytest.mark.smoke
def test_a_batch_read_lists_what_its_offsets_pass_over(spark, server, tmp_path):
    topic, ledger = server.fresh_topic(), tmp_path / "losses"
    produce_numbers(server.master, topic, range(20))
    server.expire(topic)
    produce_numbers(server.master, topic, range(20, 30))
    options = {
        "startingOffsets": json.dumps({topic: {"1:0": 28}}),
        "failOnDataLoss": "false",
        "lossLedger": ledger.as_uri(),
    }

    frame = read(spark, server, topic, **options)
    for _ in range(2):
        assert numbers(frame) == list(range(20, 30))
    assert losses(spark, ledger) == [(f"{topic}/1:0", 28, 560, 19, "EXPIRED", None)]


@on_embedded
def test_a_query_without_a_usable_ledger_ends_with_one_sentence(spark, server, tmp_path):
    topic, ledger = server.fresh_topic(), tmp_path / "losses"
    ledger.write_text("not a folder")
    options = {"failOnDataLoss": "false", "lossLedger": str(ledger)}

    for action in (
        lambda: read(spark, server, topic, **options).count(),
        lambda: run(read_stream(spark, server, topic, **options), Collected(), tmp_path / "checkpoint"),
    ):
        condition, sentence = refusal(action)
        assert condition == "TUBEMQ_FOLDER_UNUSABLE"
        assert "'lossLedger' cannot be written to" in sentence
