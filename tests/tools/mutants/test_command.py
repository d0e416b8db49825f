"""What cannot be broken is told at once, before anything is collected or copied."""

import pytest

from tools.mutants.command import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tubemq_spark/observe", "--match", "no such mutant"], "no mutant is like that"),
        (["--changed", "no_such_commit"], "there is no commit no_such_commit"),
        (["tubemq_spark/nowhere"], "there is no tubemq_spark/nowhere"),
        (["--rows", "S-01", "S-999"], "no rows that are done: S-999"),
    ],
    ids=str,
)
def test_nothing_to_break_is_an_error(arguments, told):
    with pytest.raises(SystemExit, match=told):
        main(arguments)
