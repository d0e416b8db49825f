"""Faults on demand: each does what it should, as often as it should, to nothing else."""

import threading
import time

import pytest

from testkit.connections import connected, submit_call
from tests.cases import in_one_test
from tests.embedded.wire import TIMEOUT_S
from tests.waiting import wait_until
from tubemq_spark.embedded.faults import refusal
from tubemq_spark.embedded.server import EmbeddedSettings
from tubemq_spark.errors import RemoteProtocolError, TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, OpType, ServiceType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.messages import MESSAGES
from tubemq_spark.protocol.pb import broker_pb2


@pytest.fixture
def connection(tubemq, closing):
    return dial(tubemq.broker, closing)


def dial(address, closing):
    return closing.enter_context(connected(Endpoint.parse(address), 3_000))


def send(connection, data=b"x", timeout_ms=10_000):
    return submit_call(connection, *_send_parts(data), timeout_ms=timeout_ms).result()


def codes(connection, count):
    return [send(connection).errCode for _ in range(count)]


def stored(server):
    return server.stats().messages_in


def in_background(closing, function, *arguments):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(function(*arguments)))
    closing.callback(thread.join)
    thread.start()

    def result():
        thread.join(TIMEOUT_S)
        return outcome[0] if outcome else None

    return result


def test_an_answer_is_what_is_asked_for_and_nothing_is_done(tubemq, connection):
    rule = tubemq.faults.answer(Method.SEND_MESSAGE, ErrCode.SERVICE_UNAVAILABLE, "gone fishing", times=1)
    answer = send(connection)
    assert (answer.success, answer.errCode, answer.errMsg) == (False, 503, "gone fishing")
    assert stored(tubemq) == 0
    assert rule.hits == 1
    assert send(connection).success


def test_a_request_can_be_carried_out_and_answered_as_if_it_had_failed(tubemq, connection):
    tubemq.faults.answer(Method.SEND_MESSAGE, ErrCode.INTERNAL_SERVER_ERROR, carried_out=True, times=1)
    assert codes(connection, 2) == [500, 200]
    assert stored(tubemq) == 2


@pytest.mark.parametrize(
    ("script", "expected", "hits"),
    [
        ({"times": 3}, [419, 419, 419, 200, 200], 3),
        ({"skip": 1}, [200, 419, 419, 419, 419], 4),
        ({}, [419] * 5, 5),
        ({"skip": 1, "times": 2}, [200, 419, 419, 200, 200], 2),
        ({"times": 0}, [200] * 5, 0),
    ],
)
def test_a_script_says_which_requests_are_meant(tubemq, connection, script, expected, hits):
    rule = tubemq.faults.answer(Method.SEND_MESSAGE, ErrCode.SERVER_RECEIVE_OVERFLOW, **script)
    assert codes(connection, 5) == expected
    assert rule.hits == hits


def test_rules_follow_each_other_and_count_what_is_left_for_them(tubemq, connection):
    first = tubemq.faults.answer(Method.SEND_MESSAGE, 503, times=2)
    second = tubemq.faults.answer(Method.SEND_MESSAGE, 419, skip=1, times=1)
    assert codes(connection, 5) == [503, 503, 200, 419, 200]
    assert (first.hits, second.hits) == (2, 1)


def test_only_the_method_that_is_meant_is_concerned(tubemq, broker):
    rule = tubemq.faults.answer(
        Method.PARTITION_REGISTER, 503, only=lambda asked: asked.opType == OpType.UNREGISTER
    )
    assert broker.register().success
    assert broker.try_send().success
    assert broker.unregister().errCode == 503
    assert rule.hits == 1


def test_a_function_that_fails_selects_no_request(tubemq, connection, caplog):
    rule = tubemq.faults.answer(Method.SEND_MESSAGE, 503, only=lambda asked: asked.noSuchField)
    assert send(connection).success
    assert rule.hits == 0
    assert "the function 'only' of a fault failed for a SEND_MESSAGE" in caplog.text


def test_a_request_that_does_not_parse_is_not_counted_and_answered_as_usual(tubemq, broker):
    rule = tubemq.faults.answer(Method.SEND_MESSAGE, 503, only=lambda _: True)
    (answer,) = broker.exchange((ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, b"\xff"))
    assert isinstance(answer, rpc.Failure)
    assert rule.hits == 0


