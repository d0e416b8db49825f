"""What users ask about topics and groups without being a member of a group, each rule once, as coroutines.

They ask as a *visitor*, under one of the reader groups. A question under the group itself would make this
process a member of it for a moment: the master would share out the partitions of its consumers again, or
would refuse the question because they read other topics.
"""

import datetime
from collections.abc import Collection

from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.reader.time_offsets import milliseconds, offsets_of_time
from tubemq_spark.client.subscription import require_topic_names
from tubemq_spark.errors import OptionError
from tubemq_spark.model import OffsetBounds, TopicPartition, TopicsLayout, rows_between


class TopicQuestions:
    """Questions about a cluster."""

    def __init__(self, visitor: Questions) -> None:
        """Ask no server."""
        self._visitor = visitor

    async def topics(self) -> tuple[str, ...]:
        """Return the names of all topics, sorted.

        Raises:
            TubeMQConnectionError: no master's administration API answered.
            AdminError: a master refuses.
        """
        return tuple(sorted(await self._visitor.topics()))

    async def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return all partitions of a topic, in their order.

        Raises:
            OptionError: no topic could have the name.
            RpcError: the topic does not exist (431), or the reader groups may not read it (450, 455).
            TubeMQConnectionError: no master answered.
        """
        return tuple((await self._layout(topic)).partitions)

    async def offsets(self, topic: str) -> dict[TopicPartition, OffsetBounds]:
        """Return where each partition of a topic begins and ends.

        Raises:
            TubeMQError: as ``partitions``; or a broker is away.
        """
        layout = await self._layout(topic)
        bounds = (await self._visitor.bounds(layout)).complete()
        return {partition: bounds[partition.store_id] for partition in layout.partitions}

    async def offsets_at(self, topic: str, time: datetime.datetime | int) -> dict[TopicPartition, int]:
        """Return where the messages of a time or later begin in each partition; its end if there are none.

        Raises:
            OptionError: the time is none, or the messages of a partition carry none.
            TubeMQError: as ``offsets``.
        """
        ms = milliseconds(time)
        return await offsets_of_time(self._visitor, await self._layout(topic), ms)

    async def lag(self, group: str, topics: Collection[str]) -> dict[TopicPartition, int | None]:
        """Return how many messages follow a group's position; None: a broker does not tell.

        Args:
            group: the group.
            topics: the only topics to look at; empty: all that the group has read.

        Raises:
            OptionError: no broker has a position of the group there.
            TubeMQError: no master answers, or refuses.
        """
        require_topic_names(topics)
        stored = await self._visitor.stored_offsets(group, topics)
        if not stored.offsets:
            for error in stored.failures.values():
                raise error
            raise OptionError("TUBEMQ_GROUP_UNKNOWN", group=group)
        positions = {offset.partition: offset.committed for offset in stored.offsets}
        read = {partition.topic for partition in positions}
        layout = await self._visitor.layout(sorted(topics or read), missing_ok=True)
        places = [
            place for place in layout.partitions if place in positions or place.broker_id in stored.failures
        ]
        bounds = (await self._visitor.bounds(layout, {place.store_id for place in places})).by_store
        return {place: _unread(positions.get(place), bounds.get(place.store_id)) for place in places}

    async def _layout(self, topic: str) -> TopicsLayout:
        require_topic_names((topic,))
        return await self._visitor.layout((topic,))


def _unread(position: int | None, bounds: OffsetBounds | None) -> int | None:
    """Return how many messages that are still there follow a position."""
    if position is None or bounds is None:
        return None
    return rows_between(max(position, bounds.earliest), bounds.latest)
