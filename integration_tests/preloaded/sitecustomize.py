"""Imports once, in Spark's daemons of Python workers, what each of their forks would import for itself."""

import sys
import warnings

if "pyspark.daemon" in sys.orig_argv:
    # Spark puts its own archives first. When all that a fork needs of an archive is loaded before it, Python
    # 3.13 cannot list its modules (pkgutil.iter_modules raises KeyError once caches are invalidated), so
    # Spark finds no data source. The installed package holds the same modules.
    sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]

    # Arrow and NumPy start threads of their own, which no fork needs.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

    import pyspark.worker  # noqa: F401

    import tubemq_spark.sink.batch
    import tubemq_spark.sink.stream
    import tubemq_spark.source.batch
    import tubemq_spark.source.stream  # noqa: F401
