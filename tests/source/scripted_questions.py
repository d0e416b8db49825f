"""Questions beside a trigger without threads: they are answered at once, or as soon as their peer answers."""

import functools

from tubemq_spark.errors import TubeMQError

_asking = []


class StillAskingError(Exception):
    """What a peer that does not answer raises of a question beside the trigger."""


def is_beside():
    """Tell whether this is a question that no trigger waits for."""
    return bool(_asking)


def scripted(clock):
    """Return what stands for ``BackgroundQuestion``, on a clock that only tests and waits move."""
    return functools.partial(ScriptedQuestion, clock)


class ScriptedQuestion:
    def __init__(self, clock, ask, name):
        self._clock, self._ask, self._name = clock, ask, name
        self._begun_at = clock[0]
        self._answer = self._error = None
        self._ended = False
        self._try()

    def ended_within(self, seconds):
        if not self._ended:
            self._try()
        if not self._ended:
            self._clock[0] += seconds
        return self._ended

    def answer(self):
        if self._error is not None:
            raise self._error
        return self._answer

    def _try(self):
        _asking.append(self._name)
        try:
            self._answer = self._ask()
        except StillAskingError:
            return
        except TubeMQError as error:
            self._error = error
        finally:
            _asking.pop()
        self._ended, self.took_s = True, self._clock[0] - self._begun_at
