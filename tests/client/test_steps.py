"""Rules as steps, carried out in a thread; and the lock that rules and threads share."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given, settings, strategies as st

from tests.waiting import wait_until
from tubemq_spark.client.steps import AtMost, Blocking, PartitionLock, advance, run, wait_for

SECONDS = 20


def settled(value):
    future = Future()
    future.set_result(value)
    return future


def failing(error):
    def fail():
        raise error

    return Blocking(fail)


def test_a_rule_gets_what_it_waits_for():
    def rule():
        first = yield from wait_for(settled(20))
        return first + (yield from wait_for(Blocking(lambda: 22)))

    assert run(rule()) == 42


def test_a_rule_gets_the_error_that_came_instead():
    def rule():
        with pytest.raises(ZeroDivisionError):
            yield from wait_for(failing(ZeroDivisionError()))
        yield from wait_for(failing(KeyError("passed on")))

    with pytest.raises(KeyError, match="passed on"):
        run(rule())


def test_a_rule_can_be_carried_out_step_by_step():
    done = settled(1)

    def rule():
        return (yield from wait_for(done))

    steps = rule()
    assert advance(steps, None) is done
    with pytest.raises(StopIteration) as end:
        advance(steps, done)
    assert end.value.value == 1


def test_a_lock_goes_to_those_who_wait_in_their_order():
    lock, order = PartitionLock(), []
    assert lock.try_take()
    assert not lock.try_take()
    with ThreadPoolExecutor(5) as pool:
        for number in range(5):

            def take(number=number):
                with lock:
                    order.append(number)

            pool.submit(take)
            wait_until(lambda: len(lock._line) == number + 1)  # noqa: B023
        assert order == []
        lock.release()
    assert order == list(range(5))
    assert lock.try_take()


def test_a_waiter_that_gives_up_a_lock_is_passed_over():
    lock = PartitionLock()
    assert lock.try_take()
    first, second = lock.take(), lock.take()
    first.send(None)
    ticket = second.send(None)
    first.close()
    lock.release()
    assert ticket.done()
    with pytest.raises(StopIteration):
        second.send(None)
    assert not lock.try_take()


def test_a_waiter_that_gives_up_when_the_lock_is_its_own_passes_it_on():
    lock = PartitionLock()
    assert lock.try_take()
    first = lock.take()
    first.send(None)
    lock.release()
    assert not lock.try_take(), "it is the first one's"
    first.close()
    assert lock.try_take()


@settings(max_examples=20, deadline=None)
@given(rounds=st.lists(st.integers(1, 50), min_size=2, max_size=5))
def test_a_lock_is_held_by_one_thread_at_a_time(rounds):
    lock, inside, total = PartitionLock(), [], []

    def work(count):
        for _ in range(count):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                inside.pop()
                total.append(1)

    threads = [threading.Thread(target=work, args=(count,)) for count in rounds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(total) == sum(rounds)
    assert lock.try_take()


def test_a_future_is_waited_for_so_long_at_most():
    pending, told = Future(), threading.Event()
    assert AtMost(settled(None), 60).result()
    assert not AtMost(pending, 0.01).result()
    threading.Timer(0.01, pending.set_exception, [KeyError("an error ends it too")]).start()
    in_the_end = AtMost(pending, 60)
    in_the_end.when_done(told.set)
    assert 30 < in_the_end.remaining_s <= 60
    assert in_the_end.result()
    assert told.wait(5)
