"""All error classes, and a value for each parameter of their texts."""

import inspect
import string

from tubemq_spark import errors
from tubemq_spark.errors import CONDITIONS, TubeMQError

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, TubeMQError) and value.__module__ == errors.__name__
]


def parameters_of(condition: str) -> dict[str, str]:
    """Return a value for every parameter of a condition's text."""
    names = {name for _, name, _, _ in string.Formatter().parse(CONDITIONS[condition]) if name is not None}
    return {name: f"<{name}>" for name in names}
