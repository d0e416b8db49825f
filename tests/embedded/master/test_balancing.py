"""Who should have which partitions, and the events that bring them there: evenly, each once, few moves."""

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from testkit.examples import examples
from tests.cases import in_one_test
from tubemq_spark.embedded.master.balancing import (
    EventType,
    GroupEvents,
    MemberEvent,
    assign_named,
    members_needed,
    spread,
)
from tubemq_spark.model import TopicPartition


def parts(*numbers):
    return frozenset(TopicPartition("demo", 1, number) for number in numbers)


partition_sets = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.just(1), st.integers(0, 12)), max_size=20
)
holdings = st.dictionaries(st.sampled_from("abcdefg"), partition_sets, max_size=7)


@given(holdings, partition_sets)
def test_every_partition_goes_to_one_member_and_the_numbers_are_even(held, partitions):
    wanted = spread(held, partitions)
    assert wanted.keys() == held.keys()
    given_out = [partition for parts_of in wanted.values() for partition in parts_of]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == (partitions if held else frozenset())
    numbers = [len(parts_of) for parts_of in wanted.values()]
    assert not numbers or max(numbers) - min(numbers) <= 1


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=24))
def test_no_more_moves_than_needed(count, owners):
    """Each member keeps what it may keep, and loses only what it has beyond its share."""
    names = [f"m{number}" for number in range(count)]
    partitions = parts(*range(len(owners)))
    held = {
        name: parts(*(number for number, owner in enumerate(owners) if owner == place))
        for place, name in enumerate(names)
    }
    wanted = spread(held, partitions)
    lost = sum(len(held[name] - wanted[name]) for name in names)
    share, extra = divmod(len(partitions), count)
    by_load = sorted((len(mine) for mine in held.values()), reverse=True)
    least = sum(max(0, load - share - (place < extra)) for place, load in enumerate(by_load))
    assert lost == least
    assert spread(wanted, partitions) == wanted, "an even group is left alone"


@in_one_test(
    ("held", "partitions", "shares"),
    [
        ({"a": parts(), "b": parts()}, parts(*range(5)), {"a": parts(0, 1, 2), "b": parts(3, 4)}),
        ({"a": parts(0, 1, 2), "b": parts()}, parts(*range(6)), {"a": parts(0, 1, 2), "b": parts(3, 4, 5)}),
        ({"a": parts(*range(4)), "b": parts()}, parts(*range(4)), {"a": parts(0, 1), "b": parts(2, 3)}),
        ({"a": parts(0), "b": parts(0)}, parts(0), {"a": parts(0), "b": parts()}),
        ({"a": parts(0, 7)}, parts(0), {"a": parts(0)}),
        ({"a": parts(0, 7)}, parts(), {"a": parts()}),
    ],
)
def test_who_gets_free_partitions_and_those_that_others_have(held, partitions, shares):
    assert spread(held, partitions) == shares


def test_listed_partitions_go_to_who_listed_them():
    listed = (
        dict.fromkeys(parts(0, 1), "a") | dict.fromkeys(parts(2, 9), "b") | dict.fromkeys(parts(3), "gone")
    )
    assert assign_named(listed, ["a", "b", "c"], parts(0, 1, 2, 3)) == {
        "a": parts(0, 1),
        "b": parts(2),
        "c": frozenset(),
    }


@in_one_test(
    ("brokers", "members", "rate", "needed"),
    [
        (1, 1, 1000, None),
        (1000, 1, 1000, None),
        (1001, 1, 1000, 2),
        (2000, 1, 1000, 2),
        (2001, 2, 1000, None),
        (7, 1, 3, 3),
        (7, 2, 3, None),
        (8, 2, 3, 3),
        (9, 2, 3, 3),
    ],
)
def test_how_many_members_a_group_needs(brokers, members, rate, needed):
    assert members_needed(brokers, members, rate) == needed


PATIENCE = 3


ALL = parts(*range(6))


@pytest.fixture
def group():
    return GroupEvents()


def balance(group, rebalance_id, partitions=ALL):
    assert group.begin_round(PATIENCE)
    group.plan(spread(group.holdings(), partitions), rebalance_id)


def answer(group, member, event):
    """Finish an event, like a client."""
    held = group.held(member)
    held = held - event.partitions if event.disconnects else held | event.partitions
    group.record_heartbeat(member, held, event.rebalance_id)


