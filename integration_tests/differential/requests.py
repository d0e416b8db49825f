"""What is asked: sequences of calls by two clients of two groups, most of them sensible, some hostile."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from integration_tests.differential.calls import (
    BROKER,
    CLIENTS,
    DENSE,
    FILED_TOPICS,
    GROUPS,
    HISTORY_TOPIC,
    MAX_MESSAGE_BYTES,
    PARTITIONS,
    SHARED,
    WRONG_PLACES,
    Call,
    Place,
    Plain,
    known_layout,
)
from integration_tests.differential.hostile import misdirected, spoilt
from tubemq_spark.protocol.constants import Method, OpType, ServiceType
from tubemq_spark.protocol.payload import checksum

_USUALLY: Final = 4
"""So many times as often as the second client or group is the first one drawn: most calls must find what
others did."""
_HOST: Final = "10.1.2.3"
_TYPES: Final = ("red", "blue")
_ENTRY: Final = 28
_LARGE_BYTES: Final = 200_000
"""Three of these are more than one fetch returns."""
_EVERYTHING_VISIBLE: Final = 303
_ACTIVE_BLOCK_HIDDEN: Final = 202
"""Only in the last quarter of a sequence, as its comparison ends with a fetch of what the block holds."""

_clients = st.sampled_from((CLIENTS[0],) * _USUALLY + CLIENTS[1:])
_groups = st.sampled_from((GROUPS[0],) * _USUALLY + GROUPS[1:])
_topic_lists = st.lists(
    st.sampled_from((DENSE, SHARED, f" {DENSE} ", "nowhere", "", HISTORY_TOPIC)), max_size=3
) | st.just([DENSE])


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value, or None for a field that is not sent."""
    return st.none() | strategy


def _known(name: str) -> st.SearchStrategy[Plain]:
    """A number that stands for something the server told: the right one, or another."""
    return st.sampled_from(({"known": name}, -2, 0, 7))


@st.composite
def _call(
    draw: st.DrawFn, port: str, method: int, service: ServiceType, /, **fields: st.SearchStrategy[Plain]
) -> Call:
    """A call with these fields; one that is None is not sent."""
    drawn = {name: draw(strategy) for name, strategy in fields.items()}
    return Call(port, service, method, {name: value for name, value in drawn.items() if value is not None})


def _at_master(method: int, /, **fields: st.SearchStrategy[Plain]) -> st.SearchStrategy[Call]:
    return _call("master", method, ServiceType.MASTER, **fields)


def _at_broker(
    method: int, service: ServiceType, place: Place, /, **fields: st.SearchStrategy[Plain]
) -> st.SearchStrategy[Call]:
    topic, partition_id = place
    return _call(
        "broker",
        method,
        service,
        topicName=st.just(topic),
        partitionId=st.just(partition_id),
        clientId=_clients,
        **fields,
    )


_client_config = _maybe(st.fixed_dictionaries({"configId": _known("configId")}))
_conditions = st.lists(
    st.sampled_from(
        (f"{DENSE}#red", f"{DENSE}#red,blue", f"{SHARED}#blue", "nowhere#red", f" {DENSE}# red ")
    ),
    max_size=2,
)
_flow_ids = {"groupFlowCheckId": _maybe(st.just(-2)), "defFlowCheckId": _maybe(st.just(-2))}
_report = _maybe(
    st.fixed_dictionaries(
        {"brokerConfigId": _known("brokerConfigId"), "topicMetaInfoId": _known(known_layout(GROUPS[0]))},
        optional={
            "lstAssignedTime": st.sampled_from((-2, 0, 1_700_000_000_000)),
            "reportSubInfo": st.booleans(),
            "partSubInfo": st.lists(st.sampled_from((f"{DENSE}#1:0", f"{SHARED}#1:0,1:10001")), max_size=2),
        },
    )
)
_subscribed = st.lists(
    st.sampled_from([f"{CLIENTS[0]}@{GROUPS[0]}#1:{BROKER}#{topic}:0" for topic in (DENSE, SHARED)]),
    max_size=2,
)
_tasks = _maybe(st.fixed_dictionaries({}, optional={**{k: st.just(-2) for k in _flow_ids}}))

