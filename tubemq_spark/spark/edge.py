"""What Spark prints when something expected goes wrong: our sentence, not our frames.

Spark shows the traceback of its Python process twice, in the message of its own error and as frames of it,
and the user looks for one line in it. An error of our tree says by itself what happened and what to do; how
it came through our functions is logged at DEBUG. Bugs of ours keep their traceback.
"""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, ParamSpec, TypeVar, cast

from tubemq_spark.errors import LocalProtocolError, TubeMQError
from tubemq_spark.spark.processes import is_process_of_spark

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
