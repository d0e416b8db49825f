"""What the handlers of a broker share: its open stores, and whether it reads and writes.

A store is in a directory ``<topic>-<store>``. It has two files open or more, and a process may have few:
macOS allows 256, Linux mostly 1024. So about an eighth of them are for the stores of a broker. When a store
needs its files beyond that, those that were not used for the longest time close theirs.

Too many I/O errors stop reads or writes (ServiceStatusHolder). A service that errors have stopped is retried
after a pause: the next request is let through, and if it succeeds, so are all others. TubeMQ leaves that to
the operator; here a disk that was full for a moment must not end a test.
"""

import contextlib
import dataclasses
import errno
import logging
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tubemq_spark.embedded.authentication import Authentication, VisitTokens
from tubemq_spark.embedded.broker.groups import GrantedLease, LeaseTable, OffsetKey, OffsetTable
from tubemq_spark.embedded.config.catalog import SYSTEM_TOPICS, SYSTEM_USER, Catalog, TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.dispatch import MAX_TOPIC_CHARACTERS, RefusedError, required
from tubemq_spark.embedded.log.records import Traffic
from tubemq_spark.embedded.log.store import Store, StoreSettings
from tubemq_spark.embedded.scheduler import FailureLog, monotonic_ms, wall_ms
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import common_pb2

StoreKey = tuple[str, int]
"""A topic and the number of one of its stores."""

_REMOVED: Final = ".removed-"
"""Begins the name of a directory that is to be deleted; no topic begins so."""
_MOST_FILES: Final = 1024
"""However many a process may have."""


