"""What the growth benchmark says of a curve."""

import pytest

from benchmarks.growing.curve import Curve

X = (1, 10, 100, 1_000, 10_000)


def curve(costs):
    return Curve("panel", "name", "rows", "CPU s", X, [[cost * 0.9, cost, cost * 1.1] for cost in costs])


def test_a_fixed_cost_and_a_cost_per_unit_are_told_apart():
    found = curve([2 + 0.5 * x for x in X])
    assert found.line == pytest.approx((2, 0.5))
    assert found.knees == []
    assert found.slope < found.last_slope <= 1


@pytest.mark.parametrize(("power", "slope"), [(0, 0), (1, 1)])
def test_a_cost_that_is_constant_or_proportional_is_called_so(power, slope):
    found = curve([3 * x**power for x in X])
    assert found.slope == pytest.approx(slope, abs=1e-9)
    assert found.knees == []
    assert min(found.line) >= 0


def test_a_jump_at_the_end_is_a_knee_though_a_line_through_all_points_would_hide_it():
    costs = [2 + 0.5 * x for x in X]
    costs[-1] *= 1.6
    assert (10_000, pytest.approx(1.6)) in [(knee.x, knee.ratio) for knee in curve(costs).knees]


def test_a_cost_that_grows_with_the_square_has_knees_and_a_slope_above_one():
    found = curve([1e-3 * x**2 for x in X])
    assert found.last_slope == pytest.approx(2)
    assert found.knees


def test_two_points_say_nothing_about_each_other():
    few = Curve("panel", "name", "rows", "CPU s", (1, 10), [[1.0], [500.0]])
    assert few.knees == []


def test_the_last_decade_has_two_points_at_least():
    wide = Curve("panel", "name", "rows", "CPU s", (1, 100, 10_000), [[1.0], [1.0], [100.0]])
    assert wide.last_slope == pytest.approx(1)
