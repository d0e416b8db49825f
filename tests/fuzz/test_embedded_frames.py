"""The fuzzer itself: the same seed sends the same requests, and a broken server is noticed."""

import contextlib
import json
import random
import re
import socket
import threading
from pathlib import Path

import pytest

from fuzz import corpus, credentials, embedded_frames, mutations, target, web
from fuzz.embedded_frames import Conversation, batch, fuzz, hold, load, main, save
from fuzz.target import BrokenError, Limits, running
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.framing import FrameDecoder
from tubemq_spark.protocol.messages import MESSAGES
from tubemq_spark.protocol.pb import broker_pb2, common_pb2, master_pb2
from tubemq_spark.protocol.rpc import decode_request

pytestmark = pytest.mark.process

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


def test_the_same_seed_sends_the_same():
    assert list(batch(7, 3)) == list(batch(7, 3))
    assert list(batch(7, 3)) != list(batch(7, 4))
    assert list(batch(7, 3)) != list(batch(8, 3))
    assert sum(talk.frames for talk in batch(7, 3, 100)) == 100


def test_every_method_is_among_the_requests_to_begin_with():
    made = corpus.made(random.Random(1))
    assert {seed.method for seed in made} == set(Method)
    assert {seed.port for seed in corpus.recorded()} == {"master", "broker"}


@pytest.mark.parametrize("change", mutations.IN_THE_FRAME, ids=lambda change: change.__name__)
def test_what_is_damaged_inside_is_a_whole_frame(change):
    chance = random.Random(change.__name__)
    for number, seed in enumerate(corpus.made(chance) + corpus.recorded()):
        (frame,) = FrameDecoder().receive_data(change(seed, number, chance))
        assert frame.serial_no == number


@pytest.mark.parametrize("change", mutations.OF_THE_FRAME, ids=lambda change: change.__name__)
def test_what_is_damaged_outside_is_something_else(change):
    chance = random.Random(change.__name__)
    frames = [seed.frame(1) for seed in corpus.made(chance)]
    assert sum(change(frame, chance) != frame for frame in frames) > len(frames) / 2


def test_the_stream_is_the_request():
    for seed in corpus.made(random.Random(2)):
        request = decode_request(1, mutations.stream_of(seed, seed.body))
        assert (request.service, request.method, request.body) == (seed.service, seed.method, seed.body)


def test_a_server_bears_some_hundred_frames():
    with running() as server:
        hold(server, list(batch(20, 1, 600)))
        assert server.growth_mb < Limits().growth_mb


def test_one_batch_of_three_is_for_a_server_that_demands_logins():
    for number, secured in enumerate((False, False, True, False, False, True)):
        assert {talk.secured for talk in batch(7, number, 50)} == {secured}


def test_what_clients_show_is_right_half_of_the_time():
    chance = random.Random(4)
    seeds = [seed for _ in range(30) for seed in corpus.made(chance)]
    right = wrong = 0
    for seed in credentials.shown(seeds, chance):
        message = MESSAGES[seed.method].request.FromString(seed.body)
        if "authInfo" in message.DESCRIPTOR.fields_by_name:
            info = message.authInfo
            broker = isinstance(info, common_pb2.AuthorizedInfo)
            visited = not broker or info.visitAuthorizedToken == credentials.VISIT_TOKEN
            shown = info.authAuthorizedToken if broker else info.authorizedToken
            right += (sound := visited and shown == credentials.TOKEN)
            wrong += not sound
    assert right + wrong > 300
    assert 0.8 < right / wrong < 1.25


def answer_of(server, port, service, method, message, answer_type):
    """Return the server's answer to one valid frame."""
    seed = corpus.Seed(port, service, method, message.SerializeToString())
    (frame,) = FrameDecoder().receive_data(server.exchange(port, seed.frame(1)))
    return rpc.parse_message(answer_type, rpc.decode_answer(frame.serial_no, frame.stream).body)


