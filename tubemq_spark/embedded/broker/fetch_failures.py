"""The answers to fetches that return no messages (BrokerServiceServer, MsgMemStore, MsgFileStore)."""

from typing import Final

from tubemq_spark.embedded.broker.visibility import View
from tubemq_spark.embedded.log.bounds import LogBounds
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import broker_pb2 as pb

NOTHING: Final = -1
"""The offset and the lag in answers that have none."""


def fetch_failure(code: int, text: str, min_limit_time: int = 0) -> pb.GetMessageResponseB2C:
    """Return an answer without messages; ``min_limit_time`` is in ms, and has a meaning with 452 only."""
    return pb.GetMessageResponseB2C(
        success=False,
        errCode=code,
        errMsg=text,
        currOffset=NOTHING,
        minLimitTime=min_limit_time,
        escFlowCtrl=False,
        currDataDlt=NOTHING,
    )


def nothing_at(start: int, bounds: LogBounds, view: View) -> pb.GetMessageResponseB2C:
    """Say why there is nothing to read at an offset: it has expired (301) or does not exist yet (404)."""
    if start < bounds.earliest:
        text = "current offset is exceed min offset!"
        return fetch_failure(ErrCode.MOVED, text, _java_int(bounds.data_latest))
    text = (
        "current offset is exceed max file offset"
        if view.files_only
        else "Request offset reached cache maxOffset"
    )
    return not_found(text, bounds.data_latest)


def not_found(text: str, wait: int) -> pb.GetMessageResponseB2C:
    """Return a 404; ``wait`` is what Java leaves in a field that clients must ignore."""
    return fetch_failure(ErrCode.NOT_FOUND, text, _java_int(wait))


def _java_int(value: int) -> int:
    """Return the result of a Java cast from long to int."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
