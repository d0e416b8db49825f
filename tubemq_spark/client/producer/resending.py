"""What becomes of a message whose attempt came to nothing: it is sent again, when and where; or never.

An answer that is not a success also says whether the message may be stored all the same. A broker makes
all its checks before it stores, and they answer 4xx or 503 (``BrokerServiceServer.sendMessageP2B``); a
failure while it stores, or after that, is 500.
"""

import dataclasses
import enum
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final

from tubemq_spark.client.producer.links import BrokerLink, BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.routing import Destinations
from tubemq_spark.client.producer.runs import Destination, Run, release_kept
from tubemq_spark.errors import ProduceError, tells_of_full_disk
from tubemq_spark.net.retry import RESEND, RESEND_AFTER_SERVER_ERROR
from tubemq_spark.protocol.constants import Status
from tubemq_spark.protocol.errcodes import FREE_SPACE, TEMPORARY_EXCEPTIONS, ErrCode, advice, lookup
from tubemq_spark.protocol.rpc import Failure
from tubemq_spark.protocol.send_connection import Refusal
from tubemq_spark.protocol.send_frames import SendCredentials

AskUser = Callable[[Run, Callable[[], Destination]], object]
"""Has a message's destination chosen by a function of the user, outside of the event loop."""

_MESSAGE_TIME: Final = (
    "a broker that audits fails after storing a message without message time: set one (messageTime=now)"
)


class Reaction(enum.Enum):
    """What to do with a message that was refused."""

    FINAL = enum.auto()
    """Fail: it would be refused again."""
    AGAIN = enum.auto()
    """Send it again."""
    SLOWER = enum.auto()
    """Send it again, and less at a time."""
    ELSEWHERE = enum.auto()
    """Send it again, to another broker if it may go there."""
    WITH_NEW_TOKEN = enum.auto()
    """Send it again with a newer token; if that is refused too, fail."""
    FEW_TIMES = enum.auto()
    """Send it again a few times: each time it may have been stored."""


_BY_CODE: Final[dict[int, Reaction]] = {
    ErrCode.CERTIFICATE_FAILURE: Reaction.WITH_NEW_TOKEN,
    ErrCode.INTERNAL_SERVER_ERROR: Reaction.FEW_TIMES,
    ErrCode.SERVER_RECEIVE_OVERFLOW: Reaction.SLOWER,
    ErrCode.SERVICE_UNAVAILABLE: Reaction.ELSEWHERE,
}


_BEFORE_THE_HANDLER: Final = frozenset({"StandbyException", "ServerNotReadyException"})
"""Exceptions of a server that did not look at the request. One that is stopping still carries it out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and the words for it."""

    reaction: Reaction
    kind: str
    """Equal for answers that the log tells together."""
    cause: str
    hint: str
    ambiguous: bool
    """Whether the message may have been stored."""
    refresh: bool = False
    """Whether to ask the master for new routes and a new token."""


def judge(answer: Refusal | Failure, *, has_time: bool) -> Verdict:
    """Say what to do with a message, which may have a message time or not."""
    if isinstance(answer, Failure):
        return _judge_failure(answer, has_time=has_time)
    entry = lookup(answer.code)
    default = Reaction.AGAIN if entry.retriable or entry.refresh_metadata else Reaction.FINAL
    reaction = _BY_CODE.get(answer.code, default)
    # A broker answers so before it would store the message.
    is_refusal = 400 <= answer.code < 500 or answer.code == ErrCode.SERVICE_UNAVAILABLE
    return Verdict(
        reaction,
        f"code {answer.code}",
        f"the broker answered {answer.code} ({entry.name}): {answer.text or entry.meaning}",
        _hint(advice(answer.code, answer.text), reaction, answer.text, has_time=has_time),
        not is_refusal,
        entry.refresh_metadata or reaction is Reaction.WITH_NEW_TOKEN,
    )