def test_a_member_that_comes_with_partitions_counts_at_once(group):
    group.join("a", parts(0))
    assert group.holdings() == {"a": parts(0)}
    group.join("a")
    assert group.held("a") == parts(0), "to register again without a list changes nothing"


def test_the_list_of_an_answer_is_the_truth(group):
    """A connect that failed in part is answered as finished; the report says what was connected."""
    group.join("a")
    group.record_heartbeat("a")
    balance(group, 1)
    event = group.next_event("a")
    group.record_heartbeat("a", parts(0, 1), event.rebalance_id)
    assert group.held("a") == parts(0, 1)
    balance(group, 2)
    assert group.next_event("a") == MemberEvent(2, EventType.ONLY_CONNECT, parts(2, 3, 4, 5))


def test_an_answer_without_a_list_is_taken_at_its_word(group):
    group.join("a", ALL)
    group.join("b")
    group.record_heartbeat("b")
    balance(group, 5)
    event = group.next_event("a")
    group.record_heartbeat("a", None, 5)
    assert group.held("a") == ALL - event.partitions
    connect = group.next_event("b")
    group.record_heartbeat("b", None, 5)
    assert group.held("b") == connect.partitions


def test_who_gives_and_takes_gets_two_events_of_one_id(group):
    group.join("a", parts(0, 1, 2, 9))
    group.join("b", frozenset(parts(3)))
    assert group.begin_round(PATIENCE)
    group.plan({"a": parts(0, 1, 4), "b": parts(3)}, 7)
    assert group.next_event("a") == MemberEvent(7, EventType.DISCONNECT, parts(2, 9))
    group.record_heartbeat("a", parts(0, 1), 7)
    assert group.next_event("a") == MemberEvent(7, EventType.CONNECT, parts(4))


def test_events_end_with_their_member(group):
    group.join("a", ALL)
    group.join("b")
    group.record_heartbeat("b")
    balance(group, 1)
    assert group.next_event("a").disconnects
    group.leave("a")
    assert group.next_event("b").partitions == parts(3, 4, 5)


def test_stuck_events_are_given_up_after_so_many_rounds(group):
    group.join("a")
    group.record_heartbeat("a")
    balance(group, 1)
    assert group.next_event("a")
    assert [group.begin_round(PATIENCE) for _ in range(PATIENCE + 1)] == [False] * PATIENCE + [True]
    group.plan(spread(group.holdings(), ALL), 2)
    assert group.next_event("a") == MemberEvent(2, EventType.ONLY_CONNECT, ALL), "told again"


def test_an_answer_in_time_starts_the_patience_anew(group):
    group.join("a")
    group.record_heartbeat("a")
    for number in range(1, 4):
        balance(group, number, parts(*range(number)))
        event = group.next_event("a")
        assert [group.begin_round(PATIENCE) for _ in range(PATIENCE)] == [False] * PATIENCE
        answer(group, "a", event)


def test_what_a_stuck_member_may_have_is_given_to_no_other(group):
    group.join("a")
    group.record_heartbeat("a")
    balance(group, 1, parts(0))
    group.next_event("a")
    for _ in range(PATIENCE):
        group.begin_round(PATIENCE)
    group.join("b")
    group.record_heartbeat("b")
    balance(group, 2, parts(0))
    assert group.next_event("b") is None
    group.record_heartbeat("a", frozenset())
    assert group.next_event("b") is None, "it may be about to take it"
    assert group.next_event("a") == MemberEvent(2, EventType.ONLY_CONNECT, parts(0))
    group.record_heartbeat("a", frozenset(), 2)
    assert group.holdings() == {"a": frozenset(), "b": frozenset()}


def test_the_answer_to_a_disconnect_says_nothing_of_the_connect_after_it(group):
    """What a member may have connected by an abandoned event stays its own until it answers."""
    group.join("a", parts(0))
    balance(group, 1, parts(0, 1))
    assert group.next_event("a").partitions == parts(1)
    for _ in range(PATIENCE):
        group.begin_round(PATIENCE)
    group.join("b", parts(2))
    assert group.begin_round(PATIENCE)
    # "a" is to give 0 up and to take 1; "b" has to give 2 up before anybody may take anything.
    group.plan({"a": parts(1, 2), "b": parts(0)}, 2)
    group.record_heartbeat("a", None, group.next_event("a").rebalance_id)
    assert group.next_event("a") is None, "b has given up nothing"
    assert group.holdings()["a"] == parts(1)


