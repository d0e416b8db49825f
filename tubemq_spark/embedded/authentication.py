"""Authentication of clients, and visit tokens; both are off unless the settings switch them on.

A visit token is a number that proves to a broker that a client has recently been at the master.

Masters accept a signed proof (SimpleCertificateMasterHandler). TubeMQ leaves the check of the signature, and
what clients show afterwards, to an authentication service of the operator; here there is a table of users
instead. Afterwards a client may show its own proof, to the master and to brokers, in the form that brokers
accept: ``user timestamp nonce signature``.
"""

import collections
import hmac
import re
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.dispatch import RefusedError, trimmed
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.pb import common_pb2

_REMEMBERED: Final = 6
"""A broker accepts the last six tokens (SimpleVisitTokenManager)."""


class VisitTokens:
    """The current token, which changes periodically if there is a period."""

    def __init__(self, period_ms: int, now_ms: Callable[[], int] = wall_ms) -> None:
        """Start with a first token; with ``period_ms`` 0 it never changes."""
        self._period_ms = period_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._tokens = collections.deque([now_ms()], maxlen=_REMEMBERED)

    @property
    def current(self) -> int:
        """The token that clients get at present."""
        with self._lock:
            now = self._now_ms()
            if self._period_ms and now >= self._tokens[-1] + self._period_ms:
                self._tokens.append(now)
            return self._tokens[-1]

    def expire(self) -> None:
        """Invalidate all tokens given out so far; there is a new one."""
        with self._lock:
            newest = max(self._tokens[-1] + 1, self._now_ms())
            self._tokens.clear()
            self._tokens.append(newest)

    def accepts(self, token: int) -> bool:
        """Whether a client with this token has recently been at the master."""
        newest = self.current
        with self._lock:
            return token == newest or token in self._tokens


_PROOF_VALID_MS: Final = 20_000
"""How much the time of a proof may differ from the master's clock (authValidTimeStampPeriodMs)."""
_TOKEN: Final = re.compile(r"(\S.*) (-?[0-9]{1,19}) (-?[0-9]{1,10}) (\S+)", re.ASCII)
"""User name, which may contain blanks; timestamp, nonce, signature."""


class Authentication:
    """Checks clients as the settings of a server demand."""

    def __init__(self, settings: EmbeddedSettings, now_ms: Callable[[], int] = wall_ms) -> None:
        """Take the users and the switches."""
        self._required = {True: settings.authenticate_producers, False: settings.authenticate_consumers}
        self._users = dict(settings.users)
        self._now_ms = now_ms

    def at_master(self, shown: common_pb2.MasterCertificateInfo, *, producer: bool) -> str:
        """Check a request to the master; return what the client can show from now on, "" if nothing.

        A client shows a proof, or what it got from an earlier answer. Neither, or a proof that is wrong or
        too old, is refused (415).
        """
        if not self._required[producer]:
            return ""
        if shown.HasField("authInfo"):
            return self._from_proof(shown.authInfo)
        token = shown.authorizedToken.strip()
        if not token:
            raise _refused("Illegal value: authInfo.userName is Blank!")
        self._check_token(token)
        return token

    def at_broker(self, shown: common_pb2.AuthorizedInfo, *, producer: bool) -> None:
        """Check a request to a broker.

        One that shows nothing, or a wrong proof, is refused (415).
        """
        if self._required[producer]:
            token = trimmed("authAuthorizedToken", shown.authAuthorizedToken)
            if not token:
                raise _refused("authAuthorizedToken is Blank!")
            self._check_token(token)

    def _from_proof(self, proof: common_pb2.AuthenticateInfo) -> str:
        user, signature = proof.userName.strip(), proof.signature.strip()
        if not user:
            raise _refused("Illegal value: authInfo.userName is Blank!")
        if not signature:
            raise _refused("Illegal value: authInfo.signature is Blank!")
        if abs(self._now_ms() - proof.timestamp) > _PROOF_VALID_MS:
            raise _refused("Illegal value: timestamp out of effective period in authenticateToken!")
        self._check_signature(user, proof.timestamp, proof.nonce, signature)
        return f"{user} {proof.timestamp} {proof.nonce} {signature}"

    def _check_token(self, token: str) -> None:
        """Check the signature if there are passwords; a token does not expire."""
        if not self._users:
            return
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            raise _refused("Illegal value: authAuthorizedToken has another form!")
        self._check_signature(parts[1], int(parts[2]), int(parts[3]), parts[4])

    def _check_signature(self, user: str, timestamp_ms: int, nonce: int, signature: str) -> None:
        if not self._users:
            return
        # An unknown user takes as much time as a wrong password.
        expected = messages.sign(user, self._users.get(user, ""), timestamp_ms, nonce)
        if not hmac.compare_digest(expected.encode(), signature.encode()) or user not in self._users:
            raise _refused("Illegal value: userName or password is not correct!")


def _refused(text: str) -> RefusedError:
    return RefusedError(ErrCode.CERTIFICATE_FAILURE, text)
