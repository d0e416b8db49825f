"""The scenarios, by name."""

from collections.abc import Awaitable, Callable
from typing import Final

import simloom

from simulation.scenarios.connections import connections
from simulation.scenarios.consumers import consumers
from simulation.scenarios.gateways import gateways
from simulation.scenarios.masters import masters
from simulation.scenarios.one_bad_broker import one_bad_broker
from simulation.scenarios.producers import producers
from simulation.scenarios.questions import questions
from simulation.scenarios.reader import reader

SCENARIOS: Final[dict[str, Callable[[simloom.World], Awaitable[None]]]] = {
    "connections": connections,
    "consumers": consumers,
    "gateways": gateways,
    "masters": masters,
    "one_bad_broker": one_bad_broker,
    "producers": producers,
    "questions": questions,
    "reader": reader,
}

COSTLY: Final = {"consumers": 5, "gateways": 10, "one_bad_broker": 10}
"""Scenarios of which a run of all takes so many times fewer universes, since each costs more."""
