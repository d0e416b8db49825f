"""The gateways that everything in this process shares which has the same settings."""

import atexit
import os
import threading
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.model import Endpoint

_of_settings: Final[dict[tuple[tuple[Endpoint, ...], ClientConfig, str | None], Gateways]] = {}
_making = threading.Lock()


def process_gateways(
    addresses: tuple[Endpoint, ...], config: ClientConfig, token: str | None = None
) -> Gateways:
    """Return the gateways of these settings that everything in this process shares."""
    with _making:
        gateways = _of_settings.get((addresses, config, token))
        if gateways is None:
            gateways = _of_settings[addresses, config, token] = Gateways(addresses, config, token)
        return gateways


def close_process_gateways() -> None:
    """Close the sessions and connections of the whole process; later calls make new ones."""
    with _making:
        gateways = list(_of_settings.values())
        _of_settings.clear()
    for group in gateways:
        group.close()


def _after_fork_in_child() -> None:
    global _making
    _making = threading.Lock()


atexit.register(close_process_gateways)
os.register_at_fork(after_in_child=_after_fork_in_child)
