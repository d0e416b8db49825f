"""TubeMQ's own Java clients, unchanged: the newest, and the newest and the oldest that were published alone.

They do on the embedded server what they do on the Java one. Every test looks at whole messages: each comes
once, from the partition it was sent to, with its id, body, attributes, type and time.
"""

import dataclasses
from contextlib import ExitStack

import pytest

from integration_tests.real.artifacts import VERSIONS
from integration_tests.real.java_client import (
    Bound,
    JavaClientError,
    Login,
    OutgoingMessage,
    ReceivedMessage,
    SentMessage,
    Subscription,
)
from integration_tests.real.java_consumers import collect, drain
from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import assert_same_rows
from integration_tests.rig.servers import USER, partitions
from testkit.connections import connected, submit_call
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import master_pb2

pytestmark = pytest.mark.timeout(180)

KINDS = ("push", "pull", "balance")
COUNT = 120
SHAPE = "2x3"
TYPES = ("red", "green", "blue", None)
WAIT_S = 60.0


@dataclasses.dataclass(frozen=True)
class Written:
    """A topic, and what was sent to it, with the broker's answer to each message."""

    topic: str
    messages: list[OutgoingMessage]
    answers: list[SentMessage]

    def rows(self):
        """Yield what is compared of all messages."""
        return map(row_of_sent, self.messages, self.answers)

    def from_offsets(self, offsets):
        """Yield what is compared of the messages that stand at or behind their partition's offset."""
        for message, answer in zip(self.messages, self.answers, strict=True):
            if answer.append_offset >= offsets[key(self.topic, answer)]:
                yield row_of_sent(message, answer)


def numbered(count, start=0):
    """Return messages of many sizes, each type in turn."""
    return [
        OutgoingMessage(
            body=b"%d:" % number + bytes(number * 97 % 3000),
            attributes={"n": str(number), "täg": "wörd 中"} if number % 3 else {},
            message_type=TYPES[number % len(TYPES)],
            message_time=f"20240229{number % 24:02d}30",
        )
        for number in range(start, start + count)
    ]


def row_of_sent(message, answer):
    """Return what is compared of a message that was sent."""
    return _row(message, answer.partition_id, answer.message_id)


def row_of_received(message):
    """Return what is compared of a message that came."""
    return _row(message, message.partition_id, message.message_id)


def row_with_broker(place: SentMessage | ReceivedMessage, row):
    """Return what is compared where there are several brokers."""
    return (place.broker_id, *row)


def _row(message, partition_id, message_id):
    attributes = tuple(sorted(message.attributes.items()))
    return (partition_id, message_id, message.body, attributes, message.message_type, message.message_time)


def key(topic: str, place: SentMessage | ReceivedMessage) -> str:
    """Return a partition's name as the Java clients write it."""
    return f"{place.broker_id}:{topic}:{place.partition_id}"


def keys(topic, shape=SHAPE):
    """Return the names of all partitions of a topic."""
    return {f"1:{topic}:{partition.removeprefix('1:')}" for partition in partitions(shape)}


@pytest.fixture(params=VERSIONS)
def client(request, java_clients):
    """A Java client of each version; see ``pytest_collection_modifyitems`` in ``conftest.py``."""
    return java_clients(request.param)


@pytest.fixture(scope="module")
def written(server, java_clients):
    """What the synchronous producer of a version has sent to a topic of its own."""
    by_version = {}

    def of(client):
        if client.version not in by_version:
            topic, messages = server.fresh_topic(SHAPE), numbered(COUNT)
            with client.producer(server.master, topic) as producer:
                by_version[client.version] = Written(topic, messages, producer.send_all(topic, messages))
        return by_version[client.version]

    return of


def subscription(server, client, topic, purpose, **more):
    """Return a subscription of a group of its own."""
    group = f"java_{purpose}_{client.version.replace('.', '_')}"
    return Subscription(server.master, topic, group, **more)


