"""Messages to send and find again: every size and kind of attribute, the same for the same seed."""

import dataclasses
import random
from collections.abc import Iterator

LARGEST = 1 << 20
"""What TubeMQ takes by default, of body and attributes together."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A message as a user sees it, before it is sent or after it was read."""

    body: bytes
    attributes: tuple[tuple[str, str], ...] = ()
    message_type: str | None = None
    message_time: str | None = None


def samples(count: int, seed: int) -> Iterator[Sample]:
    """Yield messages of 1 byte to 1 MiB: mostly small, every 1000th a body of the largest size.

    The first bytes of a body number it (as far as it is long enough), so all bodies are different
    and a lost or repeated one has a name.
    """
    chance = random.Random(seed)
    for number in range(count):
        size = _size(number, chance)
        head = b"%d:%d:" % (seed, number)
        body = (head + chance.randbytes(max(0, size - len(head))))[:size]
        yield Sample(body, _attributes(number, chance), *_type_and_time(number, chance))


def _is_largest(number: int) -> bool:
    return number % 1000 == 999


def _size(number: int, chance: random.Random) -> int:
    if _is_largest(number):
        return LARGEST
    if number < 64:
        return number + 1
    return int(2 ** (chance.random() ** 5 * 17)) + 12


def _attributes(number: int, chance: random.Random) -> tuple[tuple[str, str], ...]:
    if _is_largest(number) or number % 3 == 0:
        return ()
    pairs = {"n": str(number), "kind": chance.choice(["a", "b", "c"]), "täg": "wörd 中"}
    return tuple(pairs.items())


def _type_and_time(number: int, chance: random.Random) -> tuple[str | None, str | None]:
    if _is_largest(number) or number % 4 == 0:
        return None, None
    return f"type_{chance.randrange(5)}", f"20240229{chance.randrange(24):02d}{chance.randrange(60):02d}"
