"""The topics of the comparison, and the clients and groups of each sequence."""

from typing import Final

from integration_tests.differential.calls import RUN

Place = tuple[str, int]
"""A topic and a partition's number."""

DENSE: Final = "dense"
SHARED: Final = "shared"
UNTOUCHED: Final = "untouched"
LONGEST: Final = "longest"
TOPICS: Final = {DENSE: (1, 1), SHARED: (2, 3), UNTOUCHED: (1, 1), LONGEST: (1, 1)}
"""Stores, and partitions a store: dense offsets, partitions that share a log, one that stays empty, and one
for messages that the Java broker takes and does not give back."""
HISTORY_TOPIC: Final = "__offset_history__"

FILED_DENSE: Final = "filed_dense"
FILED_SHARED: Final = "filed_shared"
FILED_TOPICS: Final = {FILED_DENSE: (1, 1), FILED_SHARED: (2, 3)}
"""The same shapes, for messages that are in the files before anybody reads them."""

PARTITIONS: Final = (
    (DENSE, 0),
    *((SHARED, 10_000 * store + index) for store in (0, 1) for index in (0, 1, 2)),
)
WRONG_PLACES: Final = (
    (DENSE, 1),
    (DENSE, -1),
    (DENSE, 10_000),
    (SHARED, 3),
    (SHARED, 20_000),
    (SHARED, -10_000),
    ("nowhere", 0),
    (HISTORY_TOPIC, 0),
)

MAX_MESSAGE_BYTES: Final = (1 << 20) + 10_240
"""What both brokers take of a topic without a size of its own."""

CLIENTS: Final = tuple(f"client_{RUN}_{name}" for name in "ab")
GROUPS: Final = tuple(f"group_{RUN}_{name}" for name in "xy")
