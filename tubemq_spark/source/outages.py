"""Brokers that do not answer: when they are asked again, and what the user sees.

A broker *answers* (no entry here), or it is *away* (an entry) as long as one of its stores has no answer. The
user is told twice per outage: when it begins, and when it ends, with how long it took and how many rows
waited.

A broker of which no store had an answer is asked again after a pause that doubles, and with a short time-out:
it answers within milliseconds when it is back, and a broker that is frozen must not hold up the others.
"""

import collections
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tubemq_spark.errors import RemoteProtocolError, RpcError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import OffsetBounds, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net.retry import BROKER_OUTAGE
from tubemq_spark.offsets.units import rows_between
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

RETRY_TIMEOUT_MS: Final = 1_000
"""The time-out of a broker that did not answer last time."""

_NOT_READY: Final = frozenset({ErrCode.FORBIDDEN, ErrCode.INTERNAL_SERVER_ERROR})
"""What a broker answers that does not have a topic or a store yet, or no longer: the layout says which."""


class _Outage:
    """One broker that is away."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.stores: Collection[StoreId] = ()
        """The stores that had no answer when the broker was last asked."""
        self.failures = 0
        self.ask_at = since

    def postpone(self, now: float) -> None:
        self.failures += 1
        self.ask_at = now + BROKER_OUTAGE.after_ms(self.failures) / 1000


class Outages:
    """The outages of one query's brokers, by broker id."""

    def __init__(self) -> None:
        self._away: dict[int, _Outage] = {}

    def stores_to_ask(
        self, layout: TopicsLayout, now: float
    ) -> tuple[Collection[StoreId], Collection[StoreId]]:
        """Return the stores of brokers that answered last time, and of those of the others that are due."""
        if not self._away:
            return layout.stores.keys(), ()
        due = {broker_id for broker_id, outage in self._away.items() if now >= outage.ask_at}
        return (
            [store for store in layout.stores if store.broker_id not in self._away],
            [store for store in layout.stores if store.broker_id in due],
        )

    def update(
        self, answer: StoreBounds, layout: TopicsLayout, positions: Mapping[TopicPartition, int], now: float
    ) -> None:
        """Take over what brokers have answered; tell the user what has changed.

        Args:
            answer: the answer.
            layout: where the stores are.
            positions: the stream's next offsets, to count the rows that waited.
            now: the time in seconds, of any clock that never goes back.
        """
        if self._away:
            self._forget_unlisted(layout)
        failures: dict[int, list[StoreId]] = collections.defaultdict(list)
        for store in answer.failures:
            failures[store.broker_id].append(store)
        answered: dict[int, list[StoreId]] = collections.defaultdict(list)
        for store in answer.by_store:
            answered[store.broker_id].append(store)
        for broker_id, stores in failures.items():
            self._begin_outage(broker_id, stores, answer.failures[stores[0]], layout, now)
            self._away[broker_id].stores = stores
            if broker_id not in answered:
                self._away[broker_id].postpone(now)
        for broker_id in self._away.keys() & answered.keys() - failures.keys():
            self._end_outage(broker_id, answered[broker_id], answer.by_store, positions, now)

    def _forget_unlisted(self, layout: TopicsLayout) -> None:
        """Forget brokers whose stores without an answer no longer exist, as after a topic was removed.

        These stores are not asked for again, and the user need not be told that the broker's others answer.
        """
        self._away = {
            broker_id: outage
            for broker_id, outage in self._away.items()
            if not layout.stores.keys().isdisjoint(outage.stores)
        }

    def _begin_outage(
        self,
        broker_id: int,
        stores: Collection[StoreId],
        error: TubeMQError,
        layout: TopicsLayout,
        now: float,
    ) -> None:
        if broker_id in self._away:
            return
        self._away[broker_id] = _Outage(now)
        logger.warning(
            "broker %d (%s) does not answer for %d of its stores; they wait, other stores continue: %s",
            broker_id,
            layout.stores[next(iter(stores))],
            len(stores),
            error,
        )

    def _end_outage(
        self,
        broker_id: int,
        stores: Collection[StoreId],
        bounds: Mapping[StoreId, OffsetBounds],
        positions: Mapping[TopicPartition, int],
        now: float,
    ) -> None:
        outage = self._away.pop(broker_id)
        reached: dict[StoreId, int] = {}
        for partition, offset in positions.items():
            if partition.broker_id == broker_id:
                store = partition.store_id
                reached[store] = min(offset, reached.get(store, offset))
        waiting = sum(
            rows_between(reached[store], bounds[store].latest) for store in stores if store in reached
        )
        logger.warning(
            "broker %d answers again after %.0f s; %d rows waited",
            broker_id,
            now - outage.since,
            waiting,
        )


def may_be_gone(error: TubeMQError) -> bool:
    """Tell whether a broker's answer may mean that a topic or a store does not exist there (yet)."""
    return isinstance(error, RpcError) and error.code in _NOT_READY


def brokers_away(
    unanswered: Sequence[StoreId], failures: Mapping[StoreId, TubeMQError], stores: int, waited_ms: int
) -> TubeMQConnectionError:
    """Return the error about stores whose brokers did not say within ``waited_ms`` where they end."""
    cause = failures.get(unanswered[0])
    away = TubeMQConnectionError(
        "TUBEMQ_BROKERS_AWAY",
        count=len(unanswered),
        stores=stores,
        store=unanswered[0],
        waited_ms=waited_ms,
        cause=cause or "its broker has not been asked yet",
    )
    # Asking again does not help when a broker refuses permanently.
    away.retriable = all(
        error.retriable or may_be_gone(error) or isinstance(error, RemoteProtocolError)
        for error in failures.values()
    )
    return away
