"""Enforces a policy: who calls, whose session it is, and whether the call is allowed.

Without a policy every call is allowed. With one,

- each call shows who it is, by a token or by a certificate, also a later one of the same connection;
- a session belongs to the client that opened it, and no other client can use it or take its id;
- what a call names is checked against the rights that the file has *now*: it is read again when it has
  changed. A file that cannot be used changes nothing, and the log says so once.

A method without a rule is refused, so that a new one is not open by mistake.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc.aio

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.policy import Policy, Rights, load_policy
from tubemq_spark.gateway.session.sessions import Session
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

logger = logging.getLogger(__name__)

Request: TypeAlias = Any
"""A message of the type that the method tells."""

_SCHEME: Final = "bearer "
_IDENTITIES: Final = ("x509_common_name", "x509_subject_alternative_name")


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """What a call needs rights for."""

    read: Iterable[str] = ()
    write: Iterable[str] = ()
    create: Iterable[str] = ()
    see: Iterable[str] = ()
    groups: Iterable[str] = ()
    own_group: bool = False
    """The session's group, and its reader groups."""
    attached: bool = False
    """To read the topics of the partitions that the session has attached."""
    operator: bool = False


_NOTHING: Final = Needs()


def _topics(items: Iterable[Request]) -> set[str]:
    return {item.topic for item in items}


def _attach(request: Request) -> Needs:
    return Needs(
        read={*request.topics, *_topics(place.partition for place in request.partitions)}, own_group=True
    )


def _opened_groups(request: Request) -> Needs:
    settings = request.settings
    return Needs(groups={*([settings.group] if settings.group else []), *settings.reader_groups})


def _check_topic(request: Request) -> Needs:
    return Needs(write=[request.topic]) if request.publishable else Needs(see=[request.topic])


RULES: Final[Mapping[str, Callable[[Request], Needs]]] = {
    "OpenSession": _opened_groups,
    "Heartbeat": lambda _: _NOTHING,
    "SessionEvents": lambda _: _NOTHING,
    "CloseSession": lambda _: _NOTHING,
    "QueryRoute": lambda request: Needs(see=request.topics, own_group=True),
    "WatchRoute": lambda request: Needs(see=request.topics, own_group=True),
    "ListTopics": lambda _: _NOTHING,
    "CheckTopic": _check_topic,
    "CreateTopic": lambda request: Needs(create=[request.topic]),
    "QueryBounds": lambda request: Needs(read=_topics(request.stores)),
    "QueryFirstReadable": lambda request: Needs(
        read=_topics(begin.partition for begin in request.begins), own_group=True
    ),
    "QueryGroupPositions": lambda request: Needs(read=_topics(request.partitions), own_group=True),
    "QueryStoredOffsets": lambda request: Needs(
        read=request.topics, groups=[request.group] if request.HasField("group") else []
    ),
    "ResetOffsets": lambda request: Needs(
        read=_topics(item.partition for item in request.positions), own_group=True
    ),
    "ReadRange": lambda request: Needs(read=[request.partition.topic], own_group=True),
    "Publish": lambda request: Needs(write=request.batch.topics),
    # Each of its batches is looked at when it comes.
    "PublishStream": lambda _: _NOTHING,
    "AttachPartitions": _attach,
    "DetachPartitions": lambda _: _NOTHING,
    "Fetch": lambda _: Needs(own_group=True, attached=True),
    "Commit": lambda _: Needs(own_group=True, attached=True),
    "Consume": lambda _: _NOTHING,
    "ListMembers": lambda request: Needs(groups=[request.group]) if request.group else Needs(own_group=True),
    "ListGroups": lambda request: Needs(see=[request.topic] if request.topic else []),
    "DescribeGateway": lambda _: _NOTHING,
    "ListSessions": lambda _: Needs(operator=True),
}
"""What each method needs."""


def _seen_topics(answer: Request, rights: Rights) -> None:
    topics = [topic for topic in answer.topics if rights.may_see(topic)]
    del answer.topics[:]
    answer.topics.extend(topics)


def _seen_offsets(answer: Request, rights: Rights) -> None:
    offsets = [
        item for item in answer.known if rights.may_use(item.group) and rights.may_read(item.partition.topic)
    ]
    del answer.known[:]
    answer.known.extend(offsets)


def _seen_groups(answer: Request, rights: Rights) -> None:
    groups = [group for group in answer.groups if rights.may_use(group.name)]
    del answer.groups[:]
    answer.groups.extend(groups)


_LEFT_OUT: Final[Mapping[str, Callable[[Request, Rights], None]]] = {
    "ListTopics": _seen_topics,
    "QueryStoredOffsets": _seen_offsets,
    "ListGroups": _seen_groups,
}
"""Answers from which is left out what the client has no right to see."""


