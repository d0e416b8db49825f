"""What the tests of the table's cells share: their parameters, and how long a trouble lasts."""

import collections
import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Final, Self

import pytest

from testkit.guarantees import LOSES, MAY_REPEAT, WAITS_AND_MAY_REPEAT, Cell, Outcome, cells
from testkit.troubles import TROUBLES, Scene, Trouble

SOON_S: Final = 0.6
"""How long a trouble lasts if the test waits for its end."""
PATIENCE_S: Final = 10


def parametrized(use: str, first: object, second: object) -> pytest.MarkDecorator:
    """Return the cells of a column as parameters of a test: the trouble, its outcome, and the variant.

    ``first`` and ``second`` are the variants of the two parts of a cell.
    """
    return pytest.mark.parametrize(
        ("trouble", "outcome", "variant"),
        [
            pytest.param(TROUBLES[cell.trouble], outcome, variant, id=f"{cell.trouble}-{part}")
            for cell in cells()
            if cell.use == use
            for part, outcome, variant in _parts(cell, first, second)
        ],
    )


def _parts(cell: Cell, first: object, second: object) -> list[tuple[str, Outcome, object]]:
    parts = [("first", cell.first, first)]
    return parts if cell.second is None else [*parts, ("second", cell.second, second)]


class Lasting:
    """A trouble that ends by itself if the cell waits for that, and otherwise with the block."""

    def __init__(self, scene: Scene, trouble: Trouble, outcome: Outcome) -> None:
        self._over = threading.Event()
        self._scene = scene
        self._trouble = trouble
        self._timer = threading.Timer(SOON_S, self._finish) if outcome.waits else None

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.join()
        else:
            self._end()

    @property
    def is_over(self) -> bool:
        """Whether it has ended by itself."""
        return self._over.is_set()

    def _finish(self) -> None:
        self._end()
        self._over.set()

    def _end(self) -> None:
        if self._trouble.end is not None:
            self._trouble.end(self._scene)


@contextlib.contextmanager
def ends_as(outcome: Outcome) -> Iterator[None]:
    """Expect an error whose text names the condition, if the cell is an error."""
    if not outcome.is_error:
        yield
        return
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has several; the condition is what counts
        yield
    assert any(f"[{condition}]" in str(caught.value) for condition in outcome.conditions), caught.value


def assert_once(rows: Iterable[bytes], expected: Iterable[bytes]) -> None:
    """Fail unless these are exactly the rows, each once."""
    assert sorted(rows) == sorted(expected)


def assert_hit(scene: Scene) -> None:
    """Fail if there was a fault that no request met, because then the test shows nothing."""
    assert not scene.rules or any(rule.hits for rule in scene.rules)


def repeats_of(scene: Scene, outcome: Outcome, sent: Iterable[bytes], perhaps: Iterable[bytes] = ()) -> int:
    """Return how many rows are stored again; fail unless all are stored, once if the cell allows no more.

    Those that are ``perhaps`` stored may have been lost with their store.
    """
    scene.settle(PATIENCE_S)
    copies = collections.Counter(value for value in scene.stored() if value.startswith(b"row "))
    assert set(sent) <= set(copies) <= {*sent, *perhaps}
    repeats = copies.total() - len(copies)
    assert not repeats or outcome.word in {MAY_REPEAT, WAITS_AND_MAY_REPEAT, LOSES}
    return repeats
