"""Python processes that Spark has started, unlike those of its users."""

import gc
import sys


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
