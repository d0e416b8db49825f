"""What the handlers of a master share."""

import dataclasses
import threading
from typing import Final

from tubemq_spark.embedded.authentication import Authentication
from tubemq_spark.embedded.config.broker_config import BrokerConfig
from tubemq_spark.embedded.config.catalog import Catalog
from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.dispatch import StandbyError
from tubemq_spark.embedded.master.members import Members
from tubemq_spark.embedded.tokens import VisitTokens
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.infostrings import parse_broker_info
from tubemq_spark.protocol.pb import common_pb2

MAX_HOST_CHARACTERS: Final = 256
BROKERS: Final = 1
"""How many brokers there are."""
MAX_TOPICS: Final = 1024
"""A client may name so many topics (META_MAX_BOOKED_TOPIC_COUNT)."""


@dataclasses.dataclass(slots=True)
class MasterState:
    """The cluster as its master knows it; ``lock`` guards the members."""

    catalog: Catalog
    controls: Controls
    broker_config: BrokerConfig
    tokens: VisitTokens
    members: Members
    authentication: Authentication
    broker_info: str
    """``brokerId:host:port`` of the one broker."""
    broker_config_id: int
    """Stands for the list of brokers: clients that know another number get the list."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    standby: threading.Event = dataclasses.field(default_factory=threading.Event)
    """While set, another master leads: clients are sent on to it."""

    address: Endpoint | None = None
    """Where the master listens; set as soon as it does."""

    @property
    def broker(self) -> Endpoint:
        """Where the one broker listens."""
        return parse_broker_info(self.broker_info).endpoint

    def check_leads(self, client_id: str) -> None:
        """Send a client on to another master, where this one does not lead (TMaster.checkNodeStatus).

        Raises:
            StandbyError: it does not.
        """
        if self.standby.is_set():
            raise StandbyError(f"{self.address} is not master now. the connecting client id is {client_id}")

    def brokers_for(self, known_id: int) -> list[str]:
        """Return the list of brokers for a client, empty when it has it already."""
        return [] if known_id == self.broker_config_id else [self.broker_info]

    def authorized(self, proof: str) -> common_pb2.MasterAuthorizedInfo:
        """Return what clients show to brokers: the visit token, and the proof of who they are, if any."""
        info = common_pb2.MasterAuthorizedInfo(visitAuthorizedToken=self.tokens.current)
        if proof:
            info.authAuthorizedToken = proof
        return info