class Guard:
    """The policy of a gateway; used in the event loop."""

    def __init__(self, gateway: str, path: str | None) -> None:
        """Read the policy.

        Raises:
            GatewayError: it cannot be used.
        """
        self._gateway = gateway
        self._path = None if path is None else Path(path)
        self._stamp: tuple[int, int] | None = None
        self._policy = Policy({}, {}, {})
        if self._path is not None:
            self._stamp = _stamp(self._path)
            self._policy = load_policy(self._path)

    def client_of(self, context: grpc.aio.ServicerContext) -> str:
        """Return the name of the client that calls; blank without a policy.

        Raises:
            GatewayError: it does not show who it is, or the policy has no such client.
        """
        if self._path is None:
            return ""
        policy = self._current(self._path)
        header = next(
            (value for key, value in context.invocation_metadata() or () if key == "authorization"), ""
        )
        if header:
            if not isinstance(header, str) or not header.lower().startswith(_SCHEME):
                raise self._unknown("its metadata 'authorization' is not 'Bearer' and a token")
            rights = policy.of_token(header[len(_SCHEME) :].strip())
            what = "no client of the policy has its token"
        else:
            names = [name.decode() for kind in _IDENTITIES for name in context.auth_context().get(kind, ())]
            rights = policy.of_certificate(names)
            shown = f"no client of the policy has its certificate, which names {', '.join(names)}"
            what = shown if names else "it shows neither a token nor a certificate"
        if rights is None:
            raise self._unknown(what)
        return rights

    def check_owner(self, session: Session, client: str) -> None:
        """Return when a client may use a session.

        Raises:
            GatewayError: it belongs to another one.
        """
        if self._path is not None and session.owner != client:
            raise self._forbidden(client, f"use the session {session.client_id}, which is another client's")

    def check(self, method: str, request: Request, client: str, session: Session | None) -> None:
        """Return when a call is allowed.

        Raises:
            GatewayError: it is not.
        """
        if self._path is None:
            return
        rule = RULES.get(method)
        if rule is None:
            raise self._forbidden(client, f"call {method}, for which there is no rule")
        self._check(rule(request), client, session)
        if method == "AttachPartitions" and session is not None:
            session.attached |= set(rule(request).read)

    def check_batch(self, batch: pb.MessageBatch, client: str) -> None:
        """Return when a client may publish a batch.

        Raises:
            GatewayError: it may not.
        """
        if self._path is not None:
            self._check(Needs(write=batch.topics), client, None)

    def check_operator(self, client: str) -> None:
        """Return when a client may see what others do.

        Raises:
            GatewayError: it may not.
        """
        if self._path is not None and not self._rights(client).operator:
            raise self._forbidden(client, "see what other clients do")

    def leave_out(self, method: str, answer: Request, client: str) -> None:
        """Take out of an answer what the client has no right to see."""
        if self._path is not None and (take := _LEFT_OUT.get(method)) is not None:
            take(answer, self._rights(client))

    def _check(self, needs: Needs, client: str, session: Session | None) -> None:
        rights = self._rights(client)
        groups = set(needs.groups)
        if needs.own_group and session is not None:
            config = session.access.config
            groups |= {config.group, *config.reader_groups}
        read = set(needs.read)
        if needs.attached and session is not None:
            read |= session.attached
        for what, names, allowed in (
            ("read", read, rights.may_read),
            ("publish to", needs.write, rights.may_write),
            ("create the topic", needs.create, rights.may_create),
            ("see", needs.see, rights.may_see),
            ("act as the group", groups, rights.may_use),
        ):
            for name in sorted(names):
                if not allowed(name):
                    raise self._forbidden(client, f"{what} {name}")
        if needs.operator:
            self.check_operator(client)

    def _rights(self, client: str) -> Rights:
        # A client that has since been removed has none.
        return self._policy.clients.get(client) or Rights(client)

    def _current(self, path: Path) -> Policy:
        stamp = _stamp(path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._policy = load_policy(path)
            except GatewayError as error:
                logger.warning("the policy is used as it was before: %s", error)
            else:
                logger.info("the policy %s was read again: %d clients", path, len(self._policy.clients))
        return self._policy

    def _unknown(self, what: str) -> GatewayError:
        return GatewayError("TUBEMQ_GATEWAY_LOGIN", gateway=self._gateway, what=what)

    def _forbidden(self, client: str, what: str) -> GatewayError:
        return GatewayError("TUBEMQ_GATEWAY_FORBIDDEN", gateway=self._gateway, client=client, what=what)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