_producer_registers = _at_master(
    Method.PRODUCER_REGISTER,
    clientId=_clients,
    topicList=_topic_lists,
    brokerCheckSum=_known("brokerCheckSum"),
    hostName=st.just(_HOST),
    appdConfig=_client_config,
)
_balance_registers = _at_master(
    Method.BALANCE_REGISTER,
    clientId=_clients,
    groupName=_groups,
    hostName=st.just(_HOST),
    sourceCount=st.sampled_from((-2, -2, 2)),
    nodeId=st.sampled_from((-2, 0, 1, 2)),
    topicList=_topic_lists,
    topicCondition=_conditions,
    subRepInfo=_report,
    opsTaskInfo=_tasks,
)
_balanced_registers = _at_master(
    Method.CONSUMER_REGISTER,
    clientId=_clients,
    groupName=_groups,
    hostName=st.just(_HOST),
    topicList=_topic_lists,
    topicCondition=_conditions,
    subscribeInfo=_subscribed,
    requireBound=st.sampled_from((None, None, False, True)),
    sessionTime=_maybe(st.just(17)),
    sessionKey=st.sampled_from((None, "key", "key", "other", " ")),
    totalCount=st.sampled_from((None, -2, 0, 1, 2)),
    requiredPartition=st.sampled_from(
        (
            *(None, "", f"1:{DENSE}:0=28", f"1:{DENSE}:0=0,1:{SHARED}:10001=56"),
            *("nonsense", f"1:{DENSE}=28", f"1:{DENSE}:0=many", "1:nowhere:0=28"),
        )
    ),
    notAllocated=_maybe(st.booleans()),
    selectBig=_maybe(st.booleans()),
    qryPriorityId=_maybe(st.sampled_from((-2, 303))),
    **_flow_ids,
)


@st.composite
def _balanced_heartbeats(draw: st.DrawFn) -> Call:
    """A heartbeat whose event, if it has one, was none of the master's: balancing takes its time."""
    event = st.fixed_dictionaries(
        {}, optional={"rebalanceId": st.sampled_from((-2, 0)), "opType": st.just(10)}
    )
    return draw(
        _at_master(
            Method.CONSUMER_HEARTBEAT,
            clientId=_clients,
            groupName=_groups,
            reportSubscribeInfo=st.booleans(),
            subscribeInfo=_subscribed,
            event=_maybe(event),
            qryPriorityId=_maybe(st.sampled_from((-2, 303))),
            **_flow_ids,
        )
    )


MASTER_CALLS: Final[Sequence[st.SearchStrategy[Call]]] = (
    _producer_registers,
    _balance_registers,
    _at_master(
        Method.PRODUCER_HEARTBEAT,
        clientId=_clients,
        topicList=_topic_lists,
        brokerCheckSum=_known("brokerCheckSum"),
        hostName=st.just(_HOST),
        appdConfig=_client_config,
    ),
    _at_master(Method.PRODUCER_CLOSE, clientId=_clients),
    _at_master(
        Method.BALANCE_HEARTBEAT, clientId=_clients, groupName=_groups, subRepInfo=_report, opsTaskInfo=_tasks
    ),
    _at_master(
        Method.BALANCE_PARTITION_META,
        clientId=_clients,
        groupName=_groups,
        brokerConfigId=_known("brokerConfigId"),
        topicMetaInfoId=_known(known_layout(GROUPS[0])),
    ),
    _balanced_registers,
    _balanced_heartbeats(),
    _at_master(Method.CONSUMER_CLOSE, clientId=_clients, groupName=_groups),
)


@st.composite
def _sends(draw: st.DrawFn, place: Place) -> Call:
    hostile = st.sampled_from(({"text": "", "times": 0}, {"text": "L", "times": MAX_MESSAGE_BYTES + 1}))
    sound = st.integers(1, 40).map(lambda times: {"text": "m", "times": times})
    large = st.just({"text": "m", "times": _LARGE_BYTES})
    data = draw(draw(st.sampled_from((*(sound,) * 36, *(hostile,) * 3, large))))
    right = checksum(data["text"].encode() * data["times"])
    call = _at_broker(
        Method.SEND_MESSAGE,
        draw(st.sampled_from((ServiceType.BROKER_WRITE, ServiceType.BROKER_WRITE, ServiceType.BROKER_READ))),
        place,
        data=st.just(data),
        # Bit 0 would promise attributes, which these data do not have.
        flag=st.sampled_from((0, 0, 2, -2, 1)),
        checkSum=st.sampled_from((-1,) * 6 + (right, right ^ 1)),
        sentAddr=st.sampled_from((0, 1, -1_073_741_310)),
        msgType=_maybe(st.sampled_from((*_TYPES, " red ", "  "))),
        msgTime=_maybe(st.sampled_from(("202401020304", "nonsense"))),
    )
    return draw(call)


