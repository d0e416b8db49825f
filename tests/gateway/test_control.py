"""What a client may rely on when a session of it has ended, and which bounds it gets."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from tests.gateway.fleet import ROW, place, publish
from tests.gateway.running import PlainClient, gateway
from tests.gateway.web_page import WebPage
from tests.waiting import wait_until
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.gateway.admission import ADMINISTRATION_THREADS
from tubemq_spark.gateway.control import ControlService
from tubemq_spark.gateway.policy import NO_CALLER
from tubemq_spark.gateway.sessions import Sessions
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


class ConsumeService:
    async def closed(self, *_):
        """Return at once: there is no consumer."""


@pytest.mark.parametrize("how", ["open", "close"])
def test_the_end_of_a_session_is_answered_when_its_calls_have_ended(how):
    settings = GatewaySettings(master_servers=(Endpoint("m", 8715),), node_name="g1")
    sessions = Sessions(settings)
    upstream = SimpleNamespace(access=lambda _: object())
    control = ControlService(settings, sessions, upstream, None, Calls(), ConsumeService())
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
        slow, session = [SlowCall() for _ in range(2)], call.session
        with session.during(slow[0]), contextlib.ExitStack() as second:
            second.enter_context(session.during(slow[1]))
            ending = control.open_session(newer, call) if how == "open" else control.close_session(None, call)
            answer = asyncio.ensure_future(ending)
            for each in slow:
                await each.told.wait()
            second.close()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not answer.done()
        await answer

    asyncio.run(end())


def test_bounds_are_those_of_what_is_on_the_disk_where_that_is_asked_for():
    """As a store is here: nothing of it is flushed."""
    store = pb.Store(topic="demo", broker_id=1)
    with (
        EmbeddedTubeMQ(topics={"demo": TopicSpec(flush_interval_ms=1 << 30)}, brokers=1) as server,
        gateway(server) as served,
        PlainClient(served.address) as client,
    ):
        client.open()
        publish(client, "demo", b"one", b"two")
        ends = [
            client("QueryBounds", stores=[store], flushed=flushed).answers[0].bounds.latest
            for flushed in (False, True)
        ]
    assert ends == [2 * ROW, 0]


@pytest.mark.parametrize(
    ("question", "fields"),
    [
        ("QueryBounds", {"stores": [pb.Store(topic="demo", broker_id=1)]}),
        ("QueryGroupPositions", {"partitions": [place("demo")]}),
        ("ResetOffsets", {"positions": [pb.PartitionOffset(partition=place("demo"), offset=0)]}),
        (
            "QueryFirstReadable",
            {
                "begins": [
                    pb.QueryFirstReadableRequest.Begin(
                        partition=place("demo"), bounds=pb.Bounds(earliest=0, latest=ROW)
                    )
                ]
            },
        ),
    ],
)
def test_a_question_whose_call_has_ended_keeps_no_thread_for_a_broker_that_hangs(question, fields):
    with (
        EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=1) as server,
        gateway(server, reads=1, publishes=1) as served,
        PlainClient(served.address, "gone") as gone,
        PlainClient(served.address, "next") as next_one,
    ):
        gone.open(rpc_timeout_ms=60_000)
        next_one.open()
        gone("QueryRoute", topics=["demo"])
        server.faults.freeze_broker(1)
        calls = [gone.begin(question, **fields, timeout=1) for _ in range(20)]
        assert {call.code().name for call in calls} <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
        assert next_one("QueryRoute", topics=["demo"]).partitions
        server.faults.start_broker(1)


def test_questions_over_http_keep_no_question_to_a_master_and_no_other_client_waiting():
    """A client's questions stand in its own line, and hold no place of those to masters and brokers."""
    with (
        EmbeddedTubeMQ(topics={"demo": (1, 1)}) as server,
        WebPage(500, held=True) as web,
        gateway(server, reads=1, publishes=1, master_web=(web.endpoint,)) as served,
        PlainClient(served.address, "many") as many,
        PlainClient(served.address, "few") as few,
    ):
        many.open()
        few.open()

        places = served.server._admission.questions.quota.limit
        first = [many.begin("ListTopics") for _ in range(places + ADMINISTRATION_THREADS)]
        wait_until(lambda: web.asked == ADMINISTRATION_THREADS)
        assert few("QueryRoute", topics=["demo"], timeout=5).partitions
        second = few.begin("ListTopics")
        wait_until(lambda: served.server._admission.waiting == places + 1)
        web.answers.release(ADMINISTRATION_THREADS + 2)
        assert second.exception().code().name == "UNAVAILABLE"
        assert sum(call.done() for call in first) < places
        for call in first:
            call.cancel()
