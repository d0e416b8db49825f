"""Server-balanced groups over the wire: registers, events, bound starts, permissions, flow control."""

import collections
import contextlib
import time

import pytest

from tests.embedded.wire import MasterClient
from tubemq_spark.embedded.config.controls import ClusterSetting, ConsumeControl, GroupControl, TopicControl
from tubemq_spark.embedded.server import EmbeddedSettings, TopicSpec
from tubemq_spark.protocol.packed_strings import parse_subscribe_info

QUICK = EmbeddedSettings(balance_period_ms=10)
DEADLINE_S = 10


class Client:
    """A consumer that finishes each event before its next heartbeat, like a Java client."""

    def __init__(self, master, name, group="group"):
        self.master, self.name, self.group = master, name, group
        self.held = set()
        self.answered = None
        self.events = []

    def join(self, **fields):
        return self.master.join_group(self.name, self.group, held=sorted(self.held), **fields)

    def beat(self):
        answer = self.master.group_heartbeat(self.name, self.group, sorted(self.held), self.answered)
        self.answered = None
        if answer.HasField("event"):
            self.carry_out(answer.event)
        return answer

    def carry_out(self, event):
        self.events.append((event.opType, len(event.subscribeInfo)))
        if event.opType in (1, 10):
            self.held |= set(event.subscribeInfo)
        else:
            self.held -= set(event.subscribeInfo)
        self.answered = event

    @property
    def numbers(self):
        return sorted(parse_subscribe_info(text).held.partition_id for text in self.held)


