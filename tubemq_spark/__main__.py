"""``python -m tubemq_spark`` is ``tubemq-spark``."""

import sys

from tubemq_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
