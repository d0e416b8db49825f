"""The scenarios, by name."""

from collections.abc import Awaitable, Callable
from typing import Final

import simloom

from simulation.scenarios.connections import connections
from simulation.scenarios.masters import masters
from simulation.scenarios.questions import questions
from simulation.scenarios.reader import reader

SCENARIOS: Final[dict[str, Callable[[simloom.World], Awaitable[None]]]] = {
    "connections": connections,
    "masters": masters,
    "questions": questions,
    "reader": reader,
}
