"""Which unit tests concern the files that were changed: those run first in ``make quick``."""

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from testkit.git import git

NEAREST, NEAR, REST = range(3)


def changed_files() -> list[str]:
    """Return what differs from the branch ``main``, or without one from the last commit."""
    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    return git("diff", "--name-only", base[0]) + git("ls-files", "--others", "--exclude-standard")


def distance_from(changed: Iterable[str]) -> Callable[[str], int]:
    """Return how far a test file is from the nearest change.

    The file itself or that of its module comes first, then those of the same package, then all others.
    """
    tests = {_test_of(PurePosixPath(path)) for path in changed if path.endswith(".py")}
    packages = {test.parent for test in tests}

    def distance(path: str) -> int:
        test = PurePosixPath(path)
        if test in tests:
            return NEAREST
        return NEAR if test.parent in packages else REST

    return distance


def _test_of(path: PurePosixPath) -> PurePosixPath:
    """Return where the tests of a file are: ``tests`` mirrors the package."""
    if path.parts[0] != "tubemq_spark":
        return path
    return PurePosixPath("tests", *path.parts[1:-1], f"test_{path.name}")
