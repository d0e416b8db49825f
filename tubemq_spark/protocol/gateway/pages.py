"""Long lists in parts, so that no answer is longer than what clients of gRPC take."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.message import Message

from tubemq_spark.protocol.gateway.limits import PAGE_BYTES

Item = TypeVar("Item", bound=str | Message)


def page(
    names: Iterable[str], item: Callable[[str], Item], size: int, token: str, most: int
) -> tuple[list[Item], str]:
    """Return a part of a list in the order of names, and the token of the next part; blank: there is none.

    A token is the name behind which a part begins. A part has ``PAGE_BYTES`` at most, unless one item alone
    has more, and ``size`` items, or ``most`` if that is 0 or larger.
    """
    left = sorted(name for name in names if name > token)
    items: list[Item] = []
    room = PAGE_BYTES
    for name in left[: min(size or most, most)]:
        next_item = item(name)
        room -= len(next_item.encode()) if isinstance(next_item, str) else next_item.ByteSize()
        if room < 0 and items:
            break
        items.append(next_item)
    return items, left[len(items) - 1] if len(left) > len(items) else ""
