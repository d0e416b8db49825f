"""What a client may rely on when its newer session was opened, or its session was closed."""

import asyncio
from types import SimpleNamespace

import pytest

from tubemq_spark.gateway.policy import NO_CALLER
from tubemq_spark.gateway.query.control import Control
from tubemq_spark.gateway.session.sessions import Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

SECRET = b"the secret of a test"


class SlowCall:
    """A call that has something to end when it was told to."""

    def __init__(self):
        self.told = asyncio.Event()

    def end(self, _):
        self.told.set()


class Calls:
    draining = False


class Consuming:
    async def closed(self, *_):
        """Return at once: there is no consumer."""


@pytest.mark.parametrize("how", ["open", "close"])
def test_the_end_of_a_session_is_answered_when_its_calls_have_ended(how):
    settings = GatewaySettings(master_servers=(Endpoint("m", 8715),), node_name="g1")
    sessions = Sessions(settings)
    upstream = SimpleNamespace(access=lambda _: object())
    control = Control(settings, sessions, upstream, None, Calls(), Consuming())
    older = pb.OpenSessionRequest(client_id="twin", epoch=1, secret=SECRET)
    newer = pb.OpenSessionRequest(client_id="twin", epoch=2, secret=SECRET)
    call = SimpleNamespace(
        peer="peer",
        client="",
        caller=NO_CALLER,
        ref=pb.SessionRef(client_id="twin", epoch=1, secret=SECRET),
    )

    async def end():
        await control.open_session(older, call)
        slow = SlowCall()
        with call.session.during(slow):
            ending = control.open_session(newer, call) if how == "open" else control.close_session(None, call)
            answer = asyncio.ensure_future(ending)
            await slow.told.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not answer.done()
        await answer

    asyncio.run(end())
