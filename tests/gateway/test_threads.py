"""A gateway has as many threads with much work as with none: what waits for a server is a coroutine."""

import contextlib

from testkit.gateway_process import GatewayProcess
from tests.gateway.fleet import ROW, attach, place, publish
from tests.gateway.running import PlainClient, tubemq
from tests.waiting import wait_until
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

_CLIENTS = 40
_GRPC_THREADS = 4
"""How many gRPC itself may begin when there is more to do."""


def test_ranges_questions_and_consumers_that_wait_for_a_broker_begin_no_threads():
    with (
        tubemq(demo=(1, 1)) as server,
        GatewayProcess(server.master, web=server.master_web) as served,
        contextlib.ExitStack() as stack,
    ):
        clients = [
            stack.enter_context(PlainClient(served.address, f"client{number}")) for number in range(_CLIENTS)
        ]
        for client in clients:
            client.open(group=client.session.client_id)
        for value in (b"one", b"two"):
            publish(clients[0], "demo", value)
        for client in clients:
            assert attach(client, "demo", 2)[0].WhichOneof("result") == "offset"
        clients[0]("ReadRange", partition=place("demo"), start=0, end=ROW, own_store=True)
        before = served.threads
        server.faults.freeze_broker(1)
        ranges = [
            client.method("ReadRange")(
                client.request("ReadRange", partition=place("demo"), start=0, end=2 * ROW, own_store=True),
                timeout=30,
            )
            for client in clients
        ]
        store = pb.Store(topic="demo", broker_id=1)
        questions = [
            client.method("QueryBounds").future(client.request("QueryBounds", stores=[store]), timeout=30)
            for client in clients
        ]
        wait_until(lambda: clients[0]("DescribeGateway").open_reads == _CLIENTS)
        assert served.threads <= before + _GRPC_THREADS
        for call in [*ranges, *questions]:
            call.cancel()
        wait_until(lambda: clients[0]("DescribeGateway").open_reads == 0)
        server.faults.start_broker(1)