def test_the_answer_to_an_event_that_was_given_up_is_none_to_the_next(group):
    group.join("a")
    group.record_heartbeat("a")
    balance(group, 1, parts(0))
    first = group.next_event("a")
    for _ in range(PATIENCE):
        group.begin_round(PATIENCE)
    balance(group, 2, parts(0))
    second = group.next_event("a")
    group.record_heartbeat("a", frozenset(), first.rebalance_id)
    assert not group.begin_round(PATIENCE)
    group.record_heartbeat("a", parts(0), second.rebalance_id)
    assert group.begin_round(PATIENCE)


def test_a_partition_that_turns_up_elsewhere_is_left_out_of_a_connect(group):
    """A member from before the master's restart returns while its partitions are being assigned."""
    group.join("a")
    group.record_heartbeat("a")
    balance(group, 1, parts(0, 1))
    group.join("b", parts(1))
    assert group.next_event("a") == MemberEvent(1, EventType.ONLY_CONNECT, parts(0))
    group.join("c")
    group.record_heartbeat("c")
    group.record_heartbeat("a", parts(0), 1)
    assert [group.next_event(member) for member in "abc"] == [None] * 3


def test_an_event_of_which_nothing_is_left_is_no_event(group):
    group.join("a")
    group.record_heartbeat("a")
    balance(group, 1, parts(1))
    group.join("b", parts(1))
    assert group.next_event("a") is None
    assert group.begin_round(PATIENCE)


class GroupMachine(RuleBasedStateMachine):
    """Clients that are slow, fail to connect, leave and return, compared with what they really hold."""

    def __init__(self):
        super().__init__()
        self.group = GroupEvents()
        self.really = {}
        self.todo = {}
        self.answers = {}
        self.rebalance_id = 0
        self.partitions = ALL

    names = st.sampled_from("abcd")

    @rule(name=names)
    def join(self, name):
        if name not in self.really:
            self.group.join(name)
            self.really[name] = set()

    @rule(name=names)
    def leave(self, name):
        """Close, or time out: the brokers have ended the leases as well."""
        for table in (self.really, self.todo, self.answers):
            table.pop(name, None)
        self.group.leave(name)

    @rule(name=names, fails=st.booleans())
    def work(self, name, fails):
        """Finish an event; a connect may fail for all partitions but the first."""
        event = self.todo.pop(name, None)
        if event is None:
            return
        if event.disconnects:
            self.really[name] -= event.partitions
        else:
            wanted = sorted(event.partitions)
            self.really[name] |= set(wanted[:1] if fails else wanted)
        self.answers[name] = event.rebalance_id

    @rule(name=names, full=st.booleans())
    def heartbeat(self, name, full):
        if name not in self.really:
            return
        answered = self.answers.pop(name, 0)
        # An answer always has a report, a report sometimes has no answer.
        held = frozenset(self.really[name]) if full or answered else None
        if name in self.todo:
            held = None if not full else held
        self.group.record_heartbeat(name, held, answered)
        event = self.group.next_event(name)
        if event is not None:
            # A client forgets its present event when it gets another one.
            self.todo[name] = event
            self.answers.pop(name, None)

    @rule(count=st.integers(0, 6))
    def change_topic(self, count):
        self.partitions = parts(*range(count))

    @rule()
    def round(self):
        self.rebalance_id += 1
        if self.group.begin_round(1):
            self.group.plan(spread(self.group.holdings(), self.partitions), self.rebalance_id)

    @invariant()
    def nobody_holds_what_another_holds(self):
        held = [partition for mine in self.really.values() for partition in mine]
        assert len(held) == len(set(held)), self.really

    def teardown(self):
        """If all members finish their events, the group becomes even, and stays so."""
        for _ in range(PATIENCE + 4):
            self.round()
            for _ in range(6):
                for name in list(self.really):
                    self.work(name, False)
                    self.heartbeat(name, True)
        if self.really:
            numbers = [len(mine) for mine in self.really.values()]
            assert sum(numbers) == len(self.partitions)
            assert max(numbers) - min(numbers) <= 1


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
