"""Who may do what: a file with clients, how each shows who it is, and its rights; and what enforces it.

A client shows a token, of which the file has the SHA-256 only, or a certificate, by one of its names. Names
of topics and groups may have ``*`` for any text. What the file does not allow is forbidden.

Without a policy every call is allowed. With one,

- each call shows who it is, by a token or by a certificate, also a later one of the same connection;
- what a call names is checked against the rights that its client has: when it comes, with each further
  message of a stream, and again when the file has changed (``Guard.refused``). So a right that is taken
  away ends the streams that need it, and a token or a certificate that is taken out those that showed it;
- lists of topics and groups have only what the client has a right to (``Guard.may``), before they are cut
  into pages: the token of a page is the name of what stands last on it.

The file is looked at by ``look``, which a timer calls, and never by a call. It has changed when its content
has. A file that cannot be used changes nothing.

A method without a rule is refused, so that a new one is not open by mistake.
"""

import dataclasses
import hashlib
import logging
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tubemq_spark.errors import GatewayError
from tubemq_spark.net.loop import in_thread

logger = logging.getLogger(__name__)

Request: TypeAlias = Any
"""A message of the type that the method tells."""
Need: TypeAlias = tuple[str, str]
"""A right, such as ``read``, and the topic or group that it is about."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LISTS: Final = ("token_sha256", "certificate", "read", "write", "create", "group")
_KEYS: Final = frozenset({"name", "operator", *_LISTS})
_SCHEME: Final = "bearer "
_NAME_KINDS: Final = {
    "CN=": "x509_common_name",
    "DNS:": "peer_dns",
    "URI:": "peer_uri",
    "IP:": "peer_ip",
    "email:": "peer_email",
}
"""How the names of a certificate are written in a policy, and what gRPC calls them."""
_IN_WORDS: Final = {
    "read": "read",
    "write": "publish to",
    "create": "create the topic",
    "see": "see",
    "group": "act as the group",
    "operator": "see what other clients do",
}
"""What a client wants to do that needs a right."""


# The file.


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

    def may(self, right: str, name: str) -> bool:
        """Whether the client has a right; one that may read or write a topic may ``see`` that it exists."""
        if right == "see":
            return self.may("read", name) or self.may("write", name)
        if right == "operator":
            return self.operator
        patterns: tuple[str, ...] = getattr(self, right)
        return any(_fits(pattern, name) for pattern in patterns)


def _fits(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern, in which ``*`` stands for any text and all else for itself."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return at <= end


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """All clients of a file."""

    clients: dict[str, Rights]
    """By name."""
    tokens: dict[str, str]
    """The client's name, by the SHA-256 of a token."""
    certificates: dict[str, str]
    """The client's name, by a name that a certificate has, with its kind."""

    def client_of(self, credential: "Credential") -> str | None:
        """Return the name of the client that shows this."""
        if credential.token_sha256 is not None:
            # Looked up by its digest, so how long that takes says nothing about tokens that are in the file.
            return self.tokens.get(credential.token_sha256)
        names = credential.certificate
        return next((self.certificates[name] for name in names if name in self.certificates), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Credential:
    """What a call shows of who makes it."""

    token_sha256: str | None = dataclasses.field(default=None, repr=False)
    certificate: tuple[str, ...] = ()
    """The names of its certificate, with their kinds; they count where there is no token."""


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call."""

    name: str = ""
    """The client of the policy; without a policy, the names of the certificate, if there is one."""
    credential: Credential = Credential()


NO_CALLER: Final = Caller()


def load_policy(path: Path, *, certificates: bool = True) -> Policy:
    """Read a policy; ``certificates`` says whether clients show theirs to this gateway."""
    return _parsed(path, _content(path), certificates=certificates)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unusable(path, str(error)) from error


def _parsed(path: Path, data: bytes, *, certificates: bool) -> Policy:
    try:
        content = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    if set(content) != {"clients"} or not isinstance(content["clients"], list):
        raise _unusable(path, "it must be a list of [[clients]] and nothing else")
    policy = Policy({}, {}, {})
    for number, entry in enumerate(content["clients"], 1):
        _add(policy, path, number, entry)
    if policy.certificates and not certificates:
        text, name = next(iter(policy.certificates.items()))
        cause = f"client {name!r} shows the certificate {text!r}, which needs the setting tls_client_ca"
        raise _unusable(path, cause)
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
    for text in lists["certificate"]:
        if not text.startswith(tuple(_NAME_KINDS)):
            kinds = ", ".join(f"{kind}..." for kind in _NAME_KINDS)
            raise _unusable(path, f"the certificate {text!r} of {place} is none of {kinds}")
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


# What each method needs.


class SessionFacts(Protocol):
    """What the rules know of a session."""

    @property
    def attached(self) -> set[str]:
        """The topics of the partitions that it reads as a member of its group."""

    @property
    def group(self) -> str:
        """Its group."""

    @property
    def reader_groups(self) -> tuple[str, ...]:
        """The groups under which its ranges are read."""


Rule: TypeAlias = Callable[[Request, SessionFacts], Iterable[Need]]


def _all(right: str, names: Iterable[str]) -> Iterator[Need]:
    return ((right, name) for name in names)


def _topics(items: Iterable[Request]) -> set[str]:
    return {item.topic for item in items}


def _nothing(_: Request, __: SessionFacts) -> Iterable[Need]:
    return ()


def _reading(topics: Callable[[Request], Iterable[str]]) -> Rule:
    """Return the rule of a method that reads topics under the session's reader groups."""
    return lambda request, session: [
        *_all("read", topics(request)),
        *_all("group", {session.group, *session.reader_groups}),
    ]


def _in_group(right: str, topics: Callable[[Request], Iterable[str]]) -> Rule:
    """Return the rule of a method that does something with topics as the session's group."""
    return lambda request, session: [*_all(right, topics(request)), ("group", session.group)]


def _needs_of_attached(_: Request, session: SessionFacts) -> Iterable[Need]:
    return [*_all("read", session.attached), ("group", session.group)]


def _attached(request: Request) -> set[str]:
    return {*request.topics, *_topics(place.partition for place in request.partitions)}


RULES: Final[Mapping[str, Rule]] = {
    # Reader groups are needed where ranges are read: a client that only publishes has none.
    "OpenSession": lambda request, _: _all("group", filter(None, [request.settings.group])),
    "Heartbeat": _nothing,
    "SessionEvents": _nothing,
    "CloseSession": _nothing,
    "QueryRoute": _in_group("see", lambda request: request.topics),
    "ListTopics": _nothing,
    "CheckTopic": lambda request, _: [("write" if request.publishable else "see", request.topic)],
    "CreateTopic": lambda request, _: [("create", request.topic)],
    "QueryBounds": _in_group("read", lambda request: _topics(request.stores)),
    "QueryFirstReadable": _reading(lambda request: _topics(begin.partition for begin in request.begins)),
    "QueryGroupPositions": _in_group("read", lambda request: _topics(request.partitions)),
    "QueryStoredOffsets": lambda request, _: [
        *_all("read", request.topics),
        *_all("group", [request.group] if request.HasField("group") else []),
    ],
    "ResetOffsets": _in_group("read", lambda request: _topics(item.partition for item in request.positions)),
    "ReadRange": _reading(lambda request: [request.partition.topic]),
    "PublishStream": lambda batch, _: _all("write", batch.topics),
    "Subscribe": _in_group("read", lambda request: request.topics),
    "AttachPartitions": _in_group("read", _attached),
    "DetachPartitions": _nothing,
    "Fetch": _needs_of_attached,
    "Commit": _needs_of_attached,
    "Consume": lambda command, session: [
        *_needs_of_attached(command, session),
        *_all("read", filter(None, [command.seek.partition.topic])),
    ],
    "ListMembers": lambda request, session: [("group", request.group or session.group)],
    "ListGroups": lambda request, _: _all("see", filter(None, [request.topic])),
    "DescribeGateway": _nothing,
    "ListSessions": lambda _, __: [("operator", "")],
}
"""What each method needs: for its request, for each batch of a publish stream, for each command of a consume
stream."""


# Its enforcement.


class Guard:
    """The policy of a gateway; used in the event loop."""

    def __init__(self, gateway: str, path: str | None, *, certificates: bool = False) -> None:
        """Read the policy; ``certificates`` says whether clients show theirs."""
        self._gateway = gateway
        self._path = None if path is None else Path(path)
        self._certificates = certificates
        self._last_look: bytes | str = b""
        """What the file was when it was looked at last: its content, or why it could not be read."""
        self._policy = Policy({}, {}, {})
        self.on_failure: Callable[[], object] = lambda: None
        """Called when the file has changed and cannot be used."""
        if self._path is not None:
            self._last_look = _content(self._path)
            self._policy = _parsed(self._path, self._last_look, certificates=certificates)

    @property
    def active(self) -> bool:
        """Whether there is a policy."""
        return self._path is not None

    async def look(self) -> bool:
        """Read the file if it has changed; return whether rights are others now."""
        if self._path is None:
            return False
        try:
            content: bytes | str = await in_thread(self._path.read_bytes, "tubemq-gateway-policy")
        except OSError as error:
            content = str(error)
        if content == self._last_look:
            return False
        self._last_look = content
        try:
            if isinstance(content, str):
                raise _unusable(self._path, content)
            self._policy = _parsed(self._path, content, certificates=self._certificates)
        except GatewayError as error:
            self.on_failure()
            logger.warning("the policy is used as it was before: %s", error)
            return False
        logger.info("the policy %s was read again: %d clients", self._path, len(self._policy.clients))
        return True

    def caller(
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        shown: Mapping[str, Iterable[bytes]],
    ) -> Caller:
        """Return who calls."""
        names = tuple(
            f"{kind}{name.decode(errors='replace')}"
            for kind, key in _NAME_KINDS.items()
            for name in shown.get(key, ())
        )
        if self._path is None:
            return Caller(", ".join(names))
        header = next((value for key, value in metadata if key == "authorization"), "")
        if header:
            if not isinstance(header, str) or not header.lower().startswith(_SCHEME):
                raise self._unknown("its metadata 'authorization' is not 'Bearer' and a token")
            token = header[len(_SCHEME) :].strip()
            credential = Credential(hashlib.sha256(token.encode()).hexdigest())
            what = "no client of the policy has its token"
        else:
            credential = Credential(certificate=names)
            what = f"no client of the policy has its certificate, which names {', '.join(names)}"
            what = what if names else "it shows neither a token nor a certificate"
        client = self._policy.client_of(credential)
        if client is None:
            raise self._unknown(what)
        return Caller(client, credential)

    def needs(
        self, method: str, request: Request, caller: Caller, session: SessionFacts | None
    ) -> Collection[Need]:
        """Return what a call needs, when it is allowed; nothing without a policy."""
        if self._path is None:
            return ()
        rule = RULES.get(method)
        if rule is None:
            raise self._forbidden(caller.name, f"call {method}, for which there is no rule")
        needs = set(rule(request, session or _NO_SESSION))
        if (refusal := self.refused(caller, needs)) is not None:
            raise refusal
        return needs

    def refused(self, caller: Caller, needs: Iterable[Need] = ()) -> GatewayError | None:
        """Return why a client may not go on with what needs these rights; None: it may."""
        if self._path is None:
            return None
        if self._policy.client_of(caller.credential) != caller.name:
            return self._unknown(f"the policy no longer has what it showed as client {caller.name}")
        rights = self._policy.clients[caller.name]
        denied = min((need for need in needs if not rights.may(*need)), default=None)
        if denied is None:
            return None
        right, name = denied
        return self._forbidden(caller.name, f"{_IN_WORDS[right]} {name}".rstrip())

    def may(self, caller: Caller, right: str, name: str) -> bool:
        """Whether a client has a right; any thread may ask."""
        rights = self._policy.clients.get(caller.name)
        return self._path is None or (rights is not None and rights.may(right, name))

    def _unknown(self, what: str) -> GatewayError:
        return GatewayError("TUBEMQ_GATEWAY_LOGIN", gateway=self._gateway, what=what)

    def _forbidden(self, client: str, what: str) -> GatewayError:
        return GatewayError("TUBEMQ_GATEWAY_FORBIDDEN", gateway=self._gateway, client=client, what=what)


@dataclasses.dataclass(frozen=True, slots=True)
class _NoSession:
    """Stands for the session of calls that belong to none."""

    attached: set[str] = dataclasses.field(default_factory=set)
    group: str = ""
    reader_groups: tuple[str, ...] = ()


_NO_SESSION: Final = _NoSession()
