"""The fuzz harness itself: the same seed sends the same, and a server that breaks is noticed."""

import random
import socket
from pathlib import Path

import pytest

from fuzz import corpus, embedded_frames, mutations, target
from fuzz.embedded_frames import Conversation, batch, fuzz, hold, load, main, save
from fuzz.target import BrokenError, Limits, running
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.framing import FrameDecoder
from tubemq_spark.protocol.rpc import decode_request

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


def test_what_broke_it_once_does_not_any_more():
    with running() as server:
        for case in CASES:
            hold(server, load(case))


def test_the_command_line_says_what_it_did(capsys):
    assert main(["--seed", "5", "--seconds", "0.1", "--frames", "300"]) == 0
    assert "seed 5" in (said := capsys.readouterr().out)
    assert "frames sent, the server bears them" in said
    assert main(["--seed", "5", "--seconds", "0.1", "--frames", "1000000"]) == 1
    assert "fewer than 1000000" in capsys.readouterr().err


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
    assert "the server bears it" in capsys.readouterr().out


def test_all_is_kept_when_no_conversation_is_guilty_alone(tmp_path):
    talks = [Conversation("broker", b"\0", 1), Conversation("master", b"\1\2", 2)]
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
        with pytest.raises(BrokenError, match="a good request got no good answer"):
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
        with pytest.raises(BrokenError, match=r"nobody expected: Traceback \(most"):
            server.check()