@pytest.mark.parametrize(("token", "code"), [(credentials.TOKEN, 200), ("x", 415)], ids=["right", "wrong"])
def test_what_is_right_goes_through_and_what_is_wrong_does_not(token, code):
    """One server for each, because the visit token in frames is that of the server."""
    register = master_pb2.RegisterRequestP2M(
        clientId="c",
        topicList=["fuzz_one"],
        brokerCheckSum=-1,
        hostName="127.0.0.1",
        authInfo=common_pb2.MasterCertificateInfo(authorizedToken=token),
    )
    info = common_pb2.AuthorizedInfo(visitAuthorizedToken=credentials.VISIT_TOKEN, authAuthorizedToken=token)
    message = broker_pb2.SendMessageRequestP2B(
        clientId="c",
        topicName="fuzz_one",
        partitionId=0,
        data=b"x",
        flag=0,
        checkSum=-1,
        sentAddr=0,
        authInfo=info,
    )
    with running(secured=True) as server:
        registered = answer_of(
            server,
            "master",
            ServiceType.MASTER,
            Method.PRODUCER_REGISTER,
            register,
            master_pb2.RegisterResponseM2P,
        )
        sent = answer_of(
            server,
            "broker",
            ServiceType.BROKER_WRITE,
            Method.SEND_MESSAGE,
            message,
            broker_pb2.SendMessageResponseB2P,
        )
    assert (registered.errCode, sent.errCode) == (code, code)


def test_a_server_that_demands_logins_bears_some_hundred_frames():
    with running(secured=True) as server:
        hold(server, list(batch(20, 2, 300)))


@pytest.mark.parametrize("secured", [False, True], ids=["usual", "with logins"])
def test_what_broke_the_server_once_does_not_any_more(secured):
    cases = [talks for talks in map(load, CASES) if talks[0].secured is secured]
    with running(secured=secured) as server:
        for talks in cases:
            hold(server, talks)


@pytest.mark.nightly
def test_the_command_line_says_what_it_did(capsys):
    assert main(["--seed", "5", "--seconds", "0.1", "--frames", "300"]) == 0
    assert "seed 5" in (said := capsys.readouterr().out)
    assert "frames sent; the server survived" in said
    assert main(["--seed", "5", "--seconds", "0.1", "--frames", "1000000"]) == 1
    assert "fewer than 1000000" in capsys.readouterr().err


@pytest.mark.nightly
def test_what_breaks_the_server_is_saved_and_can_be_sent_again(tmp_path, monkeypatch, capsys):
    check = target.Target.check

    def failing(self):
        check(self)
        raise BrokenError("it hurts")

    monkeypatch.setattr(target.Target, "check", failing)
    with pytest.raises(BrokenError, match=r"it hurts\nsaved as .*seed3_batch0.json"):
        fuzz(3, 5, tmp_path, Limits())
    (path,) = tmp_path.iterdir()
    assert load(path) == list(batch(3, 0))[:1], "the first conversation breaks it alone"
    assert main(["--replay", str(path)]) == 1
    monkeypatch.undo()
    assert main(["--replay", str(path)]) == 0
    assert "the server survived" in capsys.readouterr().out


@pytest.mark.nightly
def test_what_breaks_only_a_server_that_has_had_more_is_told(tmp_path, monkeypatch):
    checks = 0
    check = target.Target.check

    def failing(self):
        nonlocal checks
        checks += 1
        check(self)
        if checks == 2:
            raise BrokenError("it hurts")

    monkeypatch.setattr(target.Target, "check", failing)
    with pytest.raises(BrokenError, match=r"it hurts\na new server survives batch 1 of seed 3 alone"):
        fuzz(3, 30, tmp_path, Limits())
    (path,) = tmp_path.iterdir()
    assert load(path) == list(batch(3, 1)), "all of the batch"
    assert "--seed 3" in path.read_text()


def test_a_busy_machine_has_more_time_for_the_wanted_frames(tmp_path, monkeypatch):
    held = []
    monkeypatch.setattr(embedded_frames, "hold", lambda _target, talks: held.append(talks))
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(embedded_frames.time, "monotonic", clock)
    monkeypatch.setattr(embedded_frames, "running", lambda *_, **__: contextlib.nullcontext(Idle()))
    assert fuzz(3, 2.0, tmp_path, Limits(), frames=1500) == 1500
    assert fuzz(3, 2.0, tmp_path, Limits()) == 300
    assert fuzz(3, 0.5, tmp_path, Limits(), frames=1_000_000) == 2700, "its patience ends"


class Idle:
    """No server at all."""

    growth_mb = 0.0

    def reopen(self):
        pass

    def measure_growth_from_now(self):
        pass


