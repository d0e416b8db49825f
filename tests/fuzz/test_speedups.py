"""The fuzzer of the compiled module notices what it is there for."""

import random
import types

import pytest

from fuzz import speedups as fuzzing
from testkit.compiler import can_compile
from tubemq_spark.protocol import speedups

compiled = pytest.importorskip("tubemq_spark.protocol._speedups", exc_type=ImportError)


def overlook_damage(body, count):
    """Say that no message is damaged."""
    found = compiled.scan_fetch(body, count)
    return found and (found[0], bytes(count))


def unwrap_another_message(data):
    """Say that an answer has another message."""
    found = compiled.unwrap_answer(data)
    return found and (*found[:2], found[2][1:])


def miscount_answers(data, position, serial_nos, *others):
    """Say that one answer was to another message."""
    found = compiled.read_send_answers(data, position, serial_nos, *others)
    serial_nos[:1] += 1
    return found


def forget_a_byte(*columns):
    """Leave out the last byte."""
    wire = compiled.encode_sends(*columns)
    return wire and wire[:-1]


FAULTS = {
    "scan_fetch": overlook_damage,
    "unwrap_answer": unwrap_another_message,
    "read_send_answers": miscount_answers,
    "encode_sends": forget_a_byte,
}


@pytest.fixture
def inputs(tmp_path):
    """What the fuzzer begins with, and an answer with a damaged message."""
    made = fuzzing.seeds(random.Random(1))
    damaged = bytearray(fuzzing.fetch_answer(random.Random(1), 9))
    # Behind the last payload stand the flag and currOffset, each with its tag.
    damaged[-5] ^= 1
    for number, body in enumerate([*made, damaged]):
        (tmp_path / str(number)).write_bytes(body)
    return sorted(tmp_path.iterdir())


def test_twins_that_are_equal_agree(inputs):
    assert fuzzing.disagreements(inputs) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_twin_that_says_something_else_is_found_out(inputs, monkeypatch, name):
    faulty = types.SimpleNamespace(**vars(compiled) | {name: FAULTS[name]})
    monkeypatch.setattr(speedups, "compiled", faulty)
    assert fuzzing.disagreements(inputs)


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.skipif(not can_compile(), reason="needs a C compiler with sanitizers")
def test_a_second_of_fuzzing_reaches_new_code_and_finds_nothing(tmp_path):
    program, corpus = fuzzing.build(tmp_path), tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes(fuzzing.seeds(random.Random(1))[2])

    assert fuzzing.run(program, seconds=1, seed=7, corpus=corpus) == 0
    assert len(list(corpus.iterdir())) > 5