def test_a_rule_ends_with_its_block(tubemq, connection):
    with tubemq.faults.answer(Method.SEND_MESSAGE, 503) as rule:
        assert send(connection).errCode == 503
        assert not rule.ended
    assert rule.ended
    assert send(connection).success


def test_clear_ends_all_rules_and_requests_take_the_straight_way_again(tubemq, connection):
    tubemq.faults.answer(Method.SEND_MESSAGE, 503)
    tubemq.faults.answer(Method.GET_MESSAGE, 503)
    tubemq.faults.become_standby()
    tubemq.faults.clear()
    assert send(connection).success


def test_without_rules_nothing_stands_between(tubemq, connection, monkeypatch):
    seen = []
    monkeypatch.setattr(type(tubemq.faults._rules), "_reply", lambda *_: seen.append(1))
    assert send(connection).success
    assert not seen


def test_after_its_last_hit_a_rule_is_out_of_the_way(tubemq, connection):
    tubemq.faults.answer(Method.SEND_MESSAGE, 503, times=1)
    codes(connection, 2)
    assert tubemq.faults._rules._rules == ()


@in_one_test("method", MESSAGES)
def test_every_method_has_a_refusal(method):
    answer = rpc.parse_message(MESSAGES[method].response, refusal(method, 503, "no"))
    assert (answer.errCode, answer.errMsg) == (503, "no")
    assert not getattr(answer, "success", False)


def test_a_refused_fetch_says_that_it_knows_no_offset():
    answer = rpc.parse_message(broker_pb2.GetMessageResponseB2C, refusal(Method.GET_MESSAGE, 503, ""))
    assert answer.currOffset == -1


def test_the_masters_methods_can_be_refused_too(tubemq, master):
    tubemq.faults.answer(Method.PRODUCER_REGISTER, 500, times=1)
    assert master.register_producer().errCode == 500
    assert master.register_producer().success


def test_a_delayed_request_is_late(tubemq, connection):
    tubemq.faults.delay(Method.SEND_MESSAGE, 100, times=1)
    began = time.monotonic()
    assert send(connection).success
    assert time.monotonic() - began >= 0.1


def test_others_go_on_while_one_is_delayed(tubemq, connection, closing):
    other = dial(tubemq.broker, closing)
    rule = tubemq.faults.delay(Method.SEND_MESSAGE, 600_000, times=1)
    late = in_background(closing, send, connection)
    assert rule.wait_for_hits()
    assert codes(other, 5) == [200] * 5
    assert stored(tubemq) == 5
    tubemq.faults.clear()
    assert late().success


def test_a_delay_longer_than_the_time_out_is_one(tubemq, connection):
    tubemq.faults.delay(Method.SEND_MESSAGE, 60_000, times=1)
    with pytest.raises(TubeMQTimeoutError):
        send(connection, timeout_ms=100)
    # The request has arrived and is carried out nevertheless, as by a slow server.
    assert stored(tubemq) == 0
    tubemq.faults.clear()
    while stored(tubemq) == 0:
        time.sleep(0.001)


def test_a_held_request_waits_for_its_release_and_others_go_on(tubemq, connection, closing):
    other = dial(tubemq.broker, closing)
    with tubemq.faults.hold(Method.SEND_MESSAGE, only=lambda asked: asked.data == b"held") as held:
        waiting = in_background(closing, send, connection, b"held")
        assert held.wait_for_hits()
        assert codes(other, 20) == [200] * 20
        assert stored(tubemq) == 20
        held.release()
        assert waiting().success
    assert stored(tubemq) == 21
    assert send(connection, b"held").success


def test_a_held_answer_belongs_to_a_request_that_was_carried_out(tubemq, connection, closing):
    with tubemq.faults.hold(Method.SEND_MESSAGE, carried_out=True) as held:
        waiting = in_background(closing, send, connection)
        assert held.wait_for_hits()
        while stored(tubemq) == 0:
            time.sleep(0.001)
    assert waiting().success
    assert stored(tubemq) == 1


def test_answers_before_a_held_one_are_sent(tubemq, closing):
    connection = dial(tubemq.broker, closing)
    with tubemq.faults.hold(Method.SEND_MESSAGE, skip=1) as held:
        pending = [submit_call(connection, *_send_parts(), timeout_ms=10_000) for _ in range(2)]
        assert pending[0].result().success
        assert held.wait_for_hits()
        assert not pending[1].done()
    assert pending[1].result().success


