"""What the handlers of a master share."""

import dataclasses
import threading
from typing import Final

from tubemq_spark.embedded.catalog import Catalog
from tubemq_spark.embedded.members import Members
from tubemq_spark.embedded.tokens import VisitTokens
from tubemq_spark.protocol.pb import common_pb2

MAX_HOST_CHARACTERS: Final = 256
MAX_TOPICS: Final = 1024
"""A client may name so many topics (META_MAX_BOOKED_TOPIC_COUNT)."""


@dataclasses.dataclass(frozen=True, slots=True)
class MasterState:
    """The cluster as its master knows it; ``lock`` guards the members."""

    catalog: Catalog
    tokens: VisitTokens
    members: Members
    broker_info: str
    """``brokerId:host:port`` of the one broker."""
    broker_config_id: int
    """Stands for the list of brokers: clients that know another number get the list."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def brokers_for(self, known_id: int) -> list[str]:
        """Return the list of brokers for a client, empty when it has it already."""
        return [] if known_id == self.broker_config_id else [self.broker_info]

    def authorized(self) -> common_pb2.MasterAuthorizedInfo:
        """Return the visit token that clients show to brokers."""
        return common_pb2.MasterAuthorizedInfo(visitAuthorizedToken=self.tokens.current)
