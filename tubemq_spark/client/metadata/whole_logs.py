"""Logs from which retention took no data: where their index begins, they can be read.

To read the first records of a log brings some 300 KB, and no setting of a fetch makes that less. Of many logs
the administration API of their brokers is asked first: it tells where the data of each begins, which is at 0
until the first of its files is removed. Nothing depends on an answer, so nothing waits long for one.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, OffsetBounds, TopicPartition
from tubemq_spark.net.side_by_side import all_of

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_TIMEOUT_S: Final = 1.0
_REST_S: Final = 600.0

_resting: Final[dict[Endpoint, float]] = {}
"""Until when servers are not asked, because they did not answer: a firewall would hold up every plan."""


def whole_logs(
    web_servers: Sequence[Endpoint], begins: Mapping[TopicPartition, OffsetBounds]
) -> set[TopicPartition]:
    """Return the partitions whose logs are known to be whole.

    Args:
        web_servers: where the masters serve their administration API.
        begins: partitions that share their store with no other, with what its index holds.
    """
    addresses = _addresses(web_servers)
    topics: dict[int, set[str]] = {}
    for partition in begins:
        if partition.broker_id in addresses:
            topics.setdefault(partition.broker_id, set()).add(partition.topic)

    def ask(broker_id: int) -> Mapping[tuple[str, int], OffsetBounds]:
        server, names = addresses[broker_id], sorted(topics[broker_id])
        return (
            _answer(server, lambda: BrokerAdmin(str(server), timeout_s=_TIMEOUT_S).whole_stores(names)) or {}
        )

    whole = all_of(ask, topics)

    def is_whole(partition: TopicPartition, span: OffsetBounds) -> bool:
        bounds = whole.get(partition.broker_id, {}).get((partition.topic, partition.partition_id))
        # Of the same log, and not of another one that goes by its name.
        return bounds is not None and bounds.earliest == span.earliest and bounds.latest >= span.latest

    return {partition for partition, span in begins.items() if is_whole(partition, span)}


def _addresses(web_servers: Sequence[Endpoint]) -> Mapping[int, Endpoint]:
    """Return where brokers serve their administration API, by broker id; nothing if no master answers."""
    for server in web_servers:
        admin = MasterAdmin(str(server), timeout_s=_TIMEOUT_S)
        if (brokers := _answer(server, admin.broker_web_servers)) is not None:
            return brokers
    return {}


def _answer(server: Endpoint, ask: Callable[[], Answer]) -> Answer | None:
    """Return what a server answers; None if it does not, or did not a while ago."""
    now = time.monotonic()
    if now < _resting.get(server, now):
        return None
    try:
        return ask()
    except (TubeMQError, LookupError, TypeError) as error:
        # Anything may listen at the usual ports, and answer what it likes.
        logger.info("%s does not tell which logs are whole; their first records are read: %r", server, error)
        _resting[server] = now + _REST_S
        return None
