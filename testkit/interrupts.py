"""Ctrl-C in a run that a shell started in the background."""

import signal


def hear_interrupts() -> None:
    """Listen to SIGINT, which such a run ignores, as would each process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