class StoreSet:
    """Stores by topic and number; looking up an open one takes no lock."""

    def __init__(
        self,
        directory: Path,
        catalog: Catalog,
        settings: EmbeddedSettings,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Open the stores on disk that belong to known topics, and delete those of removed ones."""
        self._directory = directory
        self._catalog = catalog
        self._settings = settings
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._stores: dict[StoreKey, Store] = {}
        self._awake: set[Store] = set()
        """Those that have files open; each enters and leaves it itself."""
        self._removed = Traffic()
        self._failures = FailureLog()
        self._delete_removed()
        try:
            for topic, spec in catalog.with_system_topics().items():
                for number in range(spec.stores):
                    if spec.status is not TopicStatus.REMOVED and self._path((topic, number)).is_dir():
                        self.open(topic, number)
        except BaseException:
            self.close()
            raise

    def open(self, topic: str, number: int) -> Store:
        """Return a store of a topic in the catalog; the first use opens it.

        A KeyError says that the topic is gone.
        """
        key = (topic, number)
        store = self._stores.get(key)
        if store is not None and not store.resting:
            return store
        with self._lock:
            self._make_room()
            if key not in self._stores:
                spec = self._catalog.get(topic)
                if spec is None or spec.status is TopicStatus.REMOVED:
                    raise KeyError(topic)
                self._stores[key] = Store(
                    self._path(key), self._settings_of(spec), self._now_ms, awake=self._awake
                )
            return self._stores[key]

    def _make_room(self) -> None:
        """Close half of the files when there are too many, those first that were not used for longest."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _MOST_FILES if limit == resource.RLIM_INFINITY else min(limit // 8, _MOST_FILES)
        awake = self._awake.copy()
        count = sum(store.open_files for store in awake)
        if count < most:
            return
        for store in sorted(awake, key=lambda store: store.used_at_ms):
            if count <= most // 2:
                break
            count -= store.open_files
            with self._failures.logged(f"Flushing store {store.name}"):
                store.rest()

    def find(self, topic: str, number: int) -> Store | None:
        """Return a store if it is open."""
        return self._stores.get((topic, number))

    def all(self) -> dict[StoreKey, Store]:
        """Return the stores that are open."""
        with self._lock:
            return dict(sorted(self._stores.items()))

    def configure(self, topic: str, spec: TopicSpec) -> None:
        """Apply a topic's new rules to its open stores."""
        for (name, _), store in self.all().items():
            if name == topic:
                store.configure(self._settings_of(spec))

    def remove(self, topic: str) -> bool:
        """Close and delete the stores of a topic with the status REMOVED: ``open`` refuses them.

        Their directories get another name first, in one step. Those that cannot be deleted, because a file is
        in use, are tried again with every ``expire`` and at the next start. Return whether the topic has no
        directories any more; why not is logged.
        """
        with self._lock:
            for key in [key for key in self._stores if key[0] == topic]:
                store = self._stores.pop(key)
                self._removed.add(store.traffic)
                with self._logged("Flushing at the end", key):
                    store.close()
            with self._failures.logged(f"Removing topic {topic}"):
                for path in self._directory.glob(f"{topic}-*"):
                    path.rename(path.with_name(f"{_REMOVED}{path.name}-{time.time_ns()}"))
            self._delete_removed()
            return not any(self._directory.glob(f"{topic}-*"))

    def _delete_removed(self) -> None:
        for path in self._directory.glob(f"{_REMOVED}*"):
            with self._failures.logged(f"Deleting {path}"):
                shutil.rmtree(path)

    def flush_due(self) -> None:
        """Flush the stores that are due; a store where this fails does not affect others."""
        for key, store in self.all().items():
            with self._logged("Flushing", key):
                store.flush_if_due()

    def expire(self) -> None:
        """Delete what is older than its topic allows; a store where this fails does not affect others."""
        with self._lock:
            self._delete_removed()
        for key, store in self.all().items():
            if (spec := self._catalog.get(key[0])) is not None:
                with self._lock:
                    self._make_room()
                with self._logged("Deleting old data of", key):
                    store.expire(spec.retention_ms)

    def traffic(self) -> Traffic:
        """Return the traffic since the start, of all stores but those of system topics."""
        total = Traffic()
        with self._lock:
            total.add(self._removed)
            for (topic, _), store in self._stores.items():
                if topic not in SYSTEM_TOPICS:
                    total.add(store.traffic)
        return total

    def lose_unflushed(self) -> None:
        """Cut off the messages that are not on the disk, as a power failure does."""
        for store in self.all().values():
            store.lose_from(store.bounds.flushed)

    def close(self) -> None:
        """Flush and close all stores; if one cannot be flushed, that is logged and the others are closed."""
        with self._lock:
            for key, store in self._stores.items():
                with self._logged("Flushing at the end", key):
                    store.close()
            self._stores.clear()

    def _logged(self, what: str, key: StoreKey) -> contextlib.AbstractContextManager[None]:
        """Do something with a store; an error of its disk is logged once and suppressed."""
        return self._failures.logged(f"{what} store {key[0]}-{key[1]}")

    def _path(self, key: StoreKey) -> Path:
        return self._directory / f"{key[0]}-{key[1]}"

    def _settings_of(self, spec: TopicSpec) -> StoreSettings:
        return StoreSettings(
            data_segment_bytes=self._settings.data_segment_bytes,
            index_segment_bytes=self._settings.index_segment_bytes,
            flush_messages=spec.flush_messages,
            flush_interval_ms=spec.flush_interval_ms,
            flush_bytes=spec.flush_bytes,
            max_unflushed_bytes=self._settings.max_unflushed_bytes,
        )


logger = logging.getLogger(__name__)

RETRY_MS: Final = 5_000
"""How long a stopped service pauses before it is retried."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DISK_ERRORS: Final = frozenset({errno.ESHUTDOWN, errno.EMFILE, errno.ENFILE})
"""The topic was removed, or this process or the machine has too many open files."""


def error_text(error: Exception) -> str:
    """Return the text of an error, with what to do about too many open files."""
    too_many = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return f"{error}; let it open more files (ulimit -n)" if too_many else str(error)


class Service:
    """Reading or writing at one broker, which stops after too many errors of the disk and is tried again."""

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

    def admit(self) -> bool:
        """Admit a request, if it may pass: all do while the service runs, one after each pause."""
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
            cure = "free some space" if error.errno in _FULL else "check the disk"
            state = "requests are refused (503)" if stops else "the request was refused"
            what = "%s failed: %s; %s; %s; it is retried automatically"
            logger.error(what, self._name, error, state, cure)


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

    def store(self, partition: OffsetKey, failure: str) -> Store:
        """Return the store of a partition that exists.

        If it cannot be opened, that is refused (500) with a text that begins with ``failure``.
        """
        try:
            return self.stores.open(partition.topic, partition.partition_id // PARTITIONS_PER_STORE)
        except (OSError, KeyError, TubeMQError) as error:
            logger.exception("the store of %s:%d cannot be opened", partition.topic, partition.partition_id)
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, f"{failure}{error_text(error)}") from error

    def _check(self, name: str, service: Service) -> None:
        if not service.admit():
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
