"""What the handlers of a broker share."""

import dataclasses
import logging
import threading

from tubemq_spark.embedded.authentication import Authentication
from tubemq_spark.embedded.broker.leases import GrantedLease, LeaseTable
from tubemq_spark.embedded.broker.offsets import OffsetTable, Seat
from tubemq_spark.embedded.broker.services import Service, told
from tubemq_spark.embedded.broker.stores import StoreSet
from tubemq_spark.embedded.config.catalog import Catalog, TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.config.stamps import SYSTEM_USER
from tubemq_spark.embedded.dispatch import MAX_TOPIC_CHARACTERS, RefusedError, required
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.embedded.tokens import VisitTokens
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import common_pb2

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker's topics, logs and consumers; each part does its own locking."""

    broker_id: int
    settings: EmbeddedSettings
    host: str
    """How the broker names itself in its answers."""
    catalog: Catalog
    stores: StoreSet
    offsets: OffsetTable
    leases: LeaseTable
    tokens: VisitTokens
    controls: Controls
    authentication: Authentication
    reads: Service
    writes: Service
    stopping: threading.Event = dataclasses.field(default_factory=threading.Event)
    changing_topics: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def check_running(self, service: str) -> None:
        """Refuse (503) while the broker stops."""
        if self.stopping.is_set():
            raise RefusedError(ErrCode.SERVICE_UNAVAILABLE, f"{service} temporary unavailable!")

    def check_reads(self) -> None:
        """Refuse (503) while the broker stops, or while its reads are stopped."""
        self._check("Read StoreService", self.reads)

    def check_writes(self) -> None:
        """Refuse (503) while the broker stops, or while its writes are stopped."""
        self._check("Write StoreService", self.writes)

    def check_token(self, info: common_pb2.AuthorizedInfo, *, producer: bool) -> None:
        """Refuse (415) a client that has not been at the master recently, or does not prove who it is.

        Each check applies only if the settings ask for it. A request without a visit token counts as one with
        token 0 (SimpleCertificateBrokerHandler).
        """
        if self.settings.check_visit_tokens and not self.tokens.accepts(info.visitAuthorizedToken):
            raise RefusedError(ErrCode.CERTIFICATE_FAILURE, "Visit Authorized Token is invalid!")
        self.authentication.at_broker(info, producer=producer)

    def query_priority(self, lease: GrantedLease) -> int:
        """Return a consumer's query priority: its own if it states one, else the cluster's."""
        return lease.query_priority if lease.query_priority > 0 else self.controls.cluster.query_priority

    def topic(self, name: str) -> tuple[str, TopicSpec]:
        """Return a topic by the name in a request (PBParameterUtils.getTopicNameParameter).

        A name that is blank or too long is refused with 400, an unknown topic with 403.
        """
        topic = required("topicName", name, MAX_TOPIC_CHARACTERS)
        spec = self.catalog.get(topic)
        if spec is None:
            raise RefusedError(
                ErrCode.FORBIDDEN, f"topicName {topic} not existed, please check your configure"
            )
        return topic, spec

    def open_partition(self, name: str, partition_id: int) -> tuple[str, TopicSpec]:
        """Return the topic of a partition that exists and is not closed.

        Otherwise it is refused (403).
        """
        topic, spec = self.topic(name)
        if spec.status is not TopicStatus.NORMAL:
            raise RefusedError(ErrCode.FORBIDDEN, f"topicName {topic} has been closed")
        if not has_partition(spec, partition_id):
            what = f"partitionId {topic}-{partition_id}"
            raise RefusedError(ErrCode.FORBIDDEN, f"{what} not existed, please check your configure")
        return topic, spec

    def set_topic(self, topic: str, spec: TopicSpec, by: str = SYSTEM_USER, date: str | None = None) -> None:
        """Add a topic or change one; a topic with the status REMOVED is deleted with all that belongs to it.

        ``by`` is the user who does it, ``date`` the time as ``yyyyMMddHHmmss`` (None: now).
        """
        with self.changing_topics:
            self.catalog.add(topic, spec, by, date)
            self.stores.configure(topic, spec)
            self._finish_removals()

    def finish_removals(self) -> None:
        """Delete the topics with the status REMOVED; what cannot be deleted is left for the next time."""
        with self.changing_topics:
            self._finish_removals()

    def _finish_removals(self) -> None:
        # Under the lock: a topic that is created again in the meantime must not lose its new data.
        for topic, spec in self.catalog.all().items():
            if spec.status is TopicStatus.REMOVED and self.stores.remove(topic):
                self.leases.forget_topic(topic)
                self.offsets.forget_topic(topic)
                self.catalog.remove(topic)
                logger.info("topic %s and its data were removed", topic)

    def store(self, seat: Seat, failure: str) -> Store:
        """Return the store of a partition that exists.

        If it cannot be opened, that is refused (500) with a text that begins with ``failure``.
        """
        try:
            return self.stores.open(seat.topic, seat.partition_id // PARTITIONS_PER_STORE)
        except (OSError, KeyError, TubeMQError) as error:
            logger.exception("the store of %s:%d cannot be opened", seat.topic, seat.partition_id)
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, f"{failure}{told(error)}") from error

    def _check(self, name: str, service: Service) -> None:
        if not service.admits():
            text = f"{name} temporary unavailable! {service.trouble}"
            raise RefusedError(ErrCode.SERVICE_UNAVAILABLE, text)
        self.check_running(name)


def has_partition(spec: TopicSpec, partition_id: int) -> bool:
    """Whether a topic has a partition with this id.

    TubeMQ's brokers check only the number within the store, and create a store of any number; here the store
    must exist as well.
    """
    store, index = divmod(partition_id, PARTITIONS_PER_STORE)
    return 0 <= store < spec.stores and index < spec.partitions
