"""What an answer that is not a success means for a message: to be sent again, and how, or never.

And whether the message may be stored although the answer is not a success. A broker makes all its checks
before it stores, and they answer 4xx or 503 (``BrokerServiceServer.sendMessageP2B``); whatever goes wrong
while it stores, or after that, is 500.
"""

import dataclasses
import enum
from typing import Final

from tubemq_spark.protocol.constants import Status
from tubemq_spark.protocol.errcodes import TEMPORARY_EXCEPTIONS, ErrCode, lookup
from tubemq_spark.protocol.rpc import Failure
from tubemq_spark.protocol.send_answers import Refusal

_LOOK_AT_BROKER: Final = "look at the broker's log"
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
    return Verdict(
        reaction,
        f"code {answer.code}",
        f"the broker answered {answer.code} ({entry.name}): {answer.text or entry.meaning}",
        _MESSAGE_TIME if reaction is Reaction.FEW_TIMES and not has_time else entry.hint,
        not _is_refusal(answer.code),
        entry.refresh_metadata or reaction is Reaction.WITH_NEW_TOKEN,
    )


def _is_refusal(code: int) -> bool:
    """Whether a broker answers so before it would store the message."""
    return 400 <= code < 500 or code == ErrCode.SERVICE_UNAVAILABLE


def _judge_failure(answer: Failure, *, has_time: bool) -> Verdict:
    """A broker answered with an exception; FATAL says that it cannot make sense of the request."""
    hint = _LOOK_AT_BROKER
    if answer.exception_class in TEMPORARY_EXCEPTIONS:
        reaction = Reaction.AGAIN
    elif answer.status is Status.FATAL:
        reaction = Reaction.FINAL
    else:
        reaction = Reaction.FEW_TIMES
        hint = _LOOK_AT_BROKER if has_time else _MESSAGE_TIME
    cause = f"the broker failed with {answer.exception_class}: {answer.text or 'no text'}"
    ambiguous = answer.status is not Status.FATAL and answer.exception_class not in _BEFORE_THE_HANDLER
    return Verdict(reaction, answer.exception_class, cause, hint, ambiguous)
