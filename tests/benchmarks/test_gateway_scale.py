"""The simulation of many clients, with few of them: every figure is there, and every client was served."""

import pytest

from benchmarks.gateway_scale import measure, parser

FEW = ["--sessions", "60", "--consumers", "12", "--calls", "40", "--seconds", "0.5"]


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(300)
def test_few_clients_go_through_all_of_it(tmp_path):
    figures = measure(parser().parse_args(FEW), tmp_path)
    assert figures["of them refused, %"] == 100
    assert (figures["sessions"], figures["consumers"]) == (60, 12)
    assert figures["loss: clients that move at once"] == 30
    assert figures["overload: refused afterwards"] == 0
    assert all(value >= 0 for value in figures.values())
