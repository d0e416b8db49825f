"""Asking the administration API of whichever master answers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tubemq_spark.client.metadata.admin import MasterAdmin, Parameter, page_of
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


class ActiveMasterAdmin(MasterAdmin):
    """Administers a cluster through whichever of some servers is its active master.

    It is looked for with the first call, and again with the next call after one that failed.
    """

    def __init__(self, web_servers: Sequence[Endpoint], *, token: str | None = None) -> None:
        """Ask no server.

        Args:
            web_servers: where the masters may serve their administration API, at least one.
            token: as ``MasterAdmin``.
        """
        super().__init__(str(web_servers[0]), token=token)
        self._web_servers = tuple(web_servers)
        self._is_known = False

    def call(self, /, method: str, **parameters: Parameter) -> dict[str, Any]:
        """Make a call as ``MasterAdmin.call``.

        Raises:
            TubeMQConnectionError: no server is an active master.
            AdminError: it refuses.
        """
        try:
            return super().call(method, **parameters)
        except AdminError:
            self._is_known = False  # one that does not lead any more refuses everything
            raise

    def ask(self, /, **parameters: Parameter) -> dict[str, Any]:
        """Send parameters as ``MasterAdmin.ask``.

        Raises:
            TubeMQConnectionError: no server is an active master.
        """
        if not self._is_known:
            self._turn_to(self._active())
        try:
            return super().ask(**parameters)
        except TubeMQConnectionError:
            self._is_known = False
            raise

    def _active(self) -> Endpoint:
        causes = []
        for server in self._web_servers:
            try:
                roles = MasterAdmin(str(server), timeout_s=self._timeout_s).group_nodes().values()
            except TubeMQConnectionError as error:
                causes.append(f"{server}: {error.parameters['cause']}")
            except AdminError as error:
                causes.append(f"{server}: {error.reason}")
            else:
                if any(role.upper() == "MASTER" for role in roles):
                    return server
                causes.append(f"{server}: no master is active")
        raise TubeMQConnectionError("TUBEMQ_NO_ACTIVE_MASTER", causes="; ".join(causes))

    def _turn_to(self, server: Endpoint) -> None:
        self._server, self.url, self._is_known = server, page_of(server), True
