"""How a producer chooses partitions: in a way of its own, or as the user's own object says."""

import enum
from collections.abc import Sequence
from typing import Protocol

from tubemq_spark.errors import OptionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.settings.fields import bad_setting


class BuiltInPartitioner(enum.Enum):
    """How messages without key and partition are spread; the value is what users write.

    In both ways a message with a key goes to the partition of its key.

        client.producer(partitioner=BuiltInPartitioner.STICKY)
    """

    ROUND_ROBIN = "roundRobin"
    """The partitions take turns, of up to 32 messages."""
    STICKY = "sticky"
    """All go to one partition, until its broker fails or falls behind; then to the next."""


class CustomPartitioner(Protocol):
    """Chooses the partition of each message that does not name one.

    A producer calls it in the thread that sends, once for each message that it accepts, and again when a
    message has to be sent again, since its partition may not take messages any more. The threads that share
    a threaded producer may call it at the same time, and so may the producer's own. It must not use the
    producer. What it raises for a new message is raised by ``send``, and the message is not accepted; what it
    raises for an accepted message ends the producer.

        class First:
            def choose(self, topic, key, value, partitions, available):
                return available[0]

        client.producer(partitioner=First()).send("clicks", b"home")
    """

    def choose(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        partitions: Sequence[TopicPartition],
        available: Sequence[TopicPartition],
    ) -> TopicPartition:
        """Return one of ``partitions``.

        Args:
            topic: the message's topic.
            key: the message's key, if it has one.
            value: the message's body.
            partitions: those to which the topic can be published now, as the master says: at least one,
                sorted, the same object until they change.
            available: those of them whose brokers are not failing and not behind; at least one. To send
                equal keys to equal partitions, choose among ``partitions``.
        """


def by_name(name: str) -> BuiltInPartitioner:
    """Return one of our own.

    Raises:
        OptionError: none has this name.
    """
    try:
        return BuiltInPartitioner(name)
    except ValueError:
        raise bad_partitioner(name) from None


def bad_partitioner(value: object) -> OptionError:
    """Return the error about something that cannot choose partitions."""
    names = ", ".join(repr(partitioner.value) for partitioner in BuiltInPartitioner)
    rule = f"{names} or an object with a method choose"
    return bad_setting("partitioner", repr(value), rule)
