"""The simulation of many clients, with few of them: every figure is there, and nobody was left out."""

import pytest

from benchmarks.gateway_scale import measure, parser

FEW = ["--sessions", "60", "--consumers", "12", "--calls", "40", "--seconds", "0.5"]


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(300)
def test_few_clients_go_through_all_of_it(tmp_path):
    found = measure(parser().parse_args(FEW), tmp_path)
    assert found["of them refused, %"] == 100
    assert (found["sessions"], found["consumers"], found["loss: clients that move at once"]) == (60, 12, 30)
    assert found["overload: refused afterwards"] == 0
    assert all(value >= 0 for value in found.values())
