"""What a reader is told before it finds out by wrong results."""

import logging
from collections.abc import Iterable

from tubemq_spark.model import TopicsLayout

logger = logging.getLogger(__name__)


class NullOffsetWarning:
    """Says, once per topic, that ``offset`` is null where the partitions of a topic share stores.

    A row's place in a shared store is not told by the protocol, so a join or ``distinct`` on
    ``(partition, offset)`` would drop rows without a word. Where only some message types are read it is null
    everywhere, which the option says.
    """

    def __init__(self, columns: Iterable[str], *, filtered: bool = False) -> None:
        """Check frames with these columns; no topic is named if ``messageTypes`` are chosen."""
        self._wanted = "offset" in set(columns) and not filtered
        self._told: set[str] = set()

    def check(self, layout: TopicsLayout) -> None:
        """Check a layout; called for every new one."""
        if not self._wanted:
            return
        shared = {store.topic for store in layout.stores.keys() - layout.alone_in_store.keys()}
        for topic in sorted(shared - self._told):
            logger.warning(
                "column 'offset' is null in rows of topic %s: several of its partitions share a store. "
                "Do not join or deduplicate on it; leave it out of the schema to silence this",
                topic,
            )
        self._told |= shared
