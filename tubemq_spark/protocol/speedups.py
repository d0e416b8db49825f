"""Which twin of the hot loops runs: the compiled one where it was built, otherwise the Python one.

``TUBEMQ_SPARK_PURE=1`` chooses the Python one. Both have the same results and errors.
"""

import os
from typing import Final

PURE_VARIABLE: Final = "TUBEMQ_SPARK_PURE"

try:
    from tubemq_spark.protocol import _speedups as _built
except ImportError:
    compiled = None
else:
    compiled = None if os.environ.get(PURE_VARIABLE) == "1" else _built
