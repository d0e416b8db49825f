"""Connect Apache InLong TubeMQ to Apache Spark.

``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` take ``format("tubemq")``
as soon as the package is installed; see ``tubemq_spark.options`` for the options. Importing this
package loads neither Spark nor Arrow.
"""

from tubemq_spark import logs

__version__ = "0.1.0"

logs.install()