def consumer(client, kind, wanted, bound=None):
    """Give a consumer of any kind; a client-balance one still has to take its partitions."""
    if kind == "balance":
        return client.balance_consumer(wanted)
    return (client.push_consumer if kind == "push" else client.pull_consumer)(wanted, bound)


def collect_all(consumers, expected, topic):
    """Return what each consumer gets: as much as is expected, and whatever comes after it."""
    taken = collect(consumers, expected)
    for of_one, late in zip(taken, drain(consumers, keys(topic)), strict=True):
        of_one.extend(late)
    return taken


def read(client, kind, wanted, expected):
    """Return what is compared of the messages that a lone consumer gets."""
    with consumer(client, kind, wanted) as alone:
        if kind == "balance":
            alone.connect_all()
        (messages,) = collect_all([alone], expected, wanted.topic)
    return map(row_of_received, messages)


def register(wanted, **more):
    """Ask the master as a Java consumer does, which does not tell why it was refused; return the answer."""
    request = master_pb2.RegisterRequestC2M(
        clientId=f"{wanted.group}_raw",
        groupName=wanted.group,
        hostName="127.0.0.1",
        topicList=[wanted.topic],
        **more,
    )
    timeout_ms = int(WAIT_S * 1000)
    with connected(Endpoint.parse(wanted.master), timeout_ms) as connection:
        return submit_call(
            connection,
            ServiceType.MASTER,
            Method.CONSUMER_REGISTER,
            request,
            master_pb2.RegisterResponseM2C,
            timeout_ms=timeout_ms,
        ).result()


def wait_for(condition, what):
    wait_until(condition, timeout_s=WAIT_S, what=what, poll_s=0.02)