def until(done, *clients):
    """Send heartbeats of clients until a condition is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, [(client.name, client.numbers) for client in clients]
        for client in clients:
            if client.beat().errCode == 411:
                # On a busy machine it may be silent for too long. Like a Java client, it registers again.
                client.join()
        time.sleep(0.01)


def settled(*clients):
    """Send heartbeats of clients for some rounds, and check that nothing moves."""
    before = [client.numbers for client in clients]
    for _ in range(8):
        for client in clients:
            client.beat()
        time.sleep(0.02)
    assert [client.numbers for client in clients] == before


@pytest.fixture
def start_master(start, closing):
    def start_it(settings=QUICK, **arguments):
        server = start(settings=settings, **arguments)
        return server, closing.enter_context(MasterClient(server.master))

    return start_it


@pytest.fixture
def cluster(start_master):
    return start_master(topics={"demo": (2, 2), "other": (1, 1)})


@pytest.fixture
def quick(cluster):
    return cluster[1]


# --- who gets what


def brokers_of(*clients):
    """Return how many partitions of each broker the clients hold together."""
    parts = [parse_subscribe_info(text).held for client in clients for text in client.held]
    return collections.Counter(part.broker_id for part in parts)


def test_partitions_of_all_brokers_are_dealt_out(start_master):
    server, master = start_master(brokers=3)
    server.add_topic("demo", 2, 1)
    one, two = Client(master, "one"), Client(master, "two")
    for client in (one, two):
        client.join()
    until(lambda: (len(one.held), len(two.held)) == (3, 3), one, two)
    settled(one, two)
    assert not one.held & two.held
    assert brokers_of(one, two) == {1: 2, 2: 2, 3: 2}
    endpoints = {
        str(parse_subscribe_info(text).held.endpoint) for client in (one, two) for text in client.held
    }
    assert endpoints == set(server.brokers.values()), "each with the address of its broker"


def test_partitions_of_a_broker_that_is_given_up_are_taken_away_and_come_back(start_master):
    server, master = start_master(EmbeddedSettings(balance_period_ms=10, broker_timeout_ms=0), brokers=3)
    one = Client(master, "one")
    one.join()
    until(lambda: len(one.held) == 3, one)
    server.faults.stop_broker(2)
    until(lambda: len(one.held) == 2, one)
    assert brokers_of(one) == {1: 1, 3: 1}
    server.faults.start_broker(2)
    until(lambda: len(one.held) == 3, one)
    assert brokers_of(one) == {1: 1, 2: 1, 3: 1}


def test_partitions_of_a_silent_broker_stay_until_it_is_given_up(start_master):
    server, master = start_master(brokers=2)
    one = Client(master, "one")
    one.join()
    until(lambda: len(one.held) == 2, one)
    server.faults.freeze_broker(2)
    settled(one)
    assert brokers_of(one) == {1: 1, 2: 1}


def test_partitions_of_a_broker_that_is_added_are_dealt_out(start_master):
    server, master = start_master()
    one = Client(master, "one")
    one.join()
    until(lambda: len(one.held) == 1, one)
    server.add_topic("demo", brokers=[server.add_broker()])
    until(lambda: len(one.held) == 2, one)
    assert brokers_of(one) == {1: 1, 2: 1}


def test_a_group_with_too_few_members_for_its_brokers_gets_nothing(start_master):
    server, master = start_master(brokers=3)
    server._state.controls.set_group("group", GroupControl(allowed_broker_client_rate=1), "me")
    members = [Client(master, "one")]
    members[0].join()
    settled(*members)
    assert not members[0].held
    members.append(Client(master, "two"))
    members[1].join()
    until(lambda: sum(len(member.held) for member in members) == 3, *members)


def test_a_member_gets_all_partitions(cluster):
    server, master = cluster
    one = Client(master, "one")
    answer = one.join()
    assert (answer.success, answer.errCode, answer.errMsg) == (True, 200, "OK!")
    assert answer.notAllocated
    assert answer.authorizedInfo.visitAuthorizedToken > 0
    assert not answer.HasField("defFlowCheckId")
    assert list(answer.topicInfo) == []
    time.sleep(0.1)
    first = one.beat()
    assert not first.HasField("event"), "it counts from here on"
    assert first.notAllocated
    until(lambda: len(one.held) == 4, one)
    assert one.events == [(10, 4)]
    assert one.numbers == [0, 1, 10000, 10001]
    assert min(one.held) == f"one@group#1:{server.broker}#demo:0"
    assert one.answered.rebalanceId > 0
    assert not one.answered.HasField("status")
    after = one.beat()
    assert not after.notAllocated
    settled(one)


def test_two_members_share_and_the_second_waits_for_the_first(quick):
    one, two = Client(quick, "one"), Client(quick, "two")
    one.join()
    until(lambda: len(one.held) == 4, one)
    two.join()
    until(lambda: one.events[-1][0] == 20, one, two)
    assert one.answered is not None, "told, not said yet that it is done"
    for _ in range(5):
        assert not two.beat().HasField("event")
    until(lambda: len(two.held) == 2, one, two)
    assert (one.events, two.events) == ([(10, 4), (20, 2)], [(10, 2)])
    assert not one.held & {text.replace("two@", "one@") for text in two.held}
    settled(one, two)


@pytest.mark.parametrize("how", ["closes", "falls silent"])
def test_what_a_member_had_that_goes_is_dealt_out(start_master, how):
    settings = EmbeddedSettings(balance_period_ms=10, scan_period_ms=10, client_timeout_ms=300)
    _, master = start_master(settings, topics={"demo": (4, 1)})
    one, two = Client(master, "one"), Client(master, "two")
    one.join()
    two.join()
    until(lambda: len(one.held) == len(two.held) == 2, one, two)
    if how == "closes":
        assert master.close_consumer("two").success
    until(lambda: len(one.held) == 4, one)
    assert master.group_heartbeat("two").errCode == 411


def test_the_partitions_of_all_topics_count_together(quick):
    one, two = Client(quick, "one"), Client(quick, "two")
    one.join(topics=["demo", "other"])
    two.join(topics=["other", "demo"])
    until(lambda: sorted([len(one.held), len(two.held)]) == [2, 3], one, two)


def test_an_event_comes_once_and_again_when_it_is_given_up(start_master):
    settings = EmbeddedSettings(balance_period_ms=10, client_timeout_ms=1_000)
    _, master = start_master(settings)
    master.join_group("one")
    first = None
    deadline = time.monotonic() + DEADLINE_S
    while first is None and time.monotonic() < deadline:
        asked_at = time.monotonic()
        answer = master.group_heartbeat("one")
        first = answer.event if answer.HasField("event") else None
    answer = master.group_heartbeat("one")
    assert not answer.HasField("event")
    while not answer.HasField("event") and time.monotonic() < deadline:
        answer = master.group_heartbeat("one")
    assert time.monotonic() - asked_at >= 1, "not before a silent client would be forgotten"
    assert list(answer.event.subscribeInfo) == list(first.subscribeInfo)
    assert answer.event.rebalanceId > first.rebalanceId


def test_a_member_that_comes_back_keeps_what_it_has(start_master):
    """After a restart of the master: 411, register with the list, nothing moves."""
    server, master = start_master(topics={"demo": (2, 2)})
    one, two = Client(master, "one"), Client(master, "two")
    one.join()
    two.join()
    until(lambda: len(one.held) == len(two.held) == 2, one, two)
    for client in (one, two):
        client.beat()
    with server._master.state.lock:
        server._master.state.members.forget_all()
        answers = None
    for client in (one, two):
        answers = client.join()
        assert not answers.notAllocated
    one.events, two.events = [], []
    settled(one, two)
    assert (one.events, two.events) == ([], [])


def test_a_topic_that_grows_or_closes(start_master):
    server, master = start_master(topics={"demo": (1, 2)})
    one = Client(master, "one")
    one.join()
    until(lambda: len(one.held) == 2, one)
    server.add_topic("demo", stores=2, partitions=2)
    until(lambda: len(one.held) == 4, one)
    server._state.set_topic("demo", TopicSpec(2, 2, accept_subscribe=False))
    until(lambda: not one.held, one)
    assert one.events == [(10, 2), (10, 2), (20, 4)]


def test_with_the_group_a_topic_is_taken_from_goes_its_last_partition(cluster):
    server, master = cluster
    one = Client(master, "one")
    one.join(topics=["demo", "other"])
    until(lambda: len(one.held) == 5, one)
    server._state.controls.set_consume("group", "other", ConsumeControl(consume=False), "me")
    until(lambda: len(one.held) == 4, one)
    assert not [text for text in one.held if "#other:" in text]
    server._state.controls.set_consume("group", "other", ConsumeControl(consume=True), "me")
    until(lambda: len(one.held) == 5, one)


# --- what a register may say


BOUND = {"requireBound": True, "sessionKey": "k", "totalCount": 2}


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"client": ""}, 400, "Request miss necessary clientId data!"),
        ({"hostName": " "}, 400, "Request miss necessary hostName data!"),
        ({"group": ""}, 400, "Request miss necessary groupName data!"),
        ({"topics": []}, 400, "Request miss necessary subscribed topicList data!"),
        ({"topics": [" "]}, 400, "Request subscribed topicList data must not Blank!"),
        (
            {"topics": [f"t{n}" for n in range(1025)]},
            400,
            "Subscribed topicList size over max value, required",
        ),
        ({"topics": ["demo", "nosuch"]}, 431, "Requested topic [[nosuch]] not deployed!"),
        ({"topicCondition": ["other#a"]}, 400, "Filter's Topic not subscribed :[other]"),
        (
            BOUND | {"requiredPartition": "1:demo:0"},
            400,
            "[Parameter error] unformatted Partition-Offset value",
        ),
        (BOUND | {"sessionKey": ""}, 400, "[Parameter error] blank value of sessionKey!"),
        (BOUND | {"totalCount": 0}, 400, "[Parameter error] totalSourceCount must over zero!"),
        # The order of the checks.
        (
            {"topics": ["nosuch"], "topicCondition": ["other#a"]},
            431,
            "Requested topic [[nosuch]] not deployed!",
        ),
        (
            {"requireBound": True, "topicCondition": ["other#a"]},
            400,
            "[Parameter error] blank value of session",
        ),
    ],
)
def test_what_a_register_may_not_say(quick, fields, code, text):
    answer = quick.join_group(**fields)
    assert (answer.success, answer.errCode) == (False, code)
    assert answer.errMsg.startswith(text)


@pytest.mark.parametrize(
    ("first", "second", "code", "text"),
    [
        ({}, {}, 200, "OK!"),
        ({}, BOUND, 424, "using bound subscribe is inconsistency with other"),
        (BOUND, {}, 424, "using unbound subscribe"),
        ({}, {"topics": ["demo", "other"]}, 425, "existedTopics: [demo]"),
        ({}, {"topicCondition": ["demo#a"]}, 426, "topic without conditions"),
        ({"topicCondition": ["demo#a,b"]}, {"topicCondition": ["demo#b,a"]}, 200, "OK!"),
        ({"topicCondition": ["demo#a,b"]}, {"topicCondition": ["demo#a"]}, 426, "is {demo=[a, b]}"),
        (BOUND, BOUND, 200, "OK!"),
        (BOUND, {**BOUND, "sessionKey": "x"}, 427, "required is k, request is x"),
        (BOUND, {**BOUND, "selectBig": False}, 428, "required is true, request is false"),
        (BOUND, {**BOUND, "selectBig": True}, 200, "OK!"),
        (BOUND, {**BOUND, "totalCount": 3}, 429, "required is 2, request is 3"),
        (BOUND, {**BOUND, "sessionKey": "x", "selectBig": False, "totalCount": 3}, 427, "sessionKey"),
        (BOUND, {**BOUND, "selectBig": False, "totalCount": 3}, 428, "isSelectBig"),
        # Fields of bound groups do not matter to others.
        ({"sessionKey": "a"}, {"sessionKey": "b", "totalCount": 7, "selectBig": False}, 200, "OK!"),
    ],
)
def test_members_must_agree(quick, first, second, code, text):
    assert quick.join_group("one", **first).errCode == 200
    answer = quick.join_group("two", **second)
    assert answer.errCode == code
    assert text in answer.errMsg
    assert (quick.group_heartbeat("two").errCode == 200) is (code == 200)


def test_a_bound_group_says_that_it_will_have_enough_members_for_its_brokers(start_master):
    server, master = start_master(brokers=2)
    server._state.controls.set_group("group", GroupControl(allowed_broker_client_rate=1), "me")
    answer = master.join_group(**BOUND | {"totalCount": 1})
    assert (answer.success, answer.errCode) == (False, 400)
    assert "requires at least 2 clients" in answer.errMsg
    assert master.join_group(**BOUND).errCode == 200


def test_the_two_ways_of_balancing_do_not_mix(quick):
    assert quick.join_group("one").errCode == 200
    assert quick.register_consumer("two").errCode == 424
    assert quick.layout("one").errCode == 200, "the kind of a heartbeat is not looked at"
    quick.close_consumer("one")
    assert quick.register_consumer("two").errCode == 200
    assert quick.join_group("one").errCode == 424
    answer = quick.group_heartbeat("two", held=[])
    assert answer.errCode == 200
    assert not answer.HasField("event")


def test_who_is_not_there_has_to_register(quick):
    answer = quick.group_heartbeat("one")
    assert (answer.success, answer.errCode) == (False, 411)
    assert answer.errMsg == "Not found groupName group in holder!"
    quick.join_group("two")
    answer = quick.group_heartbeat("one")
    assert answer.errCode == 411
    assert answer.errMsg == (
        "Update consumer node exception:Invalid node id:one@group, you have to append node first!"
    )
    assert quick.group_heartbeat("").errCode == 400
    assert quick.group_heartbeat("one", " ").errCode == 400


def test_packed_texts_that_cannot_be_read_are_an_exception(quick):
    quick.join_group("one")
    for ask in (
        lambda: quick.group_heartbeat("one", held=["one@group#nonsense"]),
        lambda: quick.join_group("one", held=["nonsense"]),
        lambda: quick.join_group("one", topicCondition=["demo"]),
    ):
        with pytest.raises(AssertionError, match="InvocationTargetException"):
            ask()


# --- bound groups


def test_a_bound_group_waits_for_its_members_and_gets_what_it_listed(start_master):
    _, master = start_master(topics={"demo": (4, 1)})
    one, two = Client(master, "one"), Client(master, "two")
    assert one.join(**BOUND, requiredPartition="1:demo:0=56,1:demo:10000=28").notAllocated
    for _ in range(8):
        assert not one.beat().HasField("event")
        time.sleep(0.02)
    two.join(**BOUND, requiredPartition="1:demo:0=84,1:demo:99=0")
    until(lambda: one.held and two.held, one, two)
    assert (one.numbers, two.numbers) == ([10000], [0]), "the bigger offset wins"
    until(lambda: len(one.held) == len(two.held) == 2, one, two)
    assert not one.beat().notAllocated
    assert sorted(one.numbers + two.numbers) == [0, 10000, 20000, 30000]
    assert {"one": 10000 in one.numbers, "two": 0 in two.numbers} == {"one": True, "two": True}


def test_the_smaller_offset_wins_when_asked(start_master):
    _, master = start_master(topics={"demo": (2, 1)})
    one, two = Client(master, "one"), Client(master, "two")
    one.join(**BOUND, selectBig=False, requiredPartition="1:demo:0=28,1:demo:10000=28")
    two.join(**BOUND, selectBig=False, requiredPartition="1:demo:0=56,1:demo:10000=0")
    until(lambda: one.held and two.held, one, two)
    assert (one.numbers, two.numbers) == ([0], [10000])


def test_what_a_member_listed_that_goes_before_the_start_counts_no_more(start_master):
    _, master = start_master(topics={"demo": (2, 1)})
    one, two, three = Client(master, "one"), Client(master, "two"), Client(master, "three")
    one.join(**BOUND, requiredPartition="1:demo:0=56")
    one.beat()
    master.close_consumer("one")
    two.join(**BOUND, requiredPartition="1:demo:10000=0")
    three.join(**BOUND, requiredPartition="1:demo:0=0")
    until(lambda: two.held and three.held, two, three)
    assert (two.numbers, three.numbers) == ([10000], [0])


# --- rights


@contextlib.contextmanager
def guarded(server, *, control=None):
    server._state.controls.set_topic("demo", TopicControl(authorize=True), "me")
    if control is not None:
        server._state.controls.set_consume("group", "demo", control, "me")
    yield


ONLY_A_AND_B = ConsumeControl(filter=True, filter_conditions=("a", "b"))


@pytest.mark.parametrize(
    ("control", "conditions", "code", "text"),
    [
        (None, [], 450, "unAuthorizedTopics: [demo]"),
        (ConsumeControl(consume=False), [], 450, "unAuthorizedTopics: [demo]"),
        (ConsumeControl(), ["demo#x"], 200, "OK!"),
        (ConsumeControl(filter=True), ["demo#a"], 455, "not allowed to consume any data of topic demo"),
        (ONLY_A_AND_B, [], 455, "must set the filter"),
        (ONLY_A_AND_B, ["demo#a,x,y"], 455, "unAuthorized filter conditions {demo=[x, y]}"),
        (ONLY_A_AND_B, ["demo#b"], 200, "OK!"),
    ],
)
@pytest.mark.parametrize("join", ["join_group", "register_consumer"])
def test_rights(cluster, join, control, conditions, code, text):
    server, master = cluster
    with guarded(server, control=control):
        answer = getattr(master, join)(topicCondition=conditions)
        assert answer.errCode == code
        assert text in answer.errMsg


@pytest.mark.parametrize("join", ["join_group", "register_consumer"])
def test_without_the_switch_a_topic_is_open(cluster, join):
    server, master = cluster
    server._state.controls.set_consume("group", "demo", ConsumeControl(filter=True), "me")
    assert getattr(master, join)().errCode == 200


def test_a_group_that_balances_itself_sees_that_a_topic_is_disabled(cluster):
    server, master = cluster
    master.register_consumer(topics=["demo", "other"])
    before = master.layout()
    server._state.controls.set_consume("group", "demo", ConsumeControl(consume=False), "me")
    after = master.layout(layout=before.topicMetaInfoId)
    assert list(after.topicMetaInfoList) == ["demo#1:2:2:0", "other#1:1:1:1"]
    assert list(master.layout(layout=after.topicMetaInfoId).topicMetaInfoList) == []


# --- flow control


def test_flow_fields_come_to_those_who_ask(cluster):
    _, master = cluster
    for ask in (master.join_group, master.group_heartbeat):
        for known in ({"defFlowCheckId": -2}, {"groupFlowCheckId": -2}):
            answer = ask(**known)
            assert (answer.defFlowCheckId, answer.groupFlowCheckId, answer.qryPriorityId) == (-2, -2, -2)
            assert (answer.defFlowControlInfo, answer.groupFlowControlInfo) == (" ", " ")
            assert answer.ssdStoreId == -2
        assert not ask(qryPriorityId=-2).HasField("qryPriorityId")


def test_flow_rules_are_told_once(cluster):
    server, master = cluster
    controls = server._state.controls
    controls.set_cluster(ClusterSetting(flow_control=True, flow_rules="[1]"), "me")
    controls.set_group("group", GroupControl(flow_control=True, flow_rules="[2]", query_priority=202), "me")
    ids = {"defFlowCheckId": controls.cluster.flow_id, "groupFlowCheckId": controls.group("group").flow_id}
    for ask in (master.join_group, master.group_heartbeat):
        fresh = ask(defFlowCheckId=-2, groupFlowCheckId=-2)
        assert (fresh.defFlowControlInfo, fresh.groupFlowControlInfo) == ("[1]", "[2]")
        assert fresh.qryPriorityId == 202
        known = ask(**ids)
        assert (known.defFlowCheckId, known.groupFlowCheckId) == tuple(ids.values())
        assert (known.defFlowControlInfo, known.groupFlowControlInfo) == (" ", " ")
    controls.set_group("group", GroupControl(flow_control=False, query_priority=202), "me")
    answer = master.group_heartbeat(**ids)
    assert (answer.groupFlowCheckId, answer.qryPriorityId, answer.groupFlowControlInfo) == (-2, -2, " ")


def test_a_group_that_balances_itself_is_told_of_flow_rules(cluster):
    server, master = cluster
    controls = server._state.controls
    assert not master.register_consumer().opsTaskInfo.ListFields()
    controls.set_cluster(ClusterSetting(flow_control=True, flow_rules="[1]"), "me")
    controls.set_group("group", GroupControl(flow_control=True, flow_rules="[2]", query_priority=202), "me")
    told = master.consumer_heartbeat().opsTaskInfo
    assert (told.defFlowControlInfo, told.groupFlowControlInfo, told.qryPriorityId) == ("[1]", "[2]", 202)
    ids = {"defFlowCheckId": controls.cluster.flow_id, "groupFlowCheckId": controls.group("group").flow_id}
    known = master.register_consumer(opsTaskInfo=ids).opsTaskInfo
    assert (known.defFlowCheckId, known.groupFlowCheckId) == tuple(ids.values())
    assert not known.HasField("defFlowControlInfo")
    assert not known.HasField("groupFlowControlInfo")


def test_a_heartbeat_of_the_other_kind_takes_no_event_away(cluster):
    server, master = cluster
    member = Client(master, "one")
    member.join()
    member.beat()
    group = server._master.state.members.groups["group"]
    deadline = time.monotonic() + DEADLINE_S
    while group.events.begin_round(1_000_000):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # Its event is pending; a client-balanced member would not understand it.
    master.consumer_heartbeat("one", reportSubInfo=True)
    member.beat()
    assert member.events