def _registers(place: Place) -> st.SearchStrategy[Call]:
    start = st.builds(
        lambda entries, rest: {"base": entries * _ENTRY + rest},
        st.integers(-3, 3),
        st.sampled_from((0, 0, 0, 5, -1)),
    )
    return _at_broker(
        Method.PARTITION_REGISTER,
        ServiceType.BROKER_READ,
        place,
        groupName=_groups,
        opType=st.sampled_from((OpType.REGISTER, OpType.REGISTER, OpType.UNREGISTER)),
        readStatus=st.sampled_from((0, 0, 1, 2, 3, -1)),
        currOffset=st.sampled_from((None, -1, 0, 1 << 40, -(1 << 63))) | start,
        filterCondStr=st.just([]) | st.lists(st.sampled_from((*_TYPES, " red", " ")), max_size=2),
        qryPriorityId=st.sampled_from(
            (_EVERYTHING_VISIBLE,) * 5 + (None, -2, 0, 101, _ACTIVE_BLOCK_HIDDEN, 301, 310, 999)
        ),
        sessionKey=_maybe(st.just("key")),
        sessionTime=_maybe(st.just(17)),
    )


@st.composite
def _broker_heartbeats(draw: st.DrawFn, places: Sequence[Place]) -> Call:
    held = [f"1:{BROKER}#{topic}:{partition_id}" for topic, partition_id in (*places, (DENSE, 0))]
    info = draw(
        st.lists(
            st.sampled_from((*held, *held, f"7:elsewhere:1#{DENSE}:0", f"1:{BROKER}#nowhere:0")), max_size=3
        )
    )
    return draw(
        _call(
            "broker",
            Method.PARTITION_HEARTBEAT,
            ServiceType.BROKER_READ,
            clientId=_clients,
            groupName=_groups,
            readStatus=st.sampled_from((0, 1)),
            partitionInfo=st.just(info),
            # Without a wish it takes back what the register said.
            qryPriorityId=st.sampled_from((_EVERYTHING_VISIBLE,) * 4 + (None, 301)),
        )
    )


def _fetches(place: Place) -> st.SearchStrategy[Call]:
    return _at_broker(
        Method.GET_MESSAGE,
        ServiceType.BROKER_READ,
        place,
        groupName=_groups,
        lastPackConsumed=_maybe(st.booleans()),
        manualCommitOffset=st.sampled_from((None, None, False, True)),
        escFlowCtrl=_maybe(st.booleans()),
    )


def _commits(place: Place) -> st.SearchStrategy[Call]:
    return _at_broker(
        Method.COMMIT_OFFSET,
        ServiceType.BROKER_READ,
        place,
        groupName=_groups,
        lastPackConsumed=_maybe(st.booleans()),
    )


def _broker_calls(places: Sequence[Place]) -> st.SearchStrategy[Call]:
    place = st.sampled_from(places)
    kinds: Sequence[Callable[[Place], st.SearchStrategy[Call]]] = (
        *(_sends,) * 3,
        *(_registers,) * 3,
        *(_fetches,) * 4,
        *(_commits,) * 2,
    )
    calls = st.sampled_from(kinds).flatmap(place.flatmap)
    return st.one_of(calls, calls, calls, calls, calls, _broker_heartbeats(places))


@st.composite
def _prologue(draw: st.DrawFn, places: Sequence[Place]) -> list[Call]:
    """A consumer and some messages: what most calls at a broker need before they can do anything."""
    registers = [
        draw(_registers(place)).with_fields(
            clientId=CLIENTS[0],
            groupName=GROUPS[0],
            opType=OpType.REGISTER,
            readStatus=0,
            # Not from the log's start: what hundreds of sequences sent takes its time to compare.
            currOffset={"base": draw(st.sampled_from((0, 0, -_ENTRY)))},
        )
        for place in places
    ]
    sends = draw(st.lists(st.sampled_from(places).flatmap(_sends), max_size=5))
    return draw(st.permutations(registers + sends))


