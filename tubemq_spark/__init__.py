"""Connect Apache InLong TubeMQ to Apache Spark.

``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` take ``format("tubemq")``
as soon as the package is installed; see ``tubemq_spark.options`` for the options. Without Spark, begin with
``TubeMQClient`` or ``AsyncTubeMQClient``.

Importing this package loads neither Spark nor Arrow, and no client before one is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Final

from tubemq_spark import logs

if TYPE_CHECKING:
    from tubemq_spark.client import TubeMQClient
    from tubemq_spark.client.aio import AsyncTubeMQClient

__all__ = ["AsyncTubeMQClient", "TubeMQClient"]
__version__ = "0.1.0"

_MODULES: Final = {
    "AsyncTubeMQClient": "tubemq_spark.client.aio",
    "TubeMQClient": "tubemq_spark.client",
}

logs.install()


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
