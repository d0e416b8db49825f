"""The fuzzer of the compiled module notices what it is there for."""

import random

import pytest

from fuzz import speedups as fuzzing
from testkit.compiler import can_compile
from tubemq_spark.protocol import speedups

compiled = pytest.importorskip("tubemq_spark.protocol._speedups", exc_type=ImportError)


class Forgetful:
    """A twin that says that no message is damaged."""

    outline_fetch = staticmethod(compiled.outline_fetch)
    gather = staticmethod(compiled.gather)

    @staticmethod
    def scan_fetch(body, count):
        found = compiled.scan_fetch(body, count)
        return found and (found[0], bytes(count))


@pytest.fixture
def inputs(tmp_path):
    """Answers as brokers write them, one with a damaged message."""
    made = fuzzing.seeds(random.Random(1))
    damaged = bytearray(made[-1])
    # Behind the last payload stand the flag and currOffset, each with its tag.
    damaged[-5] ^= 1
    for number, body in enumerate([*made, damaged]):
        (tmp_path / str(number)).write_bytes(body)
    return sorted(tmp_path.iterdir())


def test_twins_that_are_equal_agree(inputs):
    assert fuzzing.disagreements(inputs) == []


def test_a_twin_that_overlooks_damage_is_found_out(inputs, monkeypatch):
    monkeypatch.setattr(speedups, "compiled", Forgetful)
    assert fuzzing.disagreements(inputs)


@pytest.mark.process
@pytest.mark.skipif(not can_compile(), reason="needs a C compiler with sanitizers")
def test_a_second_of_fuzzing_reaches_new_code_and_finds_nothing(tmp_path):
    program, corpus = fuzzing.build(tmp_path), tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes(fuzzing.seeds(random.Random(1))[2])

    assert fuzzing.run(program, seconds=1, seed=7, corpus=corpus) == 0
    assert len(list(corpus.iterdir())) > 5
