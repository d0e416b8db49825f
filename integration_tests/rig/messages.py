"""Messages to send and find again: every size and kind of attribute, the same for the same seed.

They are sent by our own producer, where a test is not about producing, and compared so that a difference is
small enough to read.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import Endpoint

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


def client_config(master: str, group: str = "it_group") -> ClientConfig:
    """Return a client's settings for a server of the tests."""
    return ClientConfig((Endpoint.parse(master),), group)


def cluster_of(config: ClientConfig) -> Cluster:
    """Return the cluster that these settings name, as the source and the sink see it."""
    return open_cluster(ClusterConfig(config))


def produce(master: str, topic: str, samples: Iterable[Sample]) -> None:
    """Send messages and wait until all are stored."""
    with TubeMQClient(client_config(master)) as client, client.producer() as producer:
        for sample in samples:
            producer.send(
                topic,
                sample.body,
                attributes=dict(sample.attributes) or None,
                message_type=sample.message_type,
                message_time=sample.message_time,
            )


def produce_numbers(master: str, topic: str, numbers: Iterable[int], *, width: int = 1) -> None:
    """Send numbers as text, with blanks in front up to a width: ``int`` reads them all the same."""
    produce(master, topic, (Sample(b"%*d" % (width, number)) for number in numbers))


def assert_same_rows(actual: Iterable[Hashable], expected: Iterable[Hashable]) -> None:
    """Fail with the first few rows that are lost, repeated or strange."""
    actual_counts, expected_counts = Counter(actual), Counter(expected)
    lost = expected_counts - actual_counts
    surplus = actual_counts - expected_counts
    assert not lost, f"{lost.total()} rows lost, such as {_few(lost)}; {surplus.total()} too many"
    assert not surplus, f"{surplus.total()} rows too many, such as {_few(surplus)}"


def _few(rows: Counter[Hashable]) -> str:
    return "; ".join(repr(row)[:200] for row in list(rows)[:3])
