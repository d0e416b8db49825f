"""What the handlers of a master share."""

import dataclasses
import threading
from typing import Final

from tubemq_spark.embedded.authentication import Authentication
from tubemq_spark.embedded.clock import wall_ms
from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.dispatch import StandbyError
from tubemq_spark.embedded.master.brokers import Brokers
from tubemq_spark.embedded.master.members import Members
from tubemq_spark.embedded.tokens import VisitTokens
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.pb import common_pb2

MAX_HOST_CHARACTERS: Final = 256


@dataclasses.dataclass(slots=True)
class MasterState:
    """The cluster as its master knows it; ``lock`` guards ``members`` and all groups in it."""

    brokers: Brokers
    controls: Controls
    tokens: VisitTokens
    members: Members
    authentication: Authentication
    address: Endpoint
    """Where clients reach the master; the master sets the port when it has opened it."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    standby: threading.Event = dataclasses.field(default_factory=threading.Event)
    """While this is set, another master leads, and clients are sent to it."""

    _layout_id: int = 0

    def check_leads(self, client_id: str) -> None:
        """Send a client to another master if this one does not lead (TMaster.checkNodeStatus)."""
        if self.standby.is_set():
            raise StandbyError(f"{self.address} is not master now. the connecting client id is {client_id}")

    def brokers_for(self, known_id: int) -> list[str]:
        """Return the list of brokers for a client; empty if it already has it."""
        return [] if known_id == self.brokers.list_id else self.brokers.infos()

    def next_layout_id(self) -> int:
        """Return an id for a new layout of a group; hold ``lock``."""
        self._layout_id = max(self._layout_id + 1, wall_ms())
        return self._layout_id

    def authorized(self, proof: str) -> common_pb2.MasterAuthorizedInfo:
        """Return what clients show to brokers: the visit token, and their proof of identity, if any."""
        info = common_pb2.MasterAuthorizedInfo(visitAuthorizedToken=self.tokens.current)
        if proof:
            info.authAuthorizedToken = proof
        return info
