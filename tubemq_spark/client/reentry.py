"""Whether a call comes from inside of the client itself: out of a signal handler, or a user's callback.

A signal handler runs on top of the line that it interrupts, in the same thread. If that line belongs to the
client, the thread may hold locks of any consumer, connection or pool, and to wait for one of them is to wait
for ever. The same is true of a callback. The frames of the thread show it, without a mark that each call
would have to set.
"""

import sys
from types import FrameType
from typing import Final

_PARTS: Final = ("tubemq_spark.client.", "tubemq_spark.net.", "tubemq_spark.protocol.")
_WITHOUT_LOCKS: Final = frozenset(
    {
        "Consumer.__exit__",
        "Consumer.__iter__",
        "Consumer.messages",
        "Consumer.run",
        "Registry.close_all",
        "TubeMQClient.__exit__",
        "TubeMQClient.close",
        "_at_exit",
    }
)
"""Functions that hold nothing while they call back or close."""


def called_from_inside() -> bool:
    """Return whether the caller of the calling method was itself called by the client."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 (only frames tell who was interrupted)
    while frame is not None:
        is_ours = frame.f_globals.get("__name__", "").startswith(_PARTS)
        if is_ours and frame.f_code.co_qualname not in _WITHOUT_LOCKS:
            return True
        frame = frame.f_back
    return False
