"""Brokers that do not answer: when they are asked again, and what the user sees.

========  ====================================================================================================
a broker  means
========  ====================================================================================================
answers   no entry here: every look waits for it, up to ``source.background.PATIENCE_S``
is late   an entry that is not ``told``: it did not answer in time. It is asked beside the look, without a
          pause and with all the time there is, until it answers in time again, or not at all
is away   an entry that is ``told``: one of its stores has no answer. If none has one, it is asked beside the
          look, after a pause and with a time-out that double
========  ====================================================================================================

The user is told twice per outage: when it begins, and when it ends, with how long it took and how many rows
waited. Of a broker that is late nothing is told: its rows come later.
"""

import collections
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from tubemq_spark.errors import RemoteProtocolError, RpcError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import OffsetBounds, StoreBounds, StoreId, TopicPartition, TopicsLayout, rows_between
from tubemq_spark.net.retry import BROKER_OUTAGE
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_FIRST_TIMEOUT_MS: Final = 1_000
"""The first time-out of a broker that is away: it answers within milliseconds when it is back, and on a
connection that is dead it never does."""

_NOT_READY: Final = frozenset({ErrCode.FORBIDDEN, ErrCode.INTERNAL_SERVER_ERROR})
"""What a broker answers that does not have a topic or a store yet, or no longer: the layout says which."""


class Due(NamedTuple):
    """A broker that is to be asked beside the others."""

    stores: Sequence[StoreId]
    timeout_ms: int | None
    """How long its answer may take; None for as long as any answer may."""


class _BrokerOutage:
    """One broker that is late or away."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.told = False
        """Whether the user knows."""
        self.beside = False
        """Whether no store had an answer in time, so that the others are not to wait for it."""
        self.stores: Collection[StoreId] = ()
        """The stores that had no answer when the broker was last asked."""
        self.failures = 0
        self.ask_at = since

    def late(self) -> None:
        self.beside, self.failures, self.ask_at = True, 0, -math.inf

    def postpone(self, now: float) -> None:
        self.beside = True
        self.failures += 1
        self.ask_at = now + BROKER_OUTAGE.after_ms(self.failures) / 1000

    @property
    def timeout_ms(self) -> int | None:
        return _FIRST_TIMEOUT_MS << min(self.failures - 1, 4) if self.failures else None


class Outages:
    """The outages of one query's brokers, by broker id."""

    def __init__(self) -> None:
        self._away: dict[int, _BrokerOutage] = {}
        self.count = 0
        """How many outages the user was told of."""

    @property
    def away(self) -> Collection[int]:
        """The brokers that are away."""
        return {broker_id for broker_id, outage in self._away.items() if outage.told}

    @property
    def beside(self) -> Collection[int]:
        """The brokers that no look waits for."""
        return {broker_id for broker_id, outage in self._away.items() if outage.beside}

    @property
    def late(self) -> Collection[int]:
        """Those of them that may answer, and do so too late."""
        return {broker_id for broker_id, outage in self._away.items() if outage.beside and not outage.told}

    def stores_to_ask(self, layout: TopicsLayout) -> Collection[StoreId]:
        """Return the stores of the brokers that a look waits for."""
        beside = self.beside
        return [store for store in layout.stores if store.broker_id not in beside]

    def due(self, layout: TopicsLayout, now: float) -> dict[int, Due]:
        """Return those of the other brokers that are to be asked now, by broker id."""
        return {
            broker_id: Due(
                [store for store in layout.stores if store.broker_id == broker_id], outage.timeout_ms
            )
            for broker_id, outage in self._away.items()
            if outage.beside and now >= outage.ask_at
        }

    def update(
        self,
        answer: StoreBounds,
        layout: TopicsLayout,
        positions: Mapping[TopicPartition, int],
        now: float,
        late: Collection[int] = (),
    ) -> None:
        """Take over what brokers have answered; tell the user what has changed.

        ``late`` are those that did not answer in time, although they may answer, or that did so too late. The
        ``positions`` of the stream tell how many rows waited; ``now`` is in seconds of any steady clock.
        """
        self._forget_unlisted(layout)
        failures: dict[int, list[StoreId]] = collections.defaultdict(list)
        for store in answer.failures:
            failures[store.broker_id].append(store)
        answered: dict[int, list[StoreId]] = collections.defaultdict(list)
        for store in answer.by_store:
            answered[store.broker_id].append(store)
        for broker_id, stores in failures.items():
            outage = self._away.setdefault(broker_id, _BrokerOutage(now))
            outage.stores = stores
            if broker_id in late:
                outage.late()
                continue
            self._tell_of(broker_id, outage, answer.failures[stores[0]], layout)
            if broker_id not in answered:
                outage.postpone(now)
        for broker_id in self._away.keys() & answered.keys() - failures.keys():
            if self._away[broker_id].told:
                self._tell_of_end(broker_id, answered[broker_id], answer.by_store, positions, now)
            if broker_id in late:
                self._away[broker_id].late()
            else:
                del self._away[broker_id]

    def _forget_unlisted(self, layout: TopicsLayout) -> None:
        """Forget brokers whose stores without an answer no longer exist, as after a topic was removed.

        These stores are not asked for again, and the user need not be told that the broker's others answer.
        """
        self._away = {
            broker_id: outage
            for broker_id, outage in self._away.items()
            if not layout.stores.keys().isdisjoint(outage.stores)
        }

    def _tell_of(
        self, broker_id: int, outage: _BrokerOutage, error: TubeMQError, layout: TopicsLayout
    ) -> None:
        if outage.told:
            return
        outage.told = True
        self.count += 1
        logger.warning(
            "broker %d (%s) %s for %d of its stores; they wait, other stores continue: %s",
            broker_id,
            layout.stores[next(iter(outage.stores))],
            "has no free reader group" if error.condition == "TUBEMQ_LEASES_TAKEN" else "does not answer",
            len(outage.stores),
            error,
        )

    def _tell_of_end(
        self,
        broker_id: int,
        stores: Collection[StoreId],
        bounds: Mapping[StoreId, OffsetBounds],
        positions: Mapping[TopicPartition, int],
        now: float,
    ) -> None:
        outage = self._away[broker_id]
        outage.told = False
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


def brokers_late(failures: Mapping[StoreId, TubeMQError]) -> set[int]:
    """Return the ids of brokers that did not answer in time, although their connections stand."""
    return {store.broker_id for store, error in failures.items() if error.condition == "TUBEMQ_TIMEOUT"}


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
