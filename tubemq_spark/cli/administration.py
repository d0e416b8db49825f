"""What commands ask of the masters' administration API, and how they wait for what it brings about."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from tubemq_spark.errors import RpcError
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import SLEEP, Wait, pause

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin
    from tubemq_spark.cluster.config import ClusterConfig

Answer = TypeVar("Answer")

_LOOK_EVERY_MS: Final = 500


def ask_a_master(
    config: "ClusterConfig", ask: "Callable[[MasterAdmin], Answer]", condition: str, token: str | None = None
) -> Answer:
    """Ask whichever master answers.

    Raises:
        TubeMQConnectionError: none answers; with this condition.
        AdminError: the master refuses.
    """
    from tubemq_spark.client.metadata import admin_questions

    return admin_questions.ask_a_master(
        config.web_servers, config.client.rpc_timeout_ms / 1000, ask, condition, token
    )


def require_master(config: "ClusterConfig") -> None:
    """Ask at the masters' own ports, unless the administration API was named itself.

    Otherwise only their hosts count for commands that ask nothing but that API, and a wrong port looks right.

    Raises:
        OptionError: another server than a master listens there, or one that speaks TLS, or does not.
        TubeMQConnectionError: no master answers.
    """
    if config.web:
        return
    from tubemq_spark.client.master.producers import fresh_visit_token
    from tubemq_spark.net import loop
    from tubemq_spark.net.connections import Connections
    from tubemq_spark.net.process_connections import close_connections

    connections = Connections()
    try:
        # Who is refused has asked a master.
        with contextlib.suppress(RpcError):
            loop.run(fresh_visit_token(config.client, connections))
    finally:
        close_connections(connections)


def await_until(is_so: Callable[[], bool], seconds: float, wait: Wait = SLEEP) -> bool:
    """Look again and again whether something is so; return whether it was in time."""
    deadline = Deadline.after_ms(int(seconds * 1000))
    while not is_so():
        if not pause(_LOOK_EVERY_MS, deadline, wait):
            return False
    return True