def test_memory_can_be_looked_at_from_a_warm_start_on():
    with running() as server:
        server._memory = 0
        assert server.growth_mb > 10
        server.measure_growth_from_now()
        assert server.growth_mb < 5


def test_all_is_kept_when_no_conversation_is_guilty_alone(tmp_path, monkeypatch):
    talks = [Conversation("broker", b"\0", 1), Conversation("master", b"\1\2", 2, secured=True)]
    monkeypatch.setattr(embedded_frames, "_breaks", lambda some: len(some) == 2)
    assert embedded_frames.guilty(talks) == talks
    assert load(save(tmp_path / "new", "name", "why", talks)) == talks


def test_a_server_that_ended_is_noticed():
    with running() as server:
        server._process.kill()
        server._process.wait()
        with pytest.raises(BrokenError, match="the server ended with -9"):
            server.check()
        with pytest.raises(BrokenError, match="cannot be reached"):
            server.exchange("broker", b"x")


def test_a_server_that_answers_no_more_is_noticed():
    with running(Limits(answer_s=0.5)) as server:
        server._usage.suspend()
        with pytest.raises(BrokenError, match="did not close a connection"):
            server.exchange("master", b"x")
        with pytest.raises(BrokenError, match="a valid request was not answered correctly"):
            server.check()


def test_leaks_and_exceptions_are_noticed(monkeypatch):
    monkeypatch.setattr(target, "_SETTLE_S", 0.1)
    with running() as server:
        server.check()
        address = server.addresses["broker"]
        held = [socket.create_connection((address.host, address.port)) for _ in range(8)]
        with pytest.raises(BrokenError, match=r"\d+ threads, \d+ at the start"):
            server.check()
        for connected in held:
            connected.close()
        monkeypatch.setattr(target, "_SETTLE_S", 5)
        server.check()
        server._memory -= 1 << 30
        with pytest.raises(BrokenError, match="resident memory grew by"):
            server.check()
        server._errors.write_text("x\nTraceback (most recent call last):\n oh", encoding="utf-8")
        with pytest.raises(BrokenError, match=r"an unexpected exception: Traceback \(most"):
            server.check()


def test_all_ports_are_tried():
    ports = {talk.port for number in range(3) for talk in batch(7, number)}
    assert ports == set(target.PORTS)


def test_web_requests_are_sound_or_damaged_and_name_all_calls():
    chance = random.Random(3)
    requests = [web.request(chance) for _ in range(3000)]
    sound = [
        request for request in requests if request.startswith((b"GET /webapi.htm?", b"POST /webapi.htm "))
    ]
    assert len(sound) > 2000
    methods = {match[1].decode() for request in requests if (match := re.search(rb"method=(\w+)", request))}
    assert methods >= set(web._CALLS)
    with running() as server:
        known = json.loads(
            server.exchange("master_web", b"GET /?method=admin_get_methods HTTP/1.1\r\n\r\n").partition(
                b"\r\n\r\n"
            )[2]
        )
    assert {item["method"] for item in known["data"]} <= set(web._CALLS)


def test_conversations_are_held_at_the_same_time():
    """The first ones end only when all of them have started."""
    all_there = threading.Barrier(embedded_frames._AT_ONCE, timeout=20)

    class Meeting:
        def exchange(self, _port, _data):
            all_there.wait()

        def check(self):
            pass

    hold(Meeting(), [Conversation("broker", b"", 1)] * 2 * embedded_frames._AT_ONCE)


def test_a_killed_server_is_reopened_with_what_it_acknowledged():
    with running() as server:
        before = dict(server._ends)
        server.reopen()
        server.check()
        assert server._ends.keys() == before.keys()
        assert all(server._ends[place] > end for place, end in before.items())


@pytest.mark.nightly
def test_a_lost_message_is_noticed():
    with running() as server:
        server.check()
        server.kill()
        data = server._errors.parent / "data"
        for path in (data / "stores").rglob("*.*"):
            path.unlink()
        with pytest.raises(BrokenError, match=r"continues at 0, but \d+ was acknowledged before"):
            server._start()


@pytest.mark.nightly
def test_the_server_is_killed_every_so_often(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded_frames, "_REOPENED_EVERY", 1)
    reopened = []

    def note(self):
        reopened.append(self)

    monkeypatch.setattr(target.Target, "reopen", note)
    fuzz(3, 0.5, tmp_path, Limits())
    assert len(set(reopened)) == 2, "both servers"
