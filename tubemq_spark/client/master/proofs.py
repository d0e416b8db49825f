"""Fresh proofs of who the user is, for masters and for brokers."""

import secrets
import time
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.protocol import auth
from tubemq_spark.protocol.pb import common_pb2

_NONCES: Final = (1 << 31) - 1


def proof_for_master(config: ClientConfig) -> common_pb2.AuthenticateInfo | None:
    """Return a proof that masters accept for 20 s; None without a user."""
    if config.username is None or config.password is None:
        return None
    return auth.authenticate_info(config.username, config.password, *_now_and_nonce())


def proof_for_broker(config: ClientConfig) -> str:
    """Return a proof for a broker; blank without a user."""
    if config.username is None or config.password is None:
        return ""
    return auth.broker_token(config.username, config.password, *_now_and_nonce())


def _now_and_nonce() -> tuple[int, int]:
    return time.time_ns() // 1_000_000, secrets.randbelow(_NONCES)
