"""Tests that interrupt something work in a run in the background, which a shell lets ignore SIGINT."""

import signal

import pytest

from testkit.interrupts import hear_interrupts


@pytest.mark.parametrize(
    ("before", "after"),
    [(signal.SIG_IGN, signal.default_int_handler), (signal.SIG_DFL, signal.SIG_DFL)],
    ids=["ignored", "handled"],
)
def test_interrupts_are_heard_and_handlers_stay(before, after):
    usual = signal.signal(signal.SIGINT, before)
    try:
        hear_interrupts()
        assert signal.getsignal(signal.SIGINT) is after
    finally:
        signal.signal(signal.SIGINT, usual)
