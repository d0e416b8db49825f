"""The name Spark looks for: it imports every top-level ``pyspark_*`` and registers its ``DefaultSource``.

So ``format("tubemq")`` works after ``pip install`` with no register call. Spark imports this for every
session that uses any Python data source: keep it light.
"""

from tubemq_spark.datasource import TubeMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
