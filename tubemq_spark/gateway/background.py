"""A gateway beside other work: its event loop runs in a thread of its own."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Self, TypeVar

from tubemq_spark.gateway.server import GatewayServer
from tubemq_spark.gateway.settings import GatewaySettings

Result = TypeVar("Result")


class BackgroundGateway:
    """A gateway in a thread; as a context manager it starts and stops itself."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"tubemq-gateway {settings.name}", daemon=True)
        self.server: GatewayServer | None = None
        """The gateway, once it has started."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(0)

    @property
    def address(self) -> str:
        """Where clients reach it, as ``host:port``."""
        return self._running().address

    def start(self) -> None:
        """Begin to serve.

        Raises:
            TubeMQError: as ``GatewayServer.start``.
        """
        self._thread.start()
        try:
            self.server = self._do(self._start()).result()
        except BaseException:
            self._end()
            raise

    def stop(self, drain_ms: int | None = None) -> None:
        """Drain, and end; see ``GatewayServer.stop``."""
        if self._thread.is_alive():
            try:
                self._do(self._running().stop(drain_ms)).result()
            finally:
                self._end()

    async def _start(self) -> GatewayServer:
        server = GatewayServer(self._settings)
        await server.start()
        return server

    def _running(self) -> GatewayServer:
        if self.server is None:
            raise RuntimeError("the gateway has not started")
        return self.server

    def _do(self, coroutine: Coroutine[object, object, Result]) -> "concurrent.futures.Future[Result]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
