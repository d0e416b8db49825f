"""What Spark prints when something expected goes wrong: our sentence without a traceback.

Spark shows the traceback of its Python process twice, in the message of its own error and as frames of it,
and the user looks for one line in it. An error of our tree says by itself what happened and what to do; how
it came through our functions is logged at DEBUG. Bugs of ours keep their traceback.

Also here: which PySpark this package needs, which processes Spark has started, what a task knows of itself.
Each of Spark's Python processes imports this module, which imports nothing of Spark.
"""

import functools
import gc
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from tubemq_spark.errors import LocalProtocolError, TubeMQError

if TYPE_CHECKING:
    from tubemq_spark.model import MicroBatch

logger = logging.getLogger(__name__)


AnyClass = TypeVar("AnyClass", bound=type)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_CONSTRUCTOR: Final = "__init__"
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Set by Spark in its Python processes for ``spark.sql.execution.pyspark.udf.hideTraceback.enabled``."""


def at_sparks_edge(cls: AnyClass) -> AnyClass:
    """Decorate a class that Spark calls: all it defines for Spark raises our errors without a traceback."""
    for name, method in vars(cls).copy().items():
        if inspect.isfunction(method) and (name == _CONSTRUCTOR or not name.startswith("_")):
            setattr(cls, name, _without_frames(method))
    return cls


def _without_frames(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    @functools.wraps(method)
    def called_by_spark(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            result = method(*args, **kwargs)
        except TubeMQError as error:
            raise _bare(error) from None
        return cast("Result", _rows_without_frames(result)) if isinstance(result, Iterator) else result

    return called_by_spark


def _rows_without_frames(rows: Iterator[Any]) -> Iterator[Any]:
    """Pass rows on; what ends them by an error is raised while Spark takes them."""
    try:
        yield from rows
    except TubeMQError as error:
        raise _bare(error) from None


def _bare(error: TubeMQError) -> TubeMQError:
    if isinstance(error, LocalProtocolError):
        return error
    logger.debug("an error goes to Spark", exc_info=error)
    if is_process_of_spark():
        # For this error only: such a process ends with the first one.
        os.environ[_HIDE_TRACEBACK] = "1"
    error.__cause__ = None
    return error.with_traceback(None)


def is_process_of_spark() -> bool:
    """Return whether Spark has started this process, rather than the user."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def spare_collector_of_imports() -> None:
    """Make the garbage collector pass over what a process of Spark's has imported so far.

    Our imports make enough objects for one pass through all that is there: 28 ms of CPU in each process that
    Spark starts for a query.
    """
    if is_process_of_spark():
        gc.freeze()


REUSED_VARIABLE: Final = "SPARK_REUSE_WORKER"
"""PySpark sets it in worker processes that serve more than one task (``spark.python.worker.reuse``)."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@functools.cache
def spare_collector() -> None:
    """Make the garbage collector pass over what is there when the first task begins.

    PySpark collects all garbage after each task of a reused worker (pyspark/daemon.py). Most of what it walks
    through are the modules that its and our imports have made: about 25 ms of CPU per task, and next to
    nothing with this. What is garbage by now stays until the process ends, but that is little: PySpark has
    just collected what earlier tasks have left.
    """
    if os.environ.get(REUSED_VARIABLE):
        gc.freeze()


def micro_batch_of_task() -> "MicroBatch | None":
    """Return the micro-batch that this task is a part of, also by ``foreachBatch``; None if it is of none.

    To be asked in the task's own thread.
    """
    from pyspark import TaskContext

    from tubemq_spark.model import MicroBatch

    context = TaskContext.get()
    query_id = context.getLocalProperty(_QUERY_ID) if context else None
    batch_id = context.getLocalProperty(_BATCH_ID) if context else None
    return MicroBatch(query_id, int(batch_id)) if query_id and batch_id and batch_id.isdigit() else None


OLDEST: Final = "4.2"
"""The first release whose Python data sources have what ours needs (read limits, Arrow writers)."""


def too_old(version: str) -> bool:
    """Return whether a release of PySpark precedes the oldest that works."""
    return _numbers(version) < _numbers(OLDEST)


def check_spark_version(version: str) -> None:
    """Refuse a PySpark that would fail later, in the middle of a task."""
    if too_old(version):
        raise TubeMQError("TUBEMQ_SPARK_TOO_OLD", found=version, oldest=OLDEST)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