def _send_parts(data=b"x"):
    message = broker_pb2.SendMessageRequestP2B(
        clientId="producer-1", topicName="demo", partitionId=0, data=data, flag=0, checkSum=-1, sentAddr=0
    )
    return ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, message, broker_pb2.SendMessageResponseB2P


def test_waiting_for_hits_ends(tubemq):
    assert not tubemq.faults.hold(Method.SEND_MESSAGE).wait_for_hits(timeout_s=0.01)


@pytest.mark.parametrize("fault", ["hold", "delay"])
def test_the_server_closes_while_a_request_waits(start, closing, fault):
    server = start()
    connection = dial(server.broker, closing)
    more = {"delay_ms": 600_000} if fault == "delay" else {}
    rule = getattr(server.faults, fault)(Method.SEND_MESSAGE, times=1, **more)
    pending = submit_call(connection, *_send_parts(), timeout_ms=10_000)
    assert rule.wait_for_hits()
    server.faults.answer(Method.GET_MESSAGE, 503)
    server.close()  # far sooner than the delay: the test's own time-out watches
    pending.end()


def test_a_broker_stops_while_a_request_to_it_ends_a_rule(tubemq, connection):
    """The request removes the interceptors from all brokers, including this one."""
    asked, go_on = threading.Event(), threading.Event()

    def only(_request):
        asked.set()
        return not go_on.wait(TIMEOUT_S)

    tubemq.faults.answer(Method.SEND_MESSAGE, 500, times=1)
    tubemq.faults.answer(Method.SEND_MESSAGE, 500, only=only)
    assert send(connection).errCode == 500
    pending = submit_call(connection, *_send_parts(), timeout_ms=10_000)
    assert asked.wait(TIMEOUT_S)
    stopping = threading.Thread(target=tubemq.faults.stop_broker, args=(1,), daemon=True)
    stopping.start()
    wait_until(lambda: tubemq._nodes.get(1).broker is None)

    go_on.set()
    stopping.join(TIMEOUT_S)
    assert not stopping.is_alive()
    pending.end()


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_dropped_connection(tubemq, connection, closing, carried_out):
    other = dial(tubemq.broker, closing)
    tubemq.faults.drop_connection(Method.SEND_MESSAGE, times=1, carried_out=carried_out)
    with pytest.raises(TubeMQConnectionError):
        send(connection)
    assert connection.closed
    assert stored(tubemq) == int(carried_out)
    assert send(other).success


@pytest.mark.parametrize("keep_bytes", [None, 0, 3, 20])
def test_a_truncated_frame_ends_the_connection(tubemq, connection, closing, keep_bytes):
    tubemq.faults.truncate(Method.SEND_MESSAGE, keep_bytes, times=1)
    with pytest.raises(TubeMQConnectionError):
        send(connection)
    assert connection.closed
    assert stored(tubemq) == 1
    assert send(dial(tubemq.broker, closing)).success


def test_a_corrupt_frame_is_none(tubemq, connection):
    tubemq.faults.corrupt(Method.SEND_MESSAGE, times=1)
    with pytest.raises(TubeMQConnectionError, match="a frame starts with 0x007ff4fe"):
        send(connection)
    assert connection.closed


def test_a_byte_inside_an_answer_can_be_corrupt(tubemq, connection):
    tubemq.faults.corrupt(Method.SEND_MESSAGE, 16, times=1)
    with pytest.raises((TubeMQConnectionError, RemoteProtocolError)):
        send(connection)


def test_a_message_can_be_corrupt(tubemq, broker):
    broker.send(b"one", b"two")
    broker.register()
    rule = tubemq.faults.corrupt(Method.GET_MESSAGE, b"two", times=1)
    payloads = [message.payLoadData for message in broker.fetch().messages]
    assert payloads == [b"one", b"tw" + bytes([ord("o") ^ 0xFF])]
    assert rule.hits == 1


@pytest.mark.parametrize("at", [b"not there", 100_000, -100_000])
def test_an_answer_without_the_place_stays_as_it_is(tubemq, connection, at):
    tubemq.faults.corrupt(Method.SEND_MESSAGE, at)
    assert send(connection).success


