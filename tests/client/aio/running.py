"""Running coroutines in tests."""

import asyncio
import functools

SECONDS = 30
"""What would wait forever ends here."""


def coroutine(test):
    """Run a test that is a coroutine in an event loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def limited():
            async with asyncio.timeout(SECONDS):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run
