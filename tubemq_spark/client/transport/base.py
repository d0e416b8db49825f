"""What the clients, the cluster of source and sink, and the gateway need of TubeMQ.

Making a ``Transport`` reaches no server. ``direct`` talks to masters and brokers; ``gateway`` talks to
gateways, and they to TubeMQ. Both give the same results and the same errors:
``tests/client/transport/test_contract.py`` is what each has to pass.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.model import Endpoint
from tubemq_spark.net.connections import Connections

if TYPE_CHECKING:
    from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
    from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
    from tubemq_spark.client.producer.pipeline import Pipeline, RunUserCode


class Transport(Questions, Protocol):
    """A TubeMQ cluster, for the coroutines of one event loop; what it makes belongs to that loop, too.

    What makes something raises an ``OptionError`` if a setting makes no sense on this transport.
    """

    def pipeline(
        self, config: ClientConfig, name: str = "", *, per_message: bool, run_user_code: "RunUserCode"
    ) -> "Pipeline":
        """Return the pipeline of a new producer; may be called in any thread.

        ``per_message``: the outcome of each message is told, and not only failures. ``run_user_code``
        calls the user's partitioner when a message is sent again.
        """

    def group_consumer(self, setup: "ConsumerSetup") -> "ConsumerCore":
        """Return a new member of a group, see ``GroupCore``; may be called in any thread."""

    def assigned_consumer(self, setup: "ConsumerSetup") -> "AssignedCoreBase":
        """Return a new consumer of named partitions, see ``AssignedCore``; may be called in any thread."""

    def with_config(self, config: ClientConfig, web: Sequence[Endpoint] = ()) -> Self:
        """Return a transport with other settings that uses the connections of this one, and ends with it.

        ``web`` is where masters serve their administration API, by default where this one thinks that
        they do.
        """

    def with_connections(self, connections: Connections) -> Self:
        """Return a transport for the coroutines of another loop, to which these connections belong."""

    def close(self) -> None:
        """Refuse what comes, and close what belongs to this transport alone; needs no event loop."""
