"""What a single request may meet instead of its answer."""

import asyncio
from typing import Final

from google.protobuf.message import Message

from simulation import chance
from simulation.server import Exchange, Fault, RaisedError
from testkit.broker_model import BrokerModel
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.pb import broker_pb2, master_pb2

_ANSWERS: Final[dict[Method, type[Message]]] = {
    Method.PRODUCER_REGISTER: master_pb2.RegisterResponseM2P,
    Method.PRODUCER_HEARTBEAT: master_pb2.HeartResponseM2P,
    Method.PRODUCER_CLOSE: master_pb2.CloseResponseM2P,
    Method.CONSUMER_CLOSE: master_pb2.CloseResponseM2C,
    Method.CONSUMER_REGISTER: master_pb2.RegisterResponseM2C,
    Method.CONSUMER_HEARTBEAT: master_pb2.HeartResponseM2C,
    Method.BALANCE_REGISTER: master_pb2.RegisterResponseM2CV2,
    Method.BALANCE_HEARTBEAT: master_pb2.HeartResponseM2CV2,
    Method.BALANCE_PARTITION_META: master_pb2.GetPartMetaResponseM2C,
    Method.PARTITION_REGISTER: broker_pb2.RegisterResponseB2C,
    Method.PARTITION_HEARTBEAT: broker_pb2.HeartBeatResponseB2C,
    Method.GET_MESSAGE: broker_pb2.GetMessageResponseB2C,
    Method.COMMIT_OFFSET: broker_pb2.CommitOffsetResponseB2C,
    Method.SEND_MESSAGE: broker_pb2.SendMessageResponseB2P,
}


def refusal(method: int, code: int) -> Message:
    """Return the answer with which a server refuses a request."""
    answer = _ANSWERS[Method(method)]()
    for field in answer.DESCRIPTOR.fields:
        if field.name in {"errMsg", "errCode"}:
            setattr(answer, field.name, code if field.name == "errCode" else "refused by chance")
        elif field.name == "success":
            answer.success = False  # type: ignore[attr-defined]
        elif field.name in {"brokerCheckSum", "currOffset"}:
            setattr(answer, field.name, -1)
    return answer


def refuse(*codes: int) -> Fault:
    """Return what refuses with one of some result codes, without doing anything."""

    def fault(exchange: Exchange) -> None:
        exchange.answer(refusal(exchange.request.method, chance.one_of(codes)))

    return fault


def refuse_after(*codes: int) -> Fault:
    """Return what carries the request out and then refuses it: a fetch that failed in its middle, for one."""

    def fault(exchange: Exchange) -> None:
        exchange.carry_out()
        exchange.answer(refusal(exchange.request.method, chance.one_of(codes)))

    return fault


def forget_in_flight(exchange: Exchange) -> None:
    """Drop what was fetched last before the request is carried out, as an administrator's change does."""
    model = exchange.server.model
    assert isinstance(model, BrokerModel)
    for holding in model.holdings.values():
        holding.in_flight = 0
    exchange.answer(exchange.carry_out())


def expire_first(exchange: Exchange) -> None:
    """Remove the oldest records of each store before the request is carried out."""
    model = exchange.server.model
    assert isinstance(model, BrokerModel)
    for store in model.stores.values():
        store.first += chance.below(1 + (store.flushed - store.first) // 3)
    exchange.answer(exchange.carry_out())


def swallow(exchange: Exchange) -> None:
    """Neither carry the request out nor answer."""


def swallow_answer(exchange: Exchange) -> None:
    """Carry the request out without answering, as the Java server does when it was too slow."""
    exchange.carry_out()


def hang_up(exchange: Exchange) -> None:
    """Close the connection before the request is carried out."""
    exchange.hang_up()


def hang_up_after(exchange: Exchange) -> None:
    """Carry the request out, but close the connection instead of answering."""
    exchange.carry_out()
    exchange.hang_up()


def stop_in_the_middle(exchange: Exchange) -> None:
    """Send a part of the answer, and then nothing, or the end of the connection."""
    data = exchange.encoded(exchange.carry_out())
    exchange.send(data[: len(data) * chance.below(64) // 64])
    if chance.happens(50):
        exchange.hang_up()
    else:
        exchange.fall_silent()


def answer_late(exchange: Exchange) -> None:
    """Carry the request out, and answer behind later requests: TubeMQ's order is no promise."""
    answer = exchange.carry_out()
    asyncio.get_running_loop().call_later(chance.between(0.01, 15.0), exchange.answer, answer)


def carry_out_late(exchange: Exchange) -> None:
    """Carry the request out behind later ones."""
    loop = asyncio.get_running_loop()
    loop.call_later(chance.between(0.01, 15.0), lambda: exchange.answer(exchange.carry_out()))


def answer_garbage(exchange: Exchange) -> None:
    """Answer with bytes that are no frame."""
    exchange.send(b"garbage!" * 4)


def answer_as_http(exchange: Exchange) -> None:
    """Answer as a web server does."""
    exchange.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    exchange.hang_up()


def answer_emptily(exchange: Exchange) -> None:
    """Answer with nothing, where a message must have some fields."""
    exchange.answer(b"")


def answer_twice(exchange: Exchange) -> None:
    """Send the same answer two times."""
    data = exchange.encoded(exchange.carry_out())
    exchange.send(data)
    exchange.send(data)


def break_down(exchange: Exchange) -> None:
    """Answer with an exception."""
    exchange.answer(RaisedError("any.InvocationTargetException", ""))


def break_down_after(exchange: Exchange) -> None:
    """Carry the request out, and answer with an exception, as a broker that is stopping may do."""
    exchange.carry_out()
    name = chance.one_of(("any.InvocationTargetException", "corerpc.exception.ServiceStoppingException"))
    exchange.answer(RaisedError(name, ""))


def be_standby(exchange: Exchange) -> None:
    """Answer as a master that does not lead."""
    exchange.answer(RaisedError("corerpc.exception.StandbyException", "it is not master now."))


def be_another_server(exchange: Exchange) -> None:
    """Answer as a node that does not publish the service."""
    text = "No service 1 found in other service map"
    exchange.answer(RaisedError("corerpc.exception.ServiceNotExistsException", text, Status.FATAL))


LOST: Final[tuple[Fault, ...]] = (
    swallow,
    swallow_answer,
    hang_up,
    hang_up_after,
    stop_in_the_middle,
    answer_late,
    carry_out_late,
)
"""The answer does not come, or too late."""
WRONG: Final[tuple[Fault, ...]] = (answer_garbage, answer_emptily, answer_twice, break_down)
"""The answer is none."""
NONSENSE: Final[tuple[Fault, ...]] = (*WRONG, answer_as_http, be_standby, be_another_server)
"""What masters answer, or what stands where they stood."""
