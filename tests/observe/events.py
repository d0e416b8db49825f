"""Spark's events, made from JSON as Spark Connect makes them."""

import json
import uuid

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

ROW = 28


def offset(*, partition="1:0", brokers=None, begins=None, **topics):
    """Return a source's offset as Spark shows it; each topic has one partition, read up to that row."""
    data = {"v": 1, "topics": {topic: {partition: ROW * row} for topic, row in topics.items()}}
    if begins is not None:
        data["from"] = {topic: {partition: ROW * row} for topic, row in begins.items()}
    if brokers is not None:
        data["brokers"] = brokers
    return json.dumps(data)


def source(end, latest, *, start="null", rows=1):
    return {
        "description": "some source",
        "startOffset": start,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": rows,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    }


def progress(run, *sources, second=0, name=None, took_ms=1, observed=None):
    """Return the progress of a query's run at a second after noon."""
    return QueryProgressEvent.fromJson(
        {
            "progress": {
                "id": str(run),
                "runId": str(run),
                "name": name,
                "timestamp": f"2026-03-01T12:{second // 60:02d}:{second % 60:02d}.000Z",
                "batchId": 1,
                "batchDuration": took_ms,
                "stateOperators": [],
                "sources": list(sources),
                "sink": {"description": "sink", "numOutputRows": 1},
                "observedMetrics": observed or {},
            }
        }
    )


def start(run, name=None):
    return QueryStartedEvent.fromJson(
        {
            "id": str(run),
            "runId": str(run),
            "name": name,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "jobTags": [],
        }
    )


def termination(run, exception=None):
    return QueryTerminatedEvent.fromJson(
        {"id": str(run), "runId": str(run), "exception": exception, "errorClassOnException": None}
    )


def idle(run, *, second):
    """Return what Spark tells of a query's run that has found nothing new."""
    return QueryIdleEvent.fromJson(
        {"id": str(run), "runId": str(run), "timestamp": f"2026-03-01T12:00:{second:02d}.000Z"}
    )


def run_id(number):
    return uuid.UUID(int=number)