@pytest.mark.every_version
def test_synchronous_producer(server, client, written):
    """The broker's answers tell where each message stands, and all of them are there."""
    sent = written(client)

    assert {key(sent.topic, answer) for answer in sent.answers} == keys(sent.topic)
    assert len({answer.message_id for answer in sent.answers}) == COUNT
    for store in (0, 1):
        offsets = sorted(a.append_offset for a in sent.answers if a.partition_id // 10_000 == store)
        assert offsets == [28 * place for place in range(len(offsets))]
    assert server.stored(sent.topic) == COUNT


def test_asynchronous_producer(server, client):
    """Each message's callback gets the same answer as a producer that waits."""
    topic, messages = server.fresh_topic(), numbered(COUNT)
    with client.producer(server.master, topic) as producer:
        pending = [producer.send_async(topic, message) for message in messages]
        answers = [answer.result(WAIT_S) for answer in pending]

    assert sorted(answer.append_offset for answer in answers) == [28 * place for place in range(COUNT)]
    received = client.read_all(server.master, topic, "java_async", expected=COUNT)
    assert_same_rows(map(row_of_received, received), Written(topic, messages, answers).rows())


def test_topic_that_is_not_there_is_refused(server, client):
    """The master's routes have no such topic, so the client cannot publish it."""
    with (
        pytest.raises(JavaClientError, match="Publish topic failure"),
        client.producer(server.master, "unknown_topic"),
    ):
        pass


@pytest.mark.every_version
@pytest.mark.parametrize("kind", KINDS)
def test_lone_consumer_gets_every_message(server, client, written, kind):
    sent = written(client)

    received = read(client, kind, subscription(server, client, sent.topic, kind), COUNT)

    assert_same_rows(received, sent.rows())


@pytest.mark.parametrize("kind", KINDS)
def test_filtered_consumer_gets_its_types_only(server, client, written, kind):
    sent = written(client)
    wanted = [row for row in sent.rows() if row[4] in {"red", "blue"}]
    filtered = subscription(server, client, sent.topic, f"filter_{kind}", filters=("blue", "red"))

    received = read(client, kind, filtered, len(wanted))

    assert_same_rows(received, wanted)


def test_group_rebalances_when_one_joins_and_when_one_leaves(server, client):
    """A pull and a push consumer share a topic; the one that stays gets the rest, nothing twice."""
    topic = server.fresh_topic(SHAPE)
    wanted = subscription(server, client, topic, "rebalance")
    with ExitStack() as members:
        producer = members.enter_context(client.producer(server.master, topic))
        leaving = members.enter_context(client.pull_consumer(wanted))
        wait_for(lambda: leaving.partitions == keys(topic), "the first to hold all partitions")
        staying = members.enter_context(client.push_consumer(wanted))
        wait_for(lambda: len(staying.partitions) == len(leaving.partitions) == 3, "an even share")
        assert leaving.partitions | staying.partitions == keys(topic)

        first = Written(topic, messages := numbered(COUNT), producer.send_all(topic, messages))
        of_leaving, of_staying = collect_all([leaving, staying], COUNT, topic)
        assert {key(topic, m) for m in of_leaving}.isdisjoint(key(topic, m) for m in of_staying)
        assert_same_rows(map(row_of_received, of_leaving + of_staying), first.rows())

        leaving.close()
        rest = Written(topic, messages := numbered(COUNT, start=COUNT), producer.send_all(topic, messages))
        (of_staying,) = collect_all([staying], COUNT, topic)
        assert staying.partitions == keys(topic)
    assert_same_rows(map(row_of_received, of_staying), rest.rows())


def test_client_balance_consumers_hand_partitions_over(server, client, written):
    """A partition that one holds is refused to others; who takes it later goes on where the first stopped."""
    sent = written(client)
    wanted = subscription(server, client, sent.topic, "handover")
    with client.balance_consumer(wanted) as first, client.balance_consumer(wanted) as second:
        assert first.connect_all() == second.all_partitions() == keys(sent.topic)
        early = collect([first], COUNT // 2)[0]
        with pytest.raises(JavaClientError) as occupied, client.balance_consumer(wanted) as third:
            third.connect(min(third.all_partitions()))
        assert occupied.value.code == 410

        handed_over = sorted(first.partitions)[::2]
        for partition in handed_over:
            first.disconnect(partition)
            second.connect(partition)
        assert second.partitions == set(handed_over)
        first.close()
        second.connect_all()
        (late,) = collect_all([second], COUNT - len(early), sent.topic)

    assert_same_rows(map(row_of_received, early + late), sent.rows())


@pytest.mark.parametrize("take_larger", [True, False])
def test_bound_group_begins_at_the_given_offsets(server, client, written, take_larger):
    """Each member gets the partitions it names; where both name one, the larger or smaller offset counts."""
    sent = written(client)
    wanted = subscription(server, client, sent.topic, f"bound_{take_larger}")
    offsets = {key(sent.topic, answer): answer.append_offset for answer in sent.answers[COUNT // 2 :]}
    shared, *own = sorted(offsets)
    assert len(own) == 5
    begin, other = min(offsets[shared], 280), max(offsets[shared], 280)
    assert begin < other
    offsets[shared] = other if take_larger else begin
    named = [
        {p: offsets[p] for p in own[:2]} | {shared: begin},
        {p: offsets[p] for p in own[2:]} | {shared: other},
    ]

    pull_bound, push_bound = (Bound("session", 2, partition, take_larger) for partition in named)
    with client.pull_consumer(wanted, pull_bound) as pull, client.push_consumer(wanted, push_bound) as push:
        wait_for(lambda: pull.partitions | push.partitions == keys(sent.topic), "all partitions to be held")
        assert pull.partitions - {shared} == set(own[:2])
        assert push.partitions - {shared} == set(own[2:])
        due = list(sent.from_offsets(offsets))
        pulled, pushed = collect_all([pull, push], len(due), sent.topic)

    assert_same_rows(map(row_of_received, pulled + pushed), due)


def test_members_of_a_bound_group_must_agree(server, client, written):
    """Another session key is refused while the group has members."""
    sent = written(client)
    wanted = subscription(server, client, sent.topic, "disagree")
    with client.pull_consumer(wanted, Bound("one", 2, {})):
        with (
            pytest.raises(JavaClientError, match="Register to master failed"),
            client.pull_consumer(wanted, Bound("other", 2, {})),
        ):
            pass
        refused = register(wanted, requireBound=True, sessionKey="other", totalCount=2, selectBig=True)
        assert refused.errCode == ErrCode.CLIENT_INCONSISTENT_SESSIONKEY
        with client.pull_consumer(wanted, Bound("one", 2, {})):
            pass


def test_producer_proves_who_it_is(secured_server, client):
    """Without a login it may not register; with one it may."""
    with (
        pytest.raises(JavaClientError, match=r"Register producer failure.*userName is Blank"),
        client.producer(secured_server.master),
    ):
        pass
    with client.producer(secured_server.master, login=USER):
        pass


@pytest.mark.parametrize("secured_server", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
def test_producer_that_proved_itself_gets_no_token_of_the_java_master(secured_server, client):
    """The Java producer's heartbeats show nothing but that token, so it cannot publish."""
    with (
        pytest.raises(JavaClientError, match="Publish topic failure"),
        client.producer(secured_server.master, secured_server.topic, login=USER),
    ):
        pass


@pytest.mark.parametrize("secured_server", ["embedded"], indirect=True)
def test_producer_is_believed_with_the_right_password_only(secured_server, client):
    """The proof of the register lasts: for the master's routes, and at the broker."""
    before = secured_server.stored(secured_server.topic)
    with client.producer(secured_server.master, secured_server.topic, login=USER) as producer:
        producer.send_all(secured_server.topic, numbered(COUNT))
    assert secured_server.stored(secured_server.topic) == before + COUNT

    with (
        pytest.raises(JavaClientError, match=r"Register producer failure.*password is not correct"),
        client.producer(secured_server.master, login=Login(USER.user, "wrong")),
    ):
        pass


@pytest.mark.parametrize("login", [None, USER], ids=["unknown", "known"])
@pytest.mark.parametrize("kind", KINDS)
def test_consumer_that_proves_nothing_is_refused(secured_server, client, kind, login):
    """The Java consumers prove who they are when they are asked to, which is after they have registered."""
    group = Subscription(secured_server.master, secured_server.topic, f"secured_{kind}", login=login)
    refusal = "code 415.*userName is Blank" if kind == "balance" else "Register to master failed"
    with pytest.raises(JavaClientError, match=refusal), consumer(client, kind, group):
        pass
    answer = register(group)
    assert answer.errCode == ErrCode.CERTIFICATE_FAILURE
    assert "userName is Blank" in answer.errMsg


@pytest.mark.parametrize("kind", KINDS)
def test_messages_on_three_brokers_of_the_embedded_server(java_clients, kind):
    """The newest client sends to all brokers, and a consumer of each kind gets everything back."""
    client = java_clients(VERSIONS[0])
    stores = {f"{broker}:wide:{store}" for broker in (1, 2, 3) for store in (0, 10_000)}
    messages, answers = [], []
    with EmbeddedTubeMQ(topics={"wide": (2, 1)}, brokers=3) as server:
        with client.producer(server.master, "wide") as producer:
            # It prefers brokers it is connected to already, and connects while it sends.
            for _ in range(20):
                messages += numbered(COUNT, start=len(messages))
                answers += producer.send_all("wide", messages[len(answers) :])
                if {key("wide", answer) for answer in answers} == stores:
                    break
        wanted = Subscription(server.master, "wide", f"three_{kind}")
        with consumer(client, kind, wanted) as alone:
            if kind == "balance":
                alone.connect_all()
            (received,) = collect([alone], len(messages))

    assert {key("wide", answer) for answer in answers} == stores
    assert_same_rows(
        map(row_with_broker, received, map(row_of_received, received)),
        map(row_with_broker, answers, map(row_of_sent, messages, answers)),
    )