@st.composite
def _introduction(draw: st.DrawFn) -> list[Call]:
    """A producer and a consumer, as what most calls at a master need."""
    producer = draw(_producer_registers).with_fields(clientId=CLIENTS[0], topicList=[DENSE])
    consumer = draw(st.sampled_from((_balance_registers, _balanced_registers)).flatmap(lambda calls: calls))
    consumer = consumer.with_fields(
        clientId=CLIENTS[0], groupName=GROUPS[0], topicList=[DENSE], topicCondition=[]
    )
    return draw(st.sampled_from(([producer], [consumer], [producer, consumer])))


@st.composite
def sequences(draw: st.DrawFn) -> list[Call]:
    """Some 5 to 25 calls that have much to do with each other."""
    places = draw(st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 5)) == 0:
        places.append(draw(st.sampled_from(WRONG_PLACES)))
    at_master = st.one_of(MASTER_CALLS)
    at_broker = _broker_calls(places)
    kind = draw(st.sampled_from(("master", "broker", "broker", "broker", "both")))
    sensible = {"master": at_master, "broker": at_broker, "both": at_master | at_broker}[kind]
    some = st.one_of(*(sensible,) * 10, spoilt(sensible), misdirected(sensible))
    size = draw(st.integers(4, 20))
    first = draw(_introduction() if kind == "master" else _prologue(places))
    calls = first + draw(st.lists(some, min_size=size, max_size=size))
    late = len(calls) * 3 // 4
    return [_visible(call) for call in calls[:late]] + calls[late:]


def _visible(call: Call) -> Call:
    """Return the call for a consumer that sees the active block, whose first fetch else parts the servers."""
    hidden = call.fields.get("qryPriorityId") == _ACTIVE_BLOCK_HIDDEN
    return call.with_fields(qryPriorityId=_EVERYTHING_VISIBLE) if hidden else call


_FILED_MESSAGES: Final = 900
_MOST_READING_ON: Final = 16
_BEGINNINGS: Final = 4
_FILED_PLACES: Final = tuple(
    (topic, 10_000 * store + index)
    for topic, (stores, partitions) in FILED_TOPICS.items()
    for store in range(stores)
    for index in range(partitions)
)


def filing() -> Iterator[Call]:
    """The messages of ``FILED_TOPICS``, always the same: of all partitions, types and sizes."""
    chance = random.Random(1)
    for _ in range(_FILED_MESSAGES):
        topic, partition_id = chance.choice(_FILED_PLACES)
        # Of the longer ones a few fill a fetch.
        size = chance.choice((1, 10, 40, 100, 100, 60_000) if chance.random() < 1 / 3 else (1, 10, 40))
        message_type = chance.choice((None, *_TYPES))
        fields: dict[str, Plain] = {
            "clientId": CLIENTS[0],
            "topicName": topic,
            "partitionId": partition_id,
            "data": {"text": "m", "times": size},
            "flag": 0,
            "checkSum": -1,
            "sentAddr": 0,
        }
        typed = {} if message_type is None else {"msgType": message_type}
        yield Call("broker", ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, fields | typed)


@st.composite
def reading_files(draw: st.DrawFn) -> list[list[Call]]:
    """A consumer of ``FILED_TOPICS`` that starts anywhere and reads on, and several that only begin.

    Reading on parts the servers soon, sometimes with its first call. Each of the others is two calls, which
    are compared in any case: with them, two fifths of all calls are.
    """
    return [draw(_reading(4, _MOST_READING_ON)), *(draw(_reading(1, 1)) for _ in range(_BEGINNINGS))]


@st.composite
def _reading(draw: st.DrawFn, least: int, most: int) -> list[Call]:
    """A consumer that registers a partition, starting anywhere, and what it asks then."""
    place = draw(st.sampled_from(_FILED_PLACES))
    start = draw(st.integers(0, _FILED_MESSAGES // 2)) * _ENTRY
    register = draw(_registers(place)).with_fields(
        clientId=CLIENTS[0],
        groupName=GROUPS[0],
        opType=OpType.REGISTER,
        currOffset=start,
        filterCondStr=draw(st.sampled_from(([], [], [_TYPES[0]], [*_TYPES], ["green"]))),
        qryPriorityId=draw(st.sampled_from((101, 202, 203, 301, _EVERYTHING_VISIBLE))),
    )
    mine = {"clientId": CLIENTS[0], "groupName": GROUPS[0]}
    fetches = _fetches(place).map(lambda call: call.with_fields(**mine))
    others = _commits(place).map(lambda call: call.with_fields(**mine)) | st.just(register)
    calls = st.one_of(fetches, fetches, fetches, others)
    return [register, *draw(st.lists(calls, min_size=least, max_size=most))]
