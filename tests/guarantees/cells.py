"""What the tests of all cells share: their parameters, and how long a trouble lasts."""

import contextlib
import threading

import pytest

from testkit.guarantees import cells
from testkit.troubles import TROUBLES
from tubemq_spark.errors import TubeMQError

SOON_S = 0.6
"""How long a trouble lasts that somebody waits for."""


def parametrized(use, first, second):
    """Return the cells of a column as parameters of a test: the trouble, its outcome, and the variant.

    ``first`` and ``second`` are the variants of the two parts of a cell.
    """
    return pytest.mark.parametrize(
        ("trouble", "outcome", "variant"),
        [
            pytest.param(TROUBLES[cell.trouble], outcome, variant, id=f"{cell.trouble}-{part}")
            for cell in cells()
            if cell.use == use
            for part, outcome, variant in (("first", cell.first, first), ("second", cell.second, second))
            if outcome is not None
        ],
    )


class Lasting:
    """A trouble that ends by itself if somebody is to wait for that; else it lasts as long as the block."""

    def __init__(self, scene, trouble, outcome):
        self.is_over = threading.Event()
        self._scene = scene
        self._end = trouble.end
        self._timer = threading.Timer(SOON_S, self._finish) if outcome.waits else None

    def __enter__(self):
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(self, *_):
        if self._timer is not None:
            self._timer.join()
        elif self._end is not None:
            self._end(self._scene)

    def _finish(self):
        self._end(self._scene)
        self.is_over.set()


@contextlib.contextmanager
def ends_as(outcome):
    """Expect an error if the cell says so."""
    if not outcome.is_error:
        yield
        return
    with pytest.raises(TubeMQError) as caught:
        yield
    assert caught.value.condition in outcome.conditions


def assert_once(rows, expected):
    assert sorted(rows) == sorted(expected)


def assert_hit(scene):
    """A fault that no request met shows nothing."""
    assert not scene.rules or any(rule.hits for rule in scene.rules)
