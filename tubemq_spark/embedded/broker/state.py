"""What the handlers of a broker share, and whether it reads and writes.

Too many I/O errors stop one or the other (ServiceStatusHolder). A service that errors have stopped is retried
after a pause: the next request is let through, and if it succeeds, so are all others. TubeMQ leaves that to
the operator; here a disk that was full for a moment must not end a test.
"""

import dataclasses
import errno
import logging
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.authentication import Authentication, VisitTokens
from tubemq_spark.embedded.broker.groups import GrantedLease, GroupPartition, LeaseTable, OffsetTable
from tubemq_spark.embedded.broker.stores import StoreSet
from tubemq_spark.embedded.config.catalog import SYSTEM_USER, Catalog, TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.dispatch import MAX_TOPIC_CHARACTERS, RefusedError, required
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.embedded.scheduler import monotonic_ms
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import common_pb2

logger = logging.getLogger(__name__)

RETRY_MS: Final = 5_000
"""How long a stopped service pauses before it is retried."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DISK_ERRORS: Final = frozenset({errno.ESHUTDOWN, errno.EMFILE, errno.ENFILE})
"""The topic was removed, or this process or the machine has too many open files."""


def told(error: Exception) -> str:
    """Return the text of an error, with what to do about too many open files."""
    too_many = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return f"{error}; let it open more files (ulimit -n)" if too_many else str(error)


class Service:
    """Reading or writing."""

    def __init__(
        self, allowed_errors: int, name: str = "service", now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        """Run until there is one more error than allowed since the start or the last successful retry.

        ``name`` is the name in the log.
        """
        self._allowed_errors = allowed_errors
        self._name = name
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._errors = 0
        self._retry_at_ms: int | None = None
        """None while the service runs."""
        self.trouble = ""
        """The last error of the disk, for those who are refused because of it."""

    def admits(self) -> bool:
        """Tell whether a request is let through: all while the service runs, one after each pause."""
        if self._retry_at_ms is None:
            return True
        now_ms = self._now_ms()
        with self._lock:
            if self._retry_at_ms is not None:
                if now_ms < self._retry_at_ms:
                    return False
                self._retry_at_ms = now_ms + RETRY_MS
            return True

    def count_success(self) -> None:
        """Count a read or write that succeeded: a stopped service runs again."""
        if self._retry_at_ms is None:
            return
        with self._lock:
            resumes = self._retry_at_ms is not None
            if resumes:
                self._errors = 0
                self._retry_at_ms = None
        if resumes:
            logger.warning("%s works again", self._name)

    def count_error(self, error: Exception) -> None:
        """Count a read or write that failed; one disk error too many stops the service.

        TubeMQ has a time window for this in its configuration but does not use it, and there is none here.
        """
        if not isinstance(error, OSError) or error.errno in _NO_DISK_ERRORS:
            return
        with self._lock:
            self._errors += 1
            self.trouble = str(error)
            first = self._errors == 1
            stops = self._errors > self._allowed_errors
            runs = self._retry_at_ms is None
            if stops:
                self._retry_at_ms = self._now_ms() + RETRY_MS
        if first or (stops and runs):
            self._tell(error, stops=stops)

    def _tell(self, error: OSError, *, stops: bool) -> None:
        cure = "free some space" if error.errno in _FULL else "check the disk"
        state = "requests are refused (503)" if stops else "the request was refused"
        logger.error("%s failed: %s; %s; %s; it is retried automatically", self._name, error, state, cure)


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
    topics_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

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
        with self.topics_lock:
            self.catalog.add(topic, spec, by, date)
            self.stores.configure(topic, spec)
            self._finish_removals()

    def finish_removals(self) -> None:
        """Delete the topics with the status REMOVED; what cannot be deleted is left for the next time."""
        with self.topics_lock:
            self._finish_removals()

    def _finish_removals(self) -> None:
        # Under the lock: a topic that is created again in the meantime must not lose its new data.
        for topic, spec in self.catalog.all().items():
            if spec.status is TopicStatus.REMOVED and self.stores.remove(topic):
                self.leases.forget_topic(topic)
                self.offsets.forget_topic(topic)
                self.catalog.remove(topic)
                logger.info("topic %s and its data were removed", topic)

    def store(self, partition: GroupPartition, failure: str) -> Store:
        """Return the store of a partition that exists.

        If it cannot be opened, that is refused (500) with a text that begins with ``failure``.
        """
        try:
            return self.stores.open(partition.topic, partition.partition_id // PARTITIONS_PER_STORE)
        except (OSError, KeyError, TubeMQError) as error:
            logger.exception("the store of %s:%d cannot be opened", partition.topic, partition.partition_id)
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
