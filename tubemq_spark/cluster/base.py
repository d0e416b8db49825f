"""What the source and the sink need of TubeMQ: two protocols, in the connector's words and not in RPCs.

A ``Cluster`` keeps no state between calls, so a process in between can serve it as well as a direct
connection can, with the same results and the same errors. Everything that crosses this boundary is a value
of ``model``, ``receipts``, ``offsets`` or ``protocol`` and could travel over a network.

``tests/cluster/test_contract.py`` is what every implementation has to pass.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from tubemq_spark.errors import OptionError, RemoteProtocolError, TubeMQError
from tubemq_spark.model import (
    OffsetBounds,
    RangeRequest,
    StoreBounds,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.send_batch import OnRefused, SendBatch
from tubemq_spark.receipts import Receipt

NOT_OF_A_MASTER: Final = (OptionError, RemoteProtocolError)
"""Errors of ``Cluster.layout`` that say that what answers is not a master, or cannot be understood."""


class Sender(Protocol):
    """Sends messages to any number of topics, at least once; for use by one thread."""

    def send_batch(self, batch: SendBatch, on_refused: OnRefused | None = None) -> None:
        """Accept the messages of a batch, in order; wait while as many are in flight as the window holds.

        Args:
            batch: the messages.
            on_refused: takes the place in the batch of a message that cannot be sent, and why; the others are
                sent. It must not use this sender. None: the first refusal is raised, those before it are
                accepted.

        Raises:
            ProduceError: an earlier message could not be stored; or, without ``on_refused``, a message is too
                long, or its topic or partition does not exist.
            OptionError: without ``on_refused``, a value is empty or an attribute cannot be written.
            TubeMQError: a topic could not be published to in time, or no master answered. The error's ``row``
                is the place in the batch; the messages before it are accepted.
        """

    def flush(self) -> None:
        """Wait until every accepted message is stored.

        Raises:
            ProduceError: one could not be stored.
        """

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far, in the partitions' order."""


class Cluster(Protocol):
    """A TubeMQ cluster."""

    def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:
        """Ask the master where the topics' partitions are; it checks the group's rights on the way.

        Args:
            topics: the topics' names.
            missing_ok: answer for the topics that exist when others do not, instead of raising 431.

        Raises:
            RpcError: a topic does not exist (431), or the group may not read it (450, 455).
            TubeMQConnectionError: no master answered.
            OptionError: what answers is not a master.
            RemoteProtocolError: a master's answer contradicts itself.
        """

    def topics(self) -> Collection[str]:
        """Ask a master which topics there are, whether they can be read now or not.

        Raises:
            TubeMQConnectionError: no master's administration API answered.
            AdminError: a master refuses.
        """

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        flushed: bool = False,
        timeout_ms: int | None = None,
    ) -> StoreBounds:
        """Ask the brokers for the earliest and the latest offset of stores of a layout; by default of all.

        With ``flushed`` a store ends where its data is on the broker's disk, not where producers append.
        A broker that is away is part of the answer and not an error.
        """

    def first_readable(
        self, layout: TopicsLayout, begins: Mapping[TopicPartition, OffsetBounds], wait: Wait = SLEEP
    ) -> dict[TopicPartition, int]:
        """Ask the brokers where the first record is that can still be read, in index bytes.

        Args:
            layout: where the partitions are.
            begins: partitions that share their store with no other, with what its index holds.
            wait: how to wait, as far as this process does; what it raises ends the question.

        Raises:
            TubeMQError: a broker does not answer, or refuses.
        """

    def group_positions(self, layout: TopicsLayout) -> Mapping[TopicPartition, int]:
        """Ask the brokers where the user's group stands in each partition, in index bytes.

        A group without a position stands at the log's beginning.

        Raises:
            RpcError: a consumer of the group holds a partition (410), or a broker refuses.
            TubeMQConnectionError: a broker cannot be reached.
        """

    def stored_offsets(self, group: str | None = None, topics: Collection[str] = ()) -> StoredOffsets:
        """Ask the brokers where consumer groups stand, by their administration API; no consumer is disturbed.

        Args:
            group: the only group to ask for; by default all of them.
            topics: the only topics to ask for; by default all of them.

        Raises:
            TubeMQConnectionError: no master's administration API answered.
            AdminError: a master refuses.
        """

    def move_group(
        self, layout: TopicsLayout, positions: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, TubeMQError]:
        """Move the user's group, in index bytes; return why it was not moved in some partitions."""

    def read_range(
        self, request: RangeRequest, on_loss: LossPolicy, wait: Wait = SLEEP
    ) -> Generator[FetchedBatch, None, None]:
        """Yield exactly the records of a range, in offset order.

        A batch of no offsets may stand anywhere between others: nothing has come for a while. Closing the
        iterator gives back what it holds at a broker.

        Args:
            request: what to read, as a layout's ``request`` made it.
            on_loss: what to do about records that are gone or damaged; when it returns, reading continues
                after them.
            wait: how to wait when there is nothing to do. What it raises ends the reading.

        Raises:
            DataLossError: records are gone or damaged, by the policy.
            TubeMQError: a broker refuses for good, or made no progress for too long.
        """

    def refuse_unknown_topic(self, topic: str) -> None:
        """Raise ``ProduceError`` if a topic does not exist, as far as that can be known.

        Raises:
            ProduceError: the topic does not exist.
            TubeMQConnectionError: no master answered.
        """

    def await_publishable(self, topic: str) -> None:
        """Wait until a topic can be published to.

        Raises:
            ProduceError: the topic does not exist, or could not be published to in time.
            TubeMQConnectionError: no master answered.
        """

    def sender(self, name: str = "") -> AbstractContextManager[Sender]:
        """Return a sender that has sent nothing; errors and the log call it by that name.

        It belongs to the ``with`` block, whose end flushes it; when the block fails, it is closed at once.
        """
