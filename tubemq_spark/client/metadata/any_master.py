"""Asking the administration API of whichever master answers."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.errors import AdminError, TubeMQConnectionError
from tubemq_spark.model import Endpoint

Answer = TypeVar("Answer")


def ask_a_master(
    web_servers: Sequence[Endpoint],
    timeout_s: float,
    ask: Callable[[MasterAdmin], Answer],
    condition: str,
    token: str | None = None,
) -> Answer:
    """Ask one master after the other until one answers.

    A master that does not lead sends the caller elsewhere in a way that loses the question
    (``MasterStatusCheckFilter``), which looks like a refusal. So a refusal only counts when no other master
    answers.

    Args:
        web_servers: where the masters serve their administration API.
        timeout_s: how long an answer may take, in seconds.
        ask: the question.
        condition: that of the error when none answers.
        token: the cluster's ``confModAuthToken``, for calls that change something.

    Raises:
        TubeMQConnectionError: none of them answered; with this condition.
        AdminError: none answered, and one refused.
    """
    causes, refusals = [], []
    for server in web_servers:
        try:
            return ask(MasterAdmin(str(server), token=token, timeout_s=timeout_s))
        except TubeMQConnectionError as error:
            causes.append(str(error.parameters["cause"]))
        except AdminError as error:
            refusals.append(error)
    for refusal in refusals:
        raise refusal
    raise TubeMQConnectionError(
        condition,
        servers=", ".join(map(str, web_servers)),
        cause="; ".join(dict.fromkeys(causes)),
    )
