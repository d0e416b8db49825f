"""A producer that writes numbered rows at a steady pace, while a test does something to the servers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from integration_tests.rig.messages import client_config
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.producer.producer import Producer

_ROWS_PER_BURST: Final = 50
_PAUSE_S: Final = 0.1


class SteadyLoad:
    """Numbers from 0 on, as text, without a gap; the next ones only when the last ones are stored."""

    def __init__(self, master: str, topic: str) -> None:
        self.acknowledged = 0
        """All lower numbers are stored, once at least."""
        self._master = master
        self._topic = topic
        self._burst = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="steady-load")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing inside the block; at its beginning everything that was sent is stored."""
        with self._burst:
            yield

    def finish(self) -> None:
        """Wait until everything begun is stored; fail with what the producer failed with."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with TubeMQClient(client_config(self._master)) as client, client.producer() as producer:
                while not self._stop.wait(_PAUSE_S):
                    with self._burst:
                        self._write(producer)
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._error = error

    def _write(self, producer: Producer) -> None:
        end = self.acknowledged + _ROWS_PER_BURST
        for number in range(self.acknowledged, end):
            producer.send(self._topic, b"%d" % number)
        producer.flush()
        self.acknowledged = end


@contextmanager
def steady_load(master: str, topic: str) -> Iterator[SteadyLoad]:
    """Write to a topic inside the block."""
    load = SteadyLoad(master, topic)
    load.start()
    try:
        yield load
    finally:
        load.finish()
