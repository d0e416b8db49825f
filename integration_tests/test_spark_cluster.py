"""A stream on a stand-alone cluster of two workers: speculation, failing tasks, a worker that is killed.

That the package gets there by pip or by ``--py-files`` is shown by ``make wheel-test``.
"""

import re
import sys
from pathlib import Path

import psutil
import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.jobs import end_of_log, rows_written, running_job
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.wheel.environment import Environment
from integration_tests.wheel.servers import spark_cluster

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "stream_with_troubles.py"
PATIENCE_SECONDS = 300
ROWS = 30_000


@pytest.fixture
def cluster(tmp_path):
    with spark_cluster(Environment(Path(sys.prefix)), tmp_path, workers=2) as running:
        yield running


@pytest.fixture
def run_job(server, cluster, tmp_path):
    """Start a job on the cluster that reads a topic of three partitions in ten micro-batches."""
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(ROWS))
    options = server.options(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(ROWS // 10)
    )

    def start(settings, **troubles):
        usual = {
            "spark.master": cluster.url,
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.task.maxFailures": "4",
        }
        return running_job(tmp_path, options, settings=usual | settings, program=PROGRAM, **troubles)

    return start


def attempts(folder, batch, task):
    """Return the process of each attempt of a task, by the attempt's number."""
    found = (folder / "attempts").glob(f"{batch}-{task}-[0-9]")
    return {int(path.name[-1]): int(path.read_text()) for path in found}


def assert_all_rows(job, folder):
    assert job.wait(timeout=PATIENCE_SECONDS) == 0, end_of_log(folder)
    assert_same_rows(rows_written(folder), range(ROWS))


def test_tasks_that_run_twice_and_tasks_that_fail(run_job, tmp_path):
    """A speculative task reads what the slow one reads; of another task the fourth attempt succeeds."""
    settings = {
        "spark.executorEnv.TUBEMQ_SPARK_LOG_LEVEL": "INFO",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
    }
    with run_job(settings, slow=2, failing=4) as job:
        assert_all_rows(job, tmp_path)

    slow = attempts(tmp_path, batch=2, task=0)
    assert slow.keys() == {0, 1}
    assert slow[0] != slow[1]
    assert attempts(tmp_path, batch=4, task=0).keys() >= {0, 1, 2, 3}
    # Each attempt that came to its end says what it read.
    logs = "".join(log.read_text() for log in (tmp_path / "work").rglob("stderr"))
    told = re.findall(r" INFO tubemq_spark\.source\.task: .*: (\d+) rows, ", logs)
    assert sum(map(int, told)) >= ROWS


def test_a_worker_is_killed_under_load(run_job, cluster, tmp_path):
    """With its executor and Python processes, in the middle of a task, which the other worker repeats."""
    with run_job({}, slow=3) as job:
        wait_until(
            lambda: job.poll() is not None or bool(attempts(tmp_path, batch=3, task=0)),
            timeout_s=PATIENCE_SECONDS,
            what="a task under way",
        )
        assert job.poll() is None, end_of_log(tmp_path)
        reader = psutil.Process(attempts(tmp_path, batch=3, task=0)[0])
        worker = next(
            one for one in cluster.workers if one.pid in {parent.pid for parent in reader.parents()}
        )
        for process in [*psutil.Process(worker.pid).children(recursive=True), worker]:
            process.kill()
        assert_all_rows(job, tmp_path)

    assert attempts(tmp_path, batch=3, task=0).keys() >= {0, 1}
    assert "Lost executor" in (tmp_path / "job.log").read_text()