def test_retention_takes_what_is_there(tubemq, broker):
    broker.send(*[b"x"] * 5)
    tubemq.faults.apply_retention("demo")
    answer = broker.register(currOffset=0)
    assert (answer.currOffset, answer.maxOffset) == (140, 140)


def test_lost_messages_offsets_are_used_again(tubemq, broker):
    first = broker.send(*[b"old %d" % number for number in range(5)])
    assert tubemq.faults.lose_messages("demo", 2) == 84
    assert broker.register().maxOffset == 84
    assert broker.drain() == [b"old 0", b"old 1", b"old 2"]
    assert broker.commit().currOffset == 84
    (again,) = broker.send(b"new")
    assert again.appendOffset == first[3].appendOffset
    assert again.messageId > first[-1].messageId
    assert broker.drain() == [b"new"]


def test_a_group_beyond_the_lost_end_is_moved_back(tubemq, broker):
    broker.send(*[b"x"] * 5)
    broker.register()
    assert len(broker.drain()) == 5
    tubemq.faults.lose_messages("demo", 3)
    assert broker.fetch().errCode == 411
    answer = broker.register()
    assert (answer.currOffset, answer.maxOffset) == (140, 56)
    assert broker.fetch().errCode == 404
    assert broker.commit().currOffset == 56


def test_messages_of_a_store_that_is_not_there_cannot_be_lost(tubemq):
    with pytest.raises(KeyError):
        tubemq.faults.lose_messages("demo", store=7)
    with pytest.raises(KeyError):
        tubemq.faults.lose_messages("nosuch")
    assert all(store == 0 for _, store in tubemq._state.stores.all())


def test_what_is_not_flushed_is_lost_by_default(tubemq, broker):
    broker.send(*[b"x"] * 5)
    assert tubemq.faults.lose_messages("demo") == 0
    broker.send(*[b"x"] * 3)
    tubemq._state.stores.open("demo", 0).flush()
    broker.send(*[b"x"] * 2)
    assert tubemq.faults.lose_messages("demo") == 84
    assert tubemq.faults.lose_messages("demo", 100) == 0


def test_a_store_with_lost_messages_opens_again(start, tmp_path, connect, caplog):
    server = start(tmp_path, settings=EmbeddedSettings(data_segment_bytes=500, index_segment_bytes=28 * 4))
    broker = connect(server)
    for number in range(20):
        broker.send(b"%d" % number)
    assert server.faults.lose_messages("demo", 9) == 11 * 28
    broker.send(b"new")
    server.close()
    again = connect(start(tmp_path))
    again.register(currOffset=0)
    assert again.drain() == [b"%d" % number for number in range(11)] + [b"new"]
    assert "not closed properly" not in caplog.text


def test_visit_tokens_expire(start, connect, closing):
    server = start(settings=EmbeddedSettings(check_visit_tokens=True))
    broker = connect(server)

    def code(token):
        info = {"authInfo": {"visitAuthorizedToken": token}}
        return broker.try_send(**info).errCode

    old = server._state.tokens.current
    assert code(old) == 200
    server.faults.expire_visit_tokens()
    assert code(old) == 415
    assert code(server._state.tokens.current) == 200


def test_forgotten_clients_have_to_register_again(tubemq, master):
    master.register_producer()
    master.register_consumer()
    tubemq.faults.forget_clients()
    assert master.producer_heartbeat().errCode == 411
    assert master.consumer_heartbeat().errCode == 411


def test_forgotten_leases_have_to_be_taken_again(tubemq, broker):
    broker.send(b"1", b"2")
    broker.register()
    assert len(broker.fetch().messages) == 2
    assert tubemq.faults.forget_leases("other") == 0
    assert tubemq.faults.forget_leases("demo", group="group") == 1
    assert broker.fetch(lastPackConsumed=True).errCode == 411
    assert broker.commit().errCode == 401
    assert broker.register().currOffset == 0


def test_leases_given_away_are_somebody_elses(tubemq, broker):
    broker.register()
    assert tubemq.faults.give_leases_away() == 1
    assert broker.fetch().errCode == 412
    assert broker.register().errCode == 410
    tubemq.faults.forget_leases()
    assert broker.register().success
