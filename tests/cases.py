"""Many small cases of one test."""

import functools
import inspect
from collections.abc import Iterable


def in_one_test(names: str | tuple[str, ...], cases: Iterable[object]):
    """Run a test for each case, as ``parametrize`` does, but as one test; say which case has failed.

    For cases that need less than a test of their own, which every process collects, prepares and reports.
    """
    cases = list(cases)
    assert cases

    def decorated(test):
        arguments = (names,) if isinstance(names, str) else names
        signature = inspect.signature(test)
        others = [given for name, given in signature.parameters.items() if name not in arguments]

        @functools.wraps(test)
        def run_all(**fixtures):
            for case in cases:
                values = (case,) if isinstance(names, str) else case
                try:
                    test(**dict(zip(arguments, values, strict=True)), **fixtures)
                except BaseException as error:
                    error.add_note(f"with {', '.join(arguments)} = {', '.join(map(repr, values))}")
                    raise

        run_all.__signature__ = signature.replace(parameters=others)
        return run_all

    return decorated
