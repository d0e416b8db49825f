"""All web calls of a broker."""

from collections.abc import Mapping

from tubemq_spark.embedded.admin.consumers import ConsumerCalls
from tubemq_spark.embedded.admin.history import HistoryCalls
from tubemq_spark.embedded.admin.messages import MessageCalls
from tubemq_spark.embedded.admin.offsets import OffsetCalls
from tubemq_spark.embedded.admin.parameters import Call
from tubemq_spark.embedded.admin.stores import StoreCalls
from tubemq_spark.embedded.broker.state import BrokerState


class BrokerCalls:
    """The calls of BrokerAdminServlet by name; none needs a token."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self.calls: Mapping[str, Call] = {
            **StoreCalls(state).calls,
            **OffsetCalls(state).calls,
            **HistoryCalls(state).calls,
            **ConsumerCalls(state).calls,
            **MessageCalls(state).calls,
        }
