"""Spark's events, made from JSON as Spark Connect makes them."""

import json
import uuid

from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryTerminatedEvent

ROW = 28


def offset(**topics):
    """Return a source's offset as Spark shows it; each topic has one partition, read up to that row."""
    return json.dumps({"v": 1, "topics": {topic: {"1:0": ROW * row} for topic, row in topics.items()}})


def source(end, latest):
    return {
        "description": "some source",
        "startOffset": "null",
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    }


def progress(run, *sources, second=0, name=None):
    """Return the progress of a query's run at a second after noon."""
    return QueryProgressEvent.fromJson(
        {
            "progress": {
                "id": str(run),
                "runId": str(run),
                "name": name,
                "timestamp": f"2026-03-01T12:{second // 60:02d}:{second % 60:02d}.000Z",
                "batchId": 1,
                "batchDuration": 1,
                "stateOperators": [],
                "sources": list(sources),
                "sink": {"description": "sink", "numOutputRows": 1},
            }
        }
    )


def termination(run):
    return QueryTerminatedEvent.fromJson(
        {"id": str(run), "runId": str(run), "exception": None, "errorClassOnException": None}
    )


def idle(run, *, second):
    """Return what Spark tells of a query's run that has found nothing new."""
    return QueryIdleEvent.fromJson(
        {"id": str(run), "runId": str(run), "timestamp": f"2026-03-01T12:00:{second:02d}.000Z"}
    )


def run_id(number):
    return uuid.UUID(int=number)
