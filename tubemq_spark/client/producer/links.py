"""The brokers of one producer, and which of them messages without key and partition pass over."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tubemq_spark.client.producer.runs import BrokerLink
from tubemq_spark.client.producer.statistics import BrokerStatistics
from tubemq_spark.model import Endpoint

_AVOID_S: Final = 3.0
_AVOID_AT_MOST_S: Final = 48.0
_OWN_BYTES: Final = 256
"""About what a message takes in memory besides its payload."""
_LONGEST_TURN: Final = 32
"""Messages that one partition gets before the next one: choosing a partition and keeping account of it costs
as much for one message as for a run of them. Longer turns save little more, and a task of few messages would
reach few partitions."""


class BrokerLinks:
    """The brokers met so far, each *avoided*, *crowded*, or neither.

    A broker is passed over after a failure (*avoided*), until it answers a probe, which is sent after a
    while, each time twice as long, until the broker stores a message again; and while it holds its share of
    the window (*crowded*), so that one slow broker leaves the other shares alone. A broker that failed has a
    share of one message until it stores one.

    Messages with a key or a named partition cannot go elsewhere. While their broker is stalled, has stored
    nothing since it refused a message, or does not have their partition listed, they are *aside*: they do not
    count among the messages that the window may hold, so those for other brokers go on. Each broker has an
    equal share of the window's bytes for such messages, in which each also counts with what it takes besides
    its payload. A broker whose share is *full* takes no more of them into the window. When all brokers are
    stalled, or refuse, nothing is aside.
    """

    def __init__(
        self,
        timeout_ms: int,
        *,
        detailed: bool = False,
        probe: Callable[[Endpoint], Coroutine[Any, Any, bool]] | None = None,
    ) -> None:
        """Create it without brokers."""
        self._timeout_ms = timeout_ms
        self._detailed = detailed
        self._links: dict[tuple[int, Endpoint], BrokerLink] = {}
        self._avoided: dict[BrokerLink, float] = {}
        """Until when each is not asked whether it answers."""
        self._probe = probe
        self._probes: dict[BrokerLink, asyncio.Task[bool]] = {}
        self._probing: set[asyncio.Task[bool]] = set()
        """All probes that have not ended, also those that are not waited for any more."""
        self.on_answer: Callable[[], object] = lambda: None
        """Called when a probe has ended."""
        self._crowded: set[BrokerLink] = set()
        self._latest: dict[int, BrokerLink] = {}
        """The link of each broker at the address that was met last."""
        self._share_messages = 1
        self._share_bytes = 1
        self.longest_turn = _LONGEST_TURN
        """How many messages a partition gets before the next one; few where a broker's share is small."""
        self.all: tuple[BrokerLink, ...] = ()
        self.passed_over: frozenset[int] = frozenset()
        """Ids of the brokers to pass over now."""
        self.failing: frozenset[int] = frozenset()
        """Ids of those to pass over even when no other is left: silent ones, and those that failed and stored
        nothing since."""
        self.aside = 0
        """How many messages are aside."""
        self.full: frozenset[int] = frozenset()
        """Ids of the brokers whose shares are full."""

    def to(self, broker_id: int, endpoint: Endpoint) -> BrokerLink:
        """Return what stands for a broker, one for all its partitions."""
        link = self._links.get((broker_id, endpoint))
        if link is None:
            link = self._links[broker_id, endpoint] = BrokerLink(
                broker_id, endpoint, self._timeout_ms, detailed=self._detailed
            )
            self.all = tuple(self._links.values())
        self._latest[broker_id] = link
        return link

    def statistics(self) -> tuple[BrokerStatistics, ...]:
        """Return what was counted so far of the brokers that were sent to, by their ids."""
        used = [link.statistics() for link in self.all if link.counts.requests]
        return tuple(sorted(used, key=lambda broker: (broker.broker_id, broker.endpoint)))

    def avoid(self, link: BrokerLink, now: float) -> None:
        """Pass over a broker that failed; failures that come together count as one."""
        if link not in self._avoided:
            link.troubles += 1
            pause_s = min(_AVOID_AT_MOST_S, _AVOID_S * (1 << min(link.troubles - 1, 16)))
            self._avoided[link] = now + pause_s
            self._update()

    def forgive(self, now: float) -> None:
        """Turn again to brokers that were avoided long enough, and answer; wait for none."""
        if not self._avoided or min(self._avoided.values()) > now:
            return
        for link in [link for link, end in self._avoided.items() if end <= now]:
            answers = self._answers(link)
            if answers is not None:
                self._forget_failure(link)
                if not answers:
                    self.avoid(link, now)
        self._update()

    def _answers(self, link: BrokerLink) -> bool | None:
        """Return whether a broker answers; None as long as that is not known."""
        # At an old address none is expected, and messages go to the new one.
        if self._probe is None or self._latest[link.broker_id] is not link:
            return True
        probe = self._probes.get(link)
        if probe is None:
            probe = self._probes[link] = asyncio.create_task(self._probe(link.endpoint))
            self._probing.add(probe)
            probe.add_done_callback(self._end_probe)
        return probe.result() if probe.done() else None

    def _end_probe(self, probe: "asyncio.Task[bool]") -> None:
        self._probing.discard(probe)
        if not probe.cancelled():
            self.on_answer()

    def _forget_failure(self, link: BrokerLink) -> None:
        self._avoided.pop(link, None)
        if (probe := self._probes.pop(link, None)) is not None:
            probe.cancel()

    def recovered(self, link: BrokerLink) -> None:
        """Forget a broker's failures: it has stored a message."""
        link.troubles = 0
        self._forget_failure(link)
        self._update()

    async def close(self) -> None:
        """Ask no broker any more, and wait until none is asked."""
        self._probes.clear()
        for probe in self._probing:
            probe.cancel()
        await asyncio.gather(*self._probing, return_exceptions=True)

    def share_out(self, messages: int, size: int) -> None:
        """Give each broker its share of the window, and pass over those that hold it already."""
        brokers = len(self._latest)
        if brokers < 2:
            return
        self._share_messages = max(1, messages // brokers)
        self._share_bytes = max(1, size // brokers)
        self.longest_turn = max(1, min(_LONGEST_TURN, self._share_messages // 2))
        for link in self.all:
            if link.held >= self._share_messages or link.held_bytes >= self._share_bytes:
                self.crowd(link)

    def look(self, now: float) -> None:
        """See which brokers are stalled, and what is aside for that; turn again to those that are not."""
        several = len(self._latest) > 1
        aside = 0
        all_stalled = True
        for link in self.all:
            silent = link.silent_at <= now
            if silent is not link.silent:
                link.silent = silent
                if several and silent:
                    self.crowd(link)
                self._update()
            if link.stalled or link.refuses:
                aside += link.messages
            else:
                aside += link.parked
                all_stalled = all_stalled and self._latest[link.broker_id] is not link
            if link.crowded:
                self.relieve(link)
        self.aside = 0 if all_stalled else aside
        if aside or self.full:
            for link in self.all:
                link.full = several and self._is_full(link)
            full = frozenset(link.broker_id for link in self.all if link.full)
            if full != self.full:
                self.full = full
                self._update()

    def _is_full(self, link: BrokerLink) -> bool:
        size = link.held_bytes + link.waiting_bytes + _OWN_BYTES * link.messages
        return (link.stalled or link.refuses or link.parked > 0) and size >= self._share_bytes

    def relieve(self, link: BrokerLink) -> None:
        """Turn to a crowded broker again that holds half of its share, or nothing after a failure."""
        if link.silent:
            relieved = False
        elif link.troubles:
            relieved = not link.held
        else:
            relieved = link.held * 2 <= self._share_messages and link.held_bytes * 2 <= self._share_bytes
        if relieved:
            link.crowded = False
            self._crowded.discard(link)
            self._update()

    def crowd(self, link: BrokerLink) -> None:
        """Pass over a broker that holds its share."""
        if not link.crowded:
            link.crowded = True
            self._crowded.add(link)
            self._update()

    def _update(self) -> None:
        troubled = {link for link in self._crowded if link.troubles or link.silent} | self._avoided.keys()
        self.failing = frozenset(link.broker_id for link in troubled) | self.full
        self.passed_over = frozenset(link.broker_id for link in self._crowded) | self.failing
