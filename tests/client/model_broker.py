"""A broker (and a master) that keeps offsets as the Java broker does, and fails where a test says."""

import collections
import threading
from collections.abc import Callable

from testkit.broker_model import BROKER_ID, TOKEN, BrokerModel, Entry, Limits, Store
from tests.client.scripted_master import DEFAULTS, producer_registered, token
from tests.rpc_server import Exchange, RpcServer
from tubemq_spark.model import StoreId
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2

__all__ = ["BROKER_ID", "TOKEN", "Entry", "Limits", "ModelBroker", "Store"]

Fault = Callable[["ModelBroker", Exchange], bool]
"""Called instead of the broker; returns whether the request has been dealt with."""


def refuse(code: int, text: str = "refused by the test", wait_ms: int = -1) -> Fault:
    """Answer with a result code, without doing anything."""

    def fault(broker, exchange):
        answer = ANSWERS[exchange.request.method](success=False, errCode=code, errMsg=text)
        if exchange.request.method == Method.GET_MESSAGE:
            answer.currOffset = -1
            answer.minLimitTime = wait_ms
        exchange.answer(answer)
        return True

    return fault


def refuse_after(code: int) -> Fault:
    """Carry the request out, but answer with a result code: a fetch that failed in its middle, for one."""

    def fault(broker, exchange):
        broker.carry_out(exchange)
        return refuse(code)(broker, exchange)

    return fault


def hang_up(broker, exchange):
    """Close the connection before the request is carried out."""
    exchange.hang_up()
    return True


def hang_up_after(broker, exchange):
    """Carry the request out, but close the connection instead of answering."""
    broker.carry_out(exchange)
    exchange.hang_up()
    return True


def swallow(broker, exchange):
    """Neither carry the request out nor answer."""
    return True


def swallow_answer(broker, exchange):
    """Carry the request out and do not answer, as the Java server does when it was too slow."""
    broker.carry_out(exchange)
    return True


def time_out_leases(broker, exchange):
    """End all leases before the request is carried out."""
    broker.time_out_leases()
    return False


def forget_in_flight(broker, exchange):
    """Drop what was fetched last before the request is carried out, as an administrator's change does."""
    for holding in broker.holdings.values():
        holding.in_flight = 0
    return False


def break_down(broker, exchange):
    """Answer with an exception."""
    exchange.fail("any.InvocationTargetException", "")
    return True


def answer_garbage(broker, exchange):
    """Answer with bytes that are no frame; the client hangs up."""
    exchange.send_bytes(b"garbage!" * 4)
    return True


def delay(broker, exchange):
    """Carry the request out after the next one: TubeMQ's order is no promise."""
    broker.delayed.append(exchange)
    return True


def restart(broker, exchange):
    """Stop the broker in good order, losing only leases, and start it again."""
    broker.crash(gracefully=True)
    return True


def nothing(broker, exchange):
    """Do nothing; takes the place of a fault in a list."""
    return False


QUICK_FAULTS: dict[str, Fault] = {
    **{f"code {code}": refuse(code, wait_ms=1) for code in (0, 301, 401, 404, 411, 412, 452, 500, 503)},
    **{f"code {code} after": refuse_after(code) for code in (0, 404, 500)},
    **{
        fault.__name__: fault
        for fault in (
            forget_in_flight,
            hang_up,
            hang_up_after,
            time_out_leases,
            break_down,
            answer_garbage,
            restart,
        )
    },
}
SLOW_FAULTS: dict[str, Fault] = {fault.__name__: fault for fault in (swallow, swallow_answer, delay)}
"""They cost the client's RPC time-out each."""

ANSWERS = {
    Method.PARTITION_REGISTER: broker_pb2.RegisterResponseB2C,
    Method.PARTITION_HEARTBEAT: broker_pb2.HeartBeatResponseB2C,
    Method.GET_MESSAGE: broker_pb2.GetMessageResponseB2C,
    Method.COMMIT_OFFSET: broker_pb2.CommitOffsetResponseB2C,
}


class ModelBroker(BrokerModel):
    """One broker on a loopback socket; a context manager. It answers a master's methods as well."""

    def __init__(
        self, stores: dict[StoreId, Store], partitions: int = 1, limits: Limits | None = None
    ) -> None:
        super().__init__(stores, partitions, limits)
        self.faults: dict[int, Fault] = {}
        """By the number of the broker request they hit, from 0 on."""
        self.fault_of_method: dict[Method, list[Fault]] = collections.defaultdict(list)
        """Used up one after the other by the requests of that method."""
        self.requests: list[tuple[Method, object]] = []
        self.delayed: list[Exchange] = []
        self._lock = threading.Lock()
        self._server = RpcServer(self._handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()

    @property
    def endpoint(self):
        return self._server.endpoint

    def counts(self) -> collections.Counter[Method]:
        """How many requests of each method came."""
        return collections.Counter(method for method, _ in self.requests)

    def crash(self, *, gracefully: bool = False) -> None:
        super().crash(gracefully=gracefully)
        self._server.drop_connections()

    def carry_out(self, exchange: Exchange) -> object:
        """Do what a request asks and return the answer without sending it."""
        return self.answer(Method(exchange.request.method), exchange.request.body)

    def _handle(self, exchange: Exchange) -> None:
        with self._lock:
            method = Method(exchange.request.method)
            if method not in ANSWERS:
                registers = method is Method.PRODUCER_REGISTER
                exchange.answer(self._registered() if registers else DEFAULTS[method])
                return
            number = len(self.requests)
            self.requests.append((method, exchange))
            of_method = self.fault_of_method[method]
            fault = self.faults.get(number) or (of_method.pop(0) if of_method else None)
            delayed, self.delayed = self.delayed, []
            if fault is None or not fault(self, exchange):
                exchange.answer(self.carry_out(exchange))
            for held in delayed:
                held.answer(self.carry_out(held))

    def _registered(self):
        return producer_registered(
            brokerInfos=[f"{BROKER_ID}:{self.endpoint}"], authorizedInfo=token(max(self.valid_tokens))
        )
