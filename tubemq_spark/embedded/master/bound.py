"""Groups that start at offsets they name: bound consumption (PBParameterUtils, ConsumeGroupInfo).

The master only ensures that a member gets the partitions that it named. The member itself tells the offsets
to the broker, when it first registers there.
"""

from collections.abc import Mapping, Set as AbstractSet

from tubemq_spark.embedded.dispatch import RefusedError, trimmed
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

Starts = Mapping[TopicPartition, int]


def parse_starts(text: str, topics: AbstractSet[str]) -> dict[TopicPartition, int]:
    """Parse ``brokerId:topic:partitionId=offset,...``; blank means none.

    Another form, or a topic that is not subscribed, is refused (400).
    """
    text = trimmed("requiredPartition", text)
    return dict(_start(item, topics) for item in text.split(",")) if text else {}


def winners(starts: Mapping[str, Starts], *, select_big: bool) -> dict[TopicPartition, str]:
    """Return which member gets which of the named partitions.

    If several named one, the biggest offset wins, and the last of equal ones; or the smallest offset, and the
    first of equal ones. ``starts`` has the members in the order in which they joined.
    """
    best: dict[TopicPartition, tuple[int, str]] = {}
    for member, named in starts.items():
        for partition, offset in named.items():
            winner = best.get(partition)
            if winner is None or (offset >= winner[0] if select_big else offset < winner[0]):
                best[partition] = (offset, member)
    return {partition: member for partition, (_, member) in best.items()}


def check_start(session_key: str, source_count: int) -> None:
    """Check what a member of a bound group says about its start."""
    if not session_key:
        raise _refused("blank value of sessionKey!")
    if source_count <= 0:
        raise _refused("totalSourceCount must over zero!")


def _start(item: str, topics: AbstractSet[str]) -> tuple[TopicPartition, int]:
    key, equals, value = item.partition("=")
    parts = [trimmed("requiredPartition", part) for part in key.split(":")]
    if not equals or len(parts) != 3:
        what = f"unformatted Partition-Offset value : {item} must be aa:bbb:ccc=val1,ddd:eee:ff=val2"
        raise _refused(what)
    broker_id, topic, partition_id = parts
    if topic not in topics:
        what = f"wrong offset reset for unsubscribed topic: reset item is {item}"
        raise _refused(f"{what}, request topicList are [{', '.join(sorted(topics))}]")
    try:
        return TopicPartition(topic, int(broker_id), int(partition_id)), int(value)
    except ValueError:
        raise _refused(f"required long type value of {item}' Offset!") from None


def _refused(what: str) -> RefusedError:
    return RefusedError(ErrCode.BAD_REQUEST, f"[Parameter error] {what}")
