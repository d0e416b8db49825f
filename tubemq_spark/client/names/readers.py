"""The names under which reads hold partitions, and what becomes of a consumer group that has such a name."""

import functools
import logging
import re
from collections.abc import Collection
from typing import Final

from tubemq_spark.errors import OptionError
from tubemq_spark.offsets.notation import listed

logger = logging.getLogger(__name__)

DEFAULT_READER_GROUPS: Final = 16
_READER_NAME: Final = re.compile(r"(.+)_(?:r[0-9]{2,}|probe)")


def default_reader_groups(group: str, size: int = DEFAULT_READER_GROUPS) -> tuple[str, ...]:
    """Return the names ``<group>_r00``, ``<group>_r01`` and so on.

    They are few and fixed because a broker keeps an offset entry for every name for 20 days.
    """
    return tuple(f"{group}_r{number:02d}" for number in range(size))


def probe_group(group: str) -> str:
    """Return the name for questions that end at once."""
    return f"{group}_probe"


def group_of_reader(name: str) -> str | None:
    """Return the group whose reads use a name; None if it is not such a name."""
    match = _READER_NAME.fullmatch(name)
    return None if match is None else match[1]


def check_consumer_group(group: str, reader_groups: Collection[str]) -> None:
    """Check the name of a group whose position counts; reads would move that if they had the name too.

    A group that is named as reads of others are is good, and warned of once in the process: it may be older
    than this package, and need not meet such a read.

    Args:
        group: the group.
        reader_groups: those of the same client or query.

    Raises:
        OptionError: it is one of them.
    """
    if group in reader_groups:
        raise OptionError("TUBEMQ_GROUP_OF_READERS", group=group, groups=listed(sorted(reader_groups)))
    _warn_of_reader_name(group)


@functools.lru_cache(maxsize=1024)
def _warn_of_reader_name(group: str) -> None:
    reader = group_of_reader(group)
    if reader is not None:
        logger.warning(
            "the consumer group '%s' is named like a reader group of '%s': queries and clients of the group "
            "'%s' take partitions from it and move its position; choose another name, unless there are none",
            group,
            reader,
            reader,
        )
