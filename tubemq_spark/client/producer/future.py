"""The future of one message."""

import concurrent.futures
import os

from tubemq_spark.client.producer.outcomes import SendResult
from tubemq_spark.errors import ProduceError, TubeMQError


class SendFuture(concurrent.futures.Future[SendResult]):
    """Where a message is stored, once a broker has said so.

    It cannot be cancelled: the message was accepted. In a forked child, which hears of nothing, asking for an
    outcome that was not known before the fork raises an error instead of waiting forever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        self.set_running_or_notify_cancel()

    def tell(self, result: SendResult | None, error: TubeMQError | None) -> None:
        """End with one of both."""
        if result is not None:
            self.set_result(result)
        else:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> SendResult:
        """Return where the message is stored; wait for that.

        Raises:
            ProduceError: nobody has confirmed that it is stored; ``may_be_stored`` says whether it may be.
            TimeoutError: its outcome is not known after ``timeout`` seconds.
        """
        self._refuse_in_child()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that the message met, or None; wait for that as ``result`` does."""
        self._refuse_in_child()
        return super().exception(timeout)

    def _refuse_in_child(self) -> None:
        process = os.getpid()
        if process != self._process and not self.done():
            raise ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=process)
