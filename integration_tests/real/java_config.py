"""How the Java clients are set up: who they are, and to wait less than they do of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from .java_gateway import Jvm

HEARTBEAT_MS: Final = 300
"""How often a consumer asks its master; what a master that balances tells it travels with the answers."""

READY_WAIT_MS: Final = 100
"""How long one call for messages may wait for a partition that is free."""

NO_DATA_WAIT_MS: Final = 50
"""How long a partition rests that had no messages."""

REGISTER_PAUSE_MS: Final = 300
"""How long a consumer waits before it asks a master again that it did not reach."""

REGISTER_ATTEMPTS: Final = 2
"""How often a client asks a master to take it; the producer waits a second after each refusal."""

SHUTDOWN_WAIT_MS: Final = 2_000
"""How long a consumer that leaves waits for a rebalance under way."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user's name and password."""

    user: str
    password: str = field(repr=False)


def client_config(jvm: Jvm, master: str, login: Login | None) -> Any:
    """Return a Java `TubeClientConfig`."""
    return _common(jvm.tubemq.client.config.TubeClientConfig(master), login)


def consumer_config(jvm: Jvm, master: str, group: str, login: Login | None) -> Any:
    """Return a Java `ConsumerConfig` of a consumer that begins at the earliest message."""
    config = _common(jvm.tubemq.client.config.ConsumerConfig(master, group), login)
    config.setConsumePosition(jvm.tubemq.client.consumer.ConsumePosition.CONSUMER_FROM_FIRST_OFFSET)
    config.setHeartbeatPeriodMs(HEARTBEAT_MS)
    config.setPullConsumeReadyWaitPeriodMs(READY_WAIT_MS)
    config.setMsgNotFoundWaitPeriodMs(NO_DATA_WAIT_MS)
    config.setShutDownRebalanceWaitPeriodMs(SHUTDOWN_WAIT_MS)
    return config


def _common(config: Any, login: Login | None) -> Any:
    if login is not None:
        config.setAuthenticInfo(True, login.user, login.password)
    config.setMaxRegisterRetryTimes(REGISTER_ATTEMPTS)
    config.setRegFailWaitPeriodMs(REGISTER_PAUSE_MS)
    return config
