"""Credentials for a server that demands logins: right ones, nearly right ones, and odd ones."""

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

from fuzz.corpus import Seed
from fuzz.mutations import varint
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.messages import MESSAGES
from tubemq_spark.protocol.pb import common_pb2

USER: Final = "fuzz_user"
PASSWORD: Final = "fuzz_password"
TOKEN: Final = messages.broker_token(USER, PASSWORD, 1_700_000_000_000, 7)
"""It does not expire, so that the same seed creates the same frames."""

VISIT_TOKEN: Final = 1_700_000_000_001
"""Stands for the server's visit token, which is different each time it starts."""

_DIGITS: Final = "9" * 5000
"""More digits than Python's ``int`` accepts."""
_NUMBERS: Final = ("1", "-1", "٣", "²", "1.5", "0x1", "1_0", "", str(1 << 63), _DIGITS)
_TEXTS: Final = (
    "",
    " ",
    "   ",
    "\0",
    USER,
    f"{TOKEN}x",
    f" {TOKEN}\n",
    TOKEN.replace(" ", "  "),
    TOKEN[:-1],
    TOKEN.lower(),
    messages.broker_token(USER, "wrong", 1_700_000_000_000, 7),
    messages.broker_token("nobody", "", 1_700_000_000_000, 7),
    "ä€😀",
    " " * 20_000,
    "%" * 100_000,
)
_NUMBERS_64: Final = (0, 1, -1, VISIT_TOKEN - 1, VISIT_TOKEN + 1, (1 << 63) - 1, -(1 << 63))
_NUMBERS_32: Final = (0, 7, -1, (1 << 31) - 1, -(1 << 31))


def shown(seeds: Iterable[Seed], chance: random.Random) -> Iterator[Seed]:
    """Yield requests with credentials, every other one with the right ones."""
    for seed in seeds:
        message: Any = MESSAGES[Method(seed.method)].request()
        message.ParseFromString(seed.body)
        if "authInfo" in message.DESCRIPTOR.fields_by_name:
            right = chance.random() < 0.5
            message.ClearField("authInfo")
            if isinstance(message.authInfo, common_pb2.MasterCertificateInfo):
                _show_master(message.authInfo, chance, right=right)
            else:
                _show_broker(message.authInfo, chance, right=right)
        yield Seed(seed.port, seed.service, seed.method, message.SerializePartialToString())


def with_visit_token(data: bytes, visit_token: int) -> bytes:
    """Insert the server's visit token in place of ``VISIT_TOKEN``, which has the same length."""
    return data.replace(varint(VISIT_TOKEN), varint(visit_token))


def _show_master(place: common_pb2.MasterCertificateInfo, chance: random.Random, *, right: bool) -> None:
    place.SetInParent()
    if right:
        place.authorizedToken = TOKEN
    if not right and chance.random() < 0.7:
        place.authorizedToken = _text(chance)
    if not right and chance.random() < 0.7:
        _prove(place.authInfo, chance)


def _prove(proof: common_pb2.AuthenticateInfo, chance: random.Random) -> None:
    """Add a proof, which cannot be right: a valid signature would change every second."""
    proof.userName = chance.choice((USER, _text(chance)))
    # A visit token is the time when the server started, so at first it is a valid time for a proof.
    proof.timestamp = chance.choice((VISIT_TOKEN, chance.choice(_NUMBERS_64)))
    proof.nonce = chance.choice(_NUMBERS_32)
    proof.othParams = chance.choice(("", _text(chance)))
    proof.signature = chance.choice((TOKEN.rpartition(" ")[2], _text(chance)))


def _show_broker(place: common_pb2.AuthorizedInfo, chance: random.Random, *, right: bool) -> None:
    known = right or chance.random() < 0.5
    place.visitAuthorizedToken = VISIT_TOKEN if known else chance.choice(_NUMBERS_64)
    if right:
        place.authAuthorizedToken = TOKEN
    elif chance.random() < 0.9:
        place.authAuthorizedToken = _text(chance)


def _text(chance: random.Random) -> str:
    """Return an odd text; half of the time it has the four parts of a token."""
    if chance.random() < 0.5:
        return chance.choice(_TEXTS)
    signature = chance.choice((TOKEN.rpartition(" ")[2], "ä", "x" * 1000, ""))
    return " ".join((USER, chance.choice(_NUMBERS), chance.choice(_NUMBERS), signature))
