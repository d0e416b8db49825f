"""Letting what a test runs be a task of a micro-batch, as far as it can see."""

import pytest
from pyspark import TaskContext


def enter_micro_batch(monkeypatch: pytest.MonkeyPatch, batch_id: int, query_id: str, task: int = 0) -> None:
    """Make what follows in this test run in a task of a micro-batch."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext()  # there is only one, which it makes known itself
    context._partitionId = task
    context._localProperties = {"sql.streaming.queryId": query_id, "streaming.sql.batchId": str(batch_id)}
