"""Shortens the start of Spark's Python processes: less is imported, and from files with bytecode."""

import sys
import warnings

_DAEMON = "pyspark.daemon"
_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"

if {_DAEMON, _RUNNER}.intersection(sys.orig_argv):
    # Spark puts its own archives first, which have no bytecode; the installed package holds the same modules.
    # Besides, when all that a fork needs of an archive is loaded before it, Python 3.13 cannot list its
    # modules (pkgutil.iter_modules raises KeyError once caches are invalidated), and then Spark finds no data
    # source.
    sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]

if _DAEMON in sys.orig_argv:
    # Arrow and NumPy start threads of their own, which no fork needs.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

    # Once for all forks of the daemon.
    import pyspark.worker  # noqa: F401

    import tubemq_spark.sink.writers
    import tubemq_spark.source.readers  # noqa: F401
