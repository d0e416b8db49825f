"""Who may do what: a file with clients, how each shows who it is, and its rights.

A client shows a token, of which the file has the SHA-256 only, or a certificate. Names of topics and groups
may have ``*`` for any text. What the file does not allow is forbidden.
"""

import dataclasses
import fnmatch
import hashlib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tubemq_spark.errors import GatewayError

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LISTS: Final = ("token_sha256", "certificate", "read", "write", "create", "group")
_KEYS: Final = frozenset({"name", "operator", *_LISTS})


@dataclasses.dataclass(frozen=True, slots=True)
class Rights:
    """What one client may do."""

    name: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    create: tuple[str, ...] = ()
    """The topics that it may create."""
    group: tuple[str, ...] = ()
    """The groups under which it may read, and whose positions it may see and move."""
    operator: bool = False
    """Whether it may see the sessions of others."""

    def may_read(self, topic: str) -> bool:
        """Whether it may read a topic."""
        return _any_fits(self.read, topic)

    def may_write(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        return _any_fits(self.write, topic)

    def may_create(self, topic: str) -> bool:
        """Whether it may create a topic."""
        return _any_fits(self.create, topic)

    def may_see(self, topic: str) -> bool:
        """Whether it may know that a topic exists."""
        return self.may_read(topic) or self.may_write(topic)

    def may_use(self, group: str) -> bool:
        """Whether it may act as a group."""
        return _any_fits(self.group, group)


def _any_fits(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """All clients of a file."""

    clients: dict[str, Rights]
    """By name."""
    tokens: dict[str, str]
    """The client's name, by the SHA-256 of a token."""
    certificates: dict[str, str]
    """The client's name, by a name that a certificate has."""

    def of_token(self, token: str) -> str | None:
        """Return whose token it is."""
        # Looked up by its digest, so how long that takes says nothing about tokens that are in the file.
        return self.tokens.get(hashlib.sha256(token.encode()).hexdigest())

    def of_certificate(self, names: Iterable[str]) -> str | None:
        """Return whose certificate it is that has these names."""
        return next((self.certificates[name] for name in names if name in self.certificates), None)


def load_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        GatewayError: it cannot be read, or something in it cannot be used.
    """
    try:
        with path.open("rb") as opened:
            content = tomllib.load(opened)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    if set(content) != {"clients"} or not isinstance(content["clients"], list):
        raise _unusable(path, "it must be a list of [[clients]] and nothing else")
    policy = Policy({}, {}, {})
    for number, entry in enumerate(content["clients"], 1):
        _add(policy, path, number, entry)
    return policy


def _add(policy: Policy, path: Path, number: int, entry: object) -> None:
    """Add a client of a file to a policy."""
    place = f"client {number}"
    if not isinstance(entry, dict):
        raise _unusable(path, f"{place} is not a table")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise _unusable(path, f"{place} has no name")
    place = f"client {name!r}"
    if unknown := sorted(set(entry) - _KEYS):
        raise _unusable(path, f"{place} has {unknown[0]!r}, which is none of {', '.join(sorted(_KEYS))}")
    if name in policy.clients:
        raise _unusable(path, f"{place} is there twice")
    lists = {key: _texts(path, place, key, entry.get(key, [])) for key in _LISTS}
    if not isinstance(operator := entry.get("operator", False), bool):
        raise _unusable(path, f"operator of {place} is neither true nor false")
    policy.clients[name] = Rights(
        name, lists["read"], lists["write"], lists["create"], lists["group"], operator
    )
    _add_identities(policy, path, name, lists)


def _add_identities(policy: Policy, path: Path, name: str, lists: dict[str, tuple[str, ...]]) -> None:
    """Add how a client shows who it is."""
    place = f"client {name!r}"
    if not lists["token_sha256"] and not lists["certificate"]:
        raise _unusable(path, f"{place} has neither token_sha256 nor certificate")
    if not all(map(_DIGEST.fullmatch, lists["token_sha256"])):
        # Not the text: it may be a token.
        raise _unusable(path, f"a token_sha256 of {place} is not 64 digits of 0-9a-f")
    for owners, key in ((policy.tokens, "token_sha256"), (policy.certificates, "certificate")):
        for text in lists[key]:
            if text in owners:
                raise _unusable(path, f"{place} has the same {key} as client {owners[text]!r}")
            owners[text] = name


def _texts(path: Path, place: str, key: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise _unusable(path, f"{key} of {place} is not a list of texts")
    return tuple(texts)


def _unusable(path: Path, cause: str) -> GatewayError:
    return GatewayError("TUBEMQ_GATEWAY_POLICY", path=path, cause=cause.rstrip("."))
