"""Checks of settings that more than one kind of configuration needs."""

from collections.abc import Mapping
from typing import Final

from tubemq_spark.errors import OptionError

DAY_MS: Final = 86_400_000
"""No wait is longer: whoever asks for more has most likely mistaken the unit."""

Bounds = Mapping[str, tuple[int, int]]
"""The lowest and the highest value of each setting that is a number."""


def bad_setting(name: str, value: object, rule: str) -> OptionError:
    """Return the error about a setting; ``rule`` continues "it must be"."""
    return OptionError("TUBEMQ_BAD_SETTING", name=name, value=value, rule=rule)


def require_whole_numbers(config: object, bounds: Bounds) -> None:
    """Check the settings of a configuration that are numbers.

    Raises:
        OptionError: one of them is not a whole number, or out of its bounds; the text names it.
    """
    for name, (lowest, highest) in bounds.items():
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise bad_setting(name, repr(value), f"a whole number from {lowest} to {highest}")


def require_booleans(config: object, *names: str) -> None:
    """Check the settings of a configuration that are true or false.

    Raises:
        OptionError: one of them is something else; the text names it.
    """
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, bool):
            raise bad_setting(name, repr(value), "True or False")
