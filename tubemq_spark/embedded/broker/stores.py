"""The open stores of a broker, each in a directory ``<topic>-<store>``.

A store has two files open or more, and a process may have few: macOS allows 256, Linux mostly 1024. So about
an eighth of them are for the stores of a broker. When a store needs its files beyond that, those that were
not used for the longest time close theirs.
"""

import contextlib
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tubemq_spark.embedded.config.catalog import SYSTEM_TOPICS, Catalog, TopicSpec, TopicStatus
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.log.records import Traffic
from tubemq_spark.embedded.log.store import Store, StoreSettings
from tubemq_spark.embedded.scheduler import FailureLog, wall_ms

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
        """Cut off what is not on the disk yet, as a power failure does."""
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
