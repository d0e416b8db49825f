"""Waiting for what another thread or task is about to do."""

import asyncio
import time


def wait_until(condition, seconds=5.0):
    """Return when the condition holds; fail when it does not within that time."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, "it did not happen in time"
        # What takes longer is looked at less often: a look may be a call.
        time.sleep(min(0.002 + waited / 10, 0.02))


async def until(condition, seconds=20.0):
    """Return when it holds; others go on in the event loop until then."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
