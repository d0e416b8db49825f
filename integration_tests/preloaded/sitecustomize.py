"""Imports once, in Spark's daemons of Python workers, what each of their forks would import for itself."""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import pyspark.worker  # noqa: F401

    import tubemq_spark.sink.batch
    import tubemq_spark.sink.stream
    import tubemq_spark.source.batch
    import tubemq_spark.source.stream  # noqa: F401