def _hint(usual: str, reaction: Reaction, text: str, *, has_time: bool) -> str:
    if tells_of_full_disk(text):
        return FREE_SPACE
    return _MESSAGE_TIME if reaction is Reaction.FEW_TIMES and not has_time else usual


def _judge_failure(answer: Failure, *, has_time: bool) -> Verdict:
    """A broker answered with an exception; FATAL says that it cannot make sense of the request."""
    if answer.exception_class in TEMPORARY_EXCEPTIONS:
        reaction = Reaction.AGAIN
    elif answer.status is Status.FATAL:
        reaction = Reaction.FINAL
    else:
        reaction = Reaction.FEW_TIMES
    hint = _hint(LOOK_AT_BROKER, reaction, answer.text, has_time=has_time)
    cause = f"the broker failed with {answer.exception_class}: {answer.text or 'no text'}"
    ambiguous = answer.status is not Status.FATAL and answer.exception_class not in _BEFORE_THE_HANDLER
    return Verdict(reaction, answer.exception_class, cause, hint, ambiguous)


SERVER_ERRORS: Final = 6
"""A broker that fails inside may have stored the message: so many copies at most."""


class RetryQueue:
    """Runs of one message, by when they are due; those due at one time are in the order of waiting."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Run]] = []
        """A heap of messages, each with when it is due, and with a number of its own."""
        self._tickets = itertools.count()
        # Spreads many tasks that failed together; one number, so that pauses keep messages in order.
        self._spread = 1 - random.random() / 2  # noqa: S311 (keeps no secret)

    @property
    def next_due(self) -> float | None:
        """When the first of them is due; None when nothing waits."""
        return self._waiting[0][0] if self._waiting else None

    def add(self, message: Run, due: float) -> None:
        """Add a message, to be taken when it is due."""
        heapq.heappush(self._waiting, (due, next(self._tickets), message))

    def take_due(self, now: float) -> Iterator[Run]:
        """Take the messages whose pause is over; they may be added again at once, for later."""
        while self._waiting and self._waiting[0][0] <= now:
            yield heapq.heappop(self._waiting)[2]

    def take_late(self, now: float) -> list[Run]:
        """Take the messages whose time is over, in the order of their next attempts."""
        late = sorted(retry for retry in self._waiting if retry[2].give_up_at <= now)
        if late:
            self._waiting = [retry for retry in self._waiting if retry[2].give_up_at > now]
            heapq.heapify(self._waiting)
        return [message for _, _, message in late]

    def messages(self) -> list[Run]:
        """Return all messages that wait for their next attempt."""
        return [message for _, _, message in self._waiting]

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()

    def pause_s(self, failures: int) -> float:
        """Return the pause before the next attempt: doubling, capped, other in each producer."""
        return RESEND.after_ms(failures + 1) / 1000 * self._spread

    def pause_after_server_error_s(self, server_errors: int) -> float:
        """Return the pause after a failure inside a broker: longer, for each attempt may store a copy."""
        return RESEND_AFTER_SERVER_ERROR.after_ms(server_errors) / 1000 * self._spread


LOOK_AT_BROKER: Final = "look at the broker's log"
IS_BROKER_THERE: Final = "check that the broker runs and can be reached"
_IS_TOPIC_THERE: Final = "check that the topic is open for publishing and its brokers run"
_REFRESH_EVERY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.1
"""How often a message that waits for news of the master looks whether they are there."""


class Resending:
    """Holds the messages that wait for their next attempt; the send window puts them in and takes them out.

    Most wait for a time. Those that are *parked* wait for a partition that the master does not list; they are
    looked at when a heartbeat was answered. Those that are *asked about* wait for the user's partitioner,
    which is not called in the loop. A broker's link counts those whose last attempt was there.

    ``now`` is the window's time. Every message here is a run of one.
    """

    def __init__(
        self,
        destinations: Destinations,
        links: BrokerLinks,
        log: SendLog,
        ask_user: AskUser,
        *,
        retry_ambiguous: bool = True,
    ) -> None:
        """Create it empty."""
        self._retry_ambiguous = retry_ambiguous
        self._destinations = destinations
        self._links = links
        self._log = log
        self.retries = RetryQueue()
        self._ask_user = ask_user
        self._asked: dict[Run, None] = {}
        """Those that the user's partitioner is asked about."""
        self._parked: list[Run] = []
        self._parked_since = 0
        """The heartbeat whose news they were parked for, or looked at with."""
        self._look_at = 0.0
        self._refresh_at = 0.0
        self._refused: SendCredentials | None = None
        self._newer_token_of = 0

    @property
    def next_due(self) -> float | None:
        """When the next message is due; None when nothing waits."""
        due = self.retries.next_due
        if not self._parked:
            return due
        return self._look_at if due is None else min(due, self._look_at)

    def refused(self, link: BrokerLink, message: Run, answer: Refusal | Failure, now: float) -> Reaction:
        """Plan the next attempt of a message that a broker refused; return what the answer asks for."""
        verdict = judge(answer, has_time=message.has_time)
        if verdict.ambiguous:
            self.count_ambiguous(message, verdict.cause, verdict.hint)
        if verdict.reaction is Reaction.WITH_NEW_TOKEN:
            self._await_token(message, verdict)
        else:
            message.troubles.token_of = -1
        if verdict.refresh:
            self._refresh(now)
        pause_s = None
        message.troubles.server_errors += verdict.reaction is Reaction.FEW_TIMES
        server_errors = message.troubles.server_errors
        if verdict.reaction is Reaction.FINAL or server_errors >= SERVER_ERRORS:
            raise self.failed(message, verdict.cause, verdict.hint)
        if verdict.reaction is Reaction.FEW_TIMES:
            pause_s = self.retries.pause_after_server_error_s(server_errors)
        if verdict.reaction is Reaction.ELSEWHERE:
            self.avoid(link, verdict.cause, int(not message.troubles.failures), now)
        else:
            self._log.event(verdict.kind, f"{link}: {verdict.cause}")
        self.again(message, verdict.cause, verdict.hint, now, pause_s)
        return verdict.reaction

    def count_ambiguous(self, message: Run, cause: str, hint: str) -> None:
        """Count an attempt that may or may not have stored a message."""
        message.troubles.unanswered += 1
        if not self._retry_ambiguous:
            raise self.failed(message, cause, hint)

    def again(self, message: Run, cause: str, hint: str, now: float, pause_s: float | None = None) -> None:
        """Plan a message's next attempt, by default the later the more have failed."""
        due = now + (self.retries.pause_s(message.troubles.failures) if pause_s is None else pause_s)
        message.troubles.failures += 1
        message.troubles.what = (cause, hint)
        if due > message.give_up_at:
            raise self.failed(message, cause, hint)
        self._wait(message, due)

    def avoid(self, link: BrokerLink, cause: str, waiting: int, now: float) -> None:
        """Pass over a broker that failed for a while, and tell the log how many more messages wait for it."""
        self._links.avoid(link, now)
        self._log.away(link.name, cause, waiting)

    def take_due(self, now: float) -> Iterator[Run]:
        """Take the messages whose pause is over, in the order they failed; ``redirect`` each of them."""
        self._links.forgive(now)
        for message in itertools.chain(self.retries.take_due(now), self._take_parked(now)):
            release_kept(message)
            yield message

    def redirect(self, message: Run, now: float) -> bool:
        """Return whether a message can be sent again now, to its destination; if not, it waits on."""
        if message.troubles.token_of > self._destinations.heartbeats:
            self._refresh(now)
            self._wait(message, now + _LOOK_AGAIN_S)
            return False
        if (choice := self._destinations.partitioner_call(message)) is not None:
            self._asked[message] = None
            message.destination.link.keep(message)
            self._ask_user(message, choice)
            return False
        if nowhere := self._destinations.redirect(message):
            self._park(message, nowhere, now)
            return False
        self._arrive(message)
        return True

    def chosen(self, message: Run, destination: Destination) -> bool:
        """Direct a message to where the user's partitioner says; False: it was given up before."""
        if not self.forget_question(message):
            return False
        message.destinations = (destination,)
        self._arrive(message)
        return True

    def forget_question(self, message: Run) -> bool:
        """Take a message out that the user's partitioner was asked about; False: it was given up."""
        if message not in self._asked:
            return False
        del self._asked[message]
        release_kept(message)
        return True

    def _arrive(self, message: Run) -> None:
        """Note that a message has a destination again."""
        self._log.back(_place(message))
        link = message.destination.link
        if link.troubles:
            self._links.crowd(link)

    def take_late(self, now: float) -> list[Run]:
        """Take the messages whose time is over."""
        late = self.retries.take_late(now)
        for message in [message for message in self._asked if message.give_up_at <= now]:
            del self._asked[message]
            late.append(message)
        if any(message.give_up_at <= now for message in self._parked):
            late += [message for message in self._parked if message.give_up_at <= now]
            self._parked = [message for message in self._parked if message.give_up_at > now]
        for message in late:
            release_kept(message)
        return late

    def clear(self) -> None:
        """Forget everything."""
        self.retries.clear()
        self._parked.clear()
        self._asked.clear()

    def messages(self) -> list[Run]:
        """Return all messages that wait here."""
        return [*self.retries.messages(), *self._parked, *self._asked]

    def failed(self, run: Run, cause: str, hint: str) -> ProduceError:
        """Return the error that names the (first) message of a run, and says whether it may be stored."""
        return ProduceError(
            "TUBEMQ_SEND_FAILED.AMBIGUOUS" if run.unanswered else "TUBEMQ_SEND_FAILED",
            partition=run.destination.partition,
            message=run.describe(self._log.sender),
            attempts=run.attempts,
            unanswered=run.unanswered,
            cause=cause,
            hint=hint,
        )

    def _await_token(self, message: Run, verdict: Verdict) -> None:
        """Note which heartbeat brings a newer token; raise when the message was sent with that.

        All that was sent with one token waits for the same heartbeat, however late it is refused.
        """
        if message.troubles.token_of >= 0:
            raise self.failed(message, verdict.cause, verdict.hint)
        if message.credentials is not self._refused:
            self._refused = message.credentials
            self._newer_token_of = self._destinations.next_heartbeat
        message.troubles.token_of = self._newer_token_of

    def _wait(self, message: Run, due: float) -> None:
        self.retries.add(message, due)
        message.destination.link.keep(message)

    def _park(self, message: Run, nowhere: str, now: float) -> None:
        """Keep a message until the master names a partition for it."""
        self._refresh(now)
        self._log.away(_place(message), nowhere, waiting=message.troubles.what[0] != nowhere)
        message.troubles.what = (nowhere, _IS_TOPIC_THERE)
        if not self._parked:
            self._parked_since, self._look_at = self._destinations.heartbeats, now + _LOOK_AGAIN_S
        self._parked.append(message)
        message.destination.link.keep(message, parked=True)

    def _take_parked(self, now: float) -> list[Run]:
        """Take the parked messages if there are news of the master."""
        if not self._parked or now < self._look_at:
            return []
        self._refresh(now)
        self._look_at = now + _LOOK_AGAIN_S
        if self._parked_since == self._destinations.heartbeats:
            return []
        parked, self._parked = self._parked, []
        return parked

    def _refresh(self, now: float) -> None:
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_EVERY_S
            self._destinations.refresh()


def _place(message: Run) -> str:
    partition = message.destination.partition
    return f"partition {partition}" if message.named else f"topic {partition.topic}"
