"""Short questions and short answers: sessions, routes, offsets, groups, and topics.

**Groups and their members** are what the masters' administration API knows. The gateway keeps no list of its
own: its sessions are some of a group's members, and others are at other gateways or come without one. What a
master said is used for a moment, and answers say how old it is.

**Topics** are created where the operator of the gateway lets clients do so, with a token of the cluster's
administrators (``confModAuthToken``). Clients never see that token: the gateway has it, or creates nothing,
and its policy says who may create what. What a topic is made of is decided here and nowhere else. No topic
is ever changed.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.metadata.admin_questions import ask_a_master, stored_offsets
from tubemq_spark.client.metadata.routes import with_missing
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.errors import (
    AdminError,
    GatewayError,
    OptionError,
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.gateway.admission import WorkLimit
from tubemq_spark.gateway.calls import Calls, ServedCall, refusal
from tubemq_spark.gateway.consuming import ConsumeService
from tubemq_spark.gateway.sessions import Inbox, Session, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Access, Upstream
from tubemq_spark.model import StoreBounds, StoredOffsets, StoreId
from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.net.fair_quota import Owner
from tubemq_spark.protocol.constants import TOPIC_NAME, TOPIC_NAME_RULE
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, service, values
from tubemq_spark.protocol.gateway.service import PROTOCOL_REVISION, page

Request = TypeVar("Request")
Result = TypeVar("Result")

_PROVES_OLD: Final = (TubeMQConnectionError, RpcError)
"""Errors of a broker after which a master is asked again where it is."""
_SETTLE_S: Final = 5.0
"""How long is waited for the calls of a session that has ended."""


class ControlService:
    """Serves the short calls of sessions."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        upstream: Upstream,
        questions: WorkLimit,
        calls: Calls,
        consuming: ConsumeService,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._upstream = upstream
        self._questions = questions
        self._calls = calls
        self._consuming = consuming
        self._grace_s = settings.disconnect_ms / 1000
        self.capabilities: tuple[str, ...] = ()
        """The methods that this gateway serves."""
        self.query_route = self._asking(_route)
        self.query_bounds = self._asking(_bounds)
        self.query_first_readable = self._asking(_first_readable)
        self.query_group_positions = self._asking(_group_positions)
        self.reset_offsets = self._asking(_move_group)

    def _asking(
        self, ask: Callable[[Access, Request], Coroutine[Any, Any, Result]]
    ) -> Callable[[Request, ServedCall], Coroutine[Any, Any, Result]]:
        """Return the handler of a method that asks TubeMQ, as the call's session sees it."""

        async def serve(request: Request, call: ServedCall) -> Result:
            return await self._ask(call, ask(call.owner().access, request))

        return serve

    async def _ask(self, call: ServedCall, question: Coroutine[Any, Any, Result]) -> Result:
        """Return the answer to a question, which ends with its call."""
        with contextlib.closing(question):
            async with self._questions.place(call.who, call.patience_s):
                return await question

    def _administration(self, call: ServedCall) -> DirectTransport:
        """Return the transport by which a call asks over HTTP; a wait for a thread holds nothing else."""
        return self._upstream.administration(call.owner().access, call.who, call.patience_s)

    # Sessions: they wait for nothing, so that load cannot make one expire.

    async def open_session(self, request: pb.OpenSessionRequest, call: ServedCall) -> pb.OpenSessionResponse:
        """Open a session under the id that its client chose."""
        if request.settings.password and self._settings.tls_cert is None:
            raise GatewayError("TUBEMQ_GATEWAY_PLAINTEXT", gateway=self._settings.name)
        older = self._sessions.known(request.client_id)
        call.session = self._sessions.open(
            request, lambda: self._upstream.access(request.settings), call.peer, call.client
        )
        call.session.caller = call.caller
        if older is not None and older.ended:
            # What the older one has under way comes to nothing from here on.
            await older.settled(_SETTLE_S)
        return pb.OpenSessionResponse(
            lease_ms=self._settings.lease_ms,
            heartbeat_ms=self._settings.heartbeat_ms,
            max_message_bytes=self._settings.max_message_bytes,
            gateway=self._settings.name,
            capabilities=self.capabilities,
            max_batch_bytes=self._settings.max_batch_bytes,
            protocol_revision=PROTOCOL_REVISION,
        )

    async def heartbeat(self, request: pb.HeartbeatRequest, call: ServedCall) -> pb.HeartbeatResponse:
        """Note a sign of life; return the events that the client has not seen."""
        inbox = call.owner().inbox
        inbox.seen(request.seen)
        return pb.HeartbeatResponse(
            lease_ms=self._settings.lease_ms,
            draining=self._calls.draining,
            events=inbox.pending(),
            gateway=self._settings.name,
        )

    async def session_events(self, request: pb.SessionEventsRequest, call: ServedCall) -> None:
        """Stream the events of a session, as they happen."""
        session = call.owner()
        newer = refusal("a newer call tells the session's events")
        session.inbox.begin_reading(call.end, newer)
        try:
            # So the client knows that it will hear of what happens from now on.
            await call.context.start_answering()
            await self._tell_events(session.inbox, call)
        except asyncio.CancelledError:
            if request.close_when_lost and call.ended_by is None:
                asyncio.get_running_loop().call_later(
                    self._grace_s, self._sessions.close_if_silent, session, session.calls
                )
            raise
        finally:
            session.inbox.end_reading(call.end)

    async def _tell_events(self, inbox: Inbox, call: ServedCall) -> None:
        while True:
            await inbox.news.wait()
            inbox.news.clear()
            for event in inbox.pending():
                response = pb.SessionEventsResponse(event=event)
                await call.context.write(response.SerializeToString())
                inbox.seen(event.number)
            self._calls.refuse_when_draining()

    async def close_session(self, _: pb.CloseSessionRequest, call: ServedCall) -> pb.CloseSessionResponse:
        """End a session and its calls; one that is not known has ended.

        Its partitions are free then, unless a broker does not answer.
        """
        try:
            session = self._sessions.use(call.ref, call.client)
        except GatewayError:
            return pb.CloseSessionResponse()
        self._sessions.close(session)
        await session.settled(_SETTLE_S)
        await self._consuming.closed(session, call)
        return pb.CloseSessionResponse()

    # Topics.

    async def list_topics(self, request: pb.ListTopicsRequest, call: ServedCall) -> pb.ListTopicsResponse:
        """Name topics, a page at a time."""
        names = await self._administration(call).topics()
        visible = [name for name in names if call.may("see", name)]
        topics, token = page(visible, str, request.page_size, request.page_token, service.ITEMS)
        return pb.ListTopicsResponse(topics=topics, next_page_token=token)

    # Offsets.

    async def query_stored_offsets(
        self, request: pb.QueryStoredOffsetsRequest, call: ServedCall
    ) -> pb.QueryStoredOffsetsResponse:
        """Say where groups stand, without being one; a page at a time, of what brokers say now."""
        group = request.group if request.HasField("group") else None
        offsets = await self._administration(call).stored_offsets(group, tuple(request.topics))
        visible = tuple(
            item
            for item in offsets.offsets
            if call.may("group", item.group) and call.may("read", item.partition.topic)
        )
        failures: Mapping[int, TubeMQError] = offsets.failures
        if not call.may("group", _ALL_GROUPS):
            failures = {broker: _without_groups(error) for broker, error in failures.items()}
        offsets = StoredOffsets(visible, failures)
        return values.stored_offsets_to_proto(offsets, request.page_size, request.page_token)


_ALL_GROUPS: Final = "*"
"""A name that only fits a pattern for any name."""


def _without_groups(error: TubeMQError) -> TubeMQError:
    """Return why a broker does not tell of some groups, without their names."""
    if error.condition != "TUBEMQ_GROUPS_NOT_TOLD":
        return error
    return type(error)(error.condition, **{**error.parameters, "groups": "some groups", "reason": "refused"})


async def _route(access: Access, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
    """Say where partitions are; a master is asked unless an older answer will do."""
    routes, topics, layout = access.routes, tuple(request.topics), None
    if request.max_age_ms and routes.age_ms(topics) <= request.max_age_ms:
        layout = with_missing(await routes.known(topics), topics)
    if layout is None or (layout.missing_topics and not request.missing_ok):
        layout = await routes.layout(topics, missing_ok=request.missing_ok)
    response = values.layout_to_proto(layout)
    response.age_ms = routes.age_ms(topics)
    return response


async def _first_readable(
    access: Access, request: pb.QueryFirstReadableRequest
) -> pb.QueryFirstReadableResponse:
    """Say where the first record is that can still be read."""
    begins = {
        values.partition_from_proto(item.partition): values.bounds_from_proto(item.bounds)
        for item in request.begins
    }
    offsets = await access.transport.first_readable(await access.routes.find(begins), begins)
    return pb.QueryFirstReadableResponse(offsets=values.offsets_to_proto(offsets))


async def _group_positions(
    access: Access, request: pb.QueryGroupPositionsRequest
) -> pb.QueryGroupPositionsResponse:
    """Say where the session's group stands."""
    partitions = [values.partition_from_proto(item) for item in request.partitions]
    offsets = await access.transport.group_positions(await access.routes.find(partitions))
    return pb.QueryGroupPositionsResponse(offsets=values.offsets_to_proto(offsets))


async def _move_group(access: Access, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
    """Move the session's group."""
    positions = values.offsets_from_proto(request.positions)
    failures = await access.transport.move_group(await access.routes.find(positions), positions)
    return values.reset_failures_to_proto(failures)


async def _bounds(access: Access, request: pb.QueryBoundsRequest) -> pb.QueryBoundsResponse:
    """Say where stores begin and end; brokers that are away are part of the answer."""
    stores = values.stores_from_proto(request.stores)
    layout = await access.routes.known({store.topic for store in stores})
    bounds = await access.transport.bounds(
        layout,
        [store for store in stores if store in layout.stores],
        flushed=request.flushed,
        timeout_ms=request.timeout_ms if request.HasField("timeout_ms") else None,
    )
    failures: dict[StoreId, TubeMQError] = {**bounds.failures}
    access.routes.forget(
        {store.topic for store, error in bounds.failures.items() if isinstance(error, _PROVES_OLD)}
    )
    for store in stores:
        if store not in bounds.by_store and store not in failures:
            failures[store] = OptionError("TUBEMQ_PARTITION_NOT_LISTED", partition=store)
    return values.store_bounds_to_proto(StoreBounds(bounds.by_store, failures), stores)


_FRESH_S: Final = 5.0
_PAGE: Final = 1_000
_MOST_ANSWERS: Final = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class _MasterAnswer:
    """What a master said."""

    value: Any
    at: float


class GroupService:
    """Serves ``ListMembers`` and ``ListGroups``; used in the event loop."""

    def __init__(
        self, settings: GatewaySettings, administration: WorkLimit, clock: Clock = monotonic
    ) -> None:
        self._web = settings.web_servers
        self._new_groups = settings.new_groups
        self._administration = administration
        self._clock = clock
        self._answers: dict[Hashable, _MasterAnswer] = {}

    async def list_members(self, request: pb.ListMembersRequest, call: ServedCall) -> pb.ListMembersResponse:
        """Name the members of a group, and what each holds."""
        access = call.owner().access
        group = request.group or access.config.group
        answer = await self._ask(call.who, ("members", group), lambda: self._members(access, group))
        items = {item["consumerId"]: item for item in answer.value["data"]}
        members, token = page(
            items, lambda name: _member(items[name], call), request.page_size, request.page_token, _PAGE
        )
        control, topics = answer.value["control"], answer.value["topics"]
        return pb.ListMembersResponse(
            members=members,
            topics=_seen(answer.value["topicSet"], call),
            next_page_token=token,
            age_ms=self._age_ms(answer),
            policy=_policy(control, [item for item in topics if call.may("see", item["topicName"])]),
        )

    async def admit(self, session: Session) -> None:
        """Raise if a session may not consume in its group."""
        if not self._new_groups:
            access, group = session.access, session.access.config.group
            await self._ask(session.who, ("members", group), lambda: self._members(access, group))

    async def list_groups(self, request: pb.ListGroupsRequest, call: ServedCall) -> pb.ListGroupsResponse:
        """Name the groups that have members, or those of them that read a topic."""
        timeout_s = _timeout_s(call.owner().access)
        answer = await self._ask(
            call.who, ("groups", request.topic), lambda: self._groups(request.topic, timeout_s)
        )
        items = {
            item["consumeGroup"]: item for item in answer.value if call.may("group", item["consumeGroup"])
        }
        groups, token = page(
            items, lambda name: _group(items[name], call), request.page_size, request.page_token, _PAGE
        )
        return pb.ListGroupsResponse(groups=groups, next_page_token=token, age_ms=self._age_ms(answer))

    async def _ask(self, owner: Owner, what: Hashable, ask: Callable[[], Any]) -> _MasterAnswer:
        answer = self._answers.get(what)
        if answer is None or self._clock() - answer.at > _FRESH_S:
            value = await self._administration.run_in_thread(ask, owner)
            self._answers.pop(what, None)
            answer = self._answers[what] = _MasterAnswer(value, self._clock())
            if len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
        return answer

    def _members(self, access: Access, group: str) -> dict[str, Any]:
        """Return a master's answer about a group; called in a thread."""
        timeout_s = _timeout_s(access)

        def ask(admin: MasterAdmin) -> dict[str, Any]:
            return {
                **admin.consumer_group(group),
                "control": admin.group_control(group),
                "topics": admin.consume_controls(group),
            }

        report = ask_a_master(self._web(), timeout_s, ask, "TUBEMQ_BROKERS_NOT_LISTED")
        # A master answers for a group that it does not know as for one without members.
        if not report["data"] and not stored_offsets(self._web(), timeout_s, group, ()).offsets:
            raise GatewayError("TUBEMQ_GROUP_NOT_FOUND", group=group)
        return report

    def _groups(self, topic: str, timeout_s: float) -> list[dict[str, Any]]:
        def ask(admin: MasterAdmin) -> list[dict[str, Any]]:
            return admin.online_groups(topic or None)

        return ask_a_master(self._web(), timeout_s, ask, "TUBEMQ_BROKERS_NOT_LISTED")

    def _age_ms(self, answer: _MasterAnswer) -> int:
        return int((self._clock() - answer.at) * 1000)


def _timeout_s(access: Access) -> float:
    return access.http_timeout_ms / 1000


def _policy(control: dict[str, Any] | None, topics: list[dict[str, Any]]) -> pb.GroupPolicy:
    changes = [item["modifyDate"] for item in ([] if control is None else [control]) + topics]
    policy = pb.GroupPolicy(changed=max(changes, default=""))
    if control is not None:
        policy.flow_control = bool(control["flowCtrlEnable"])
        policy.flow_rules = json.dumps(control["flowCtrlInfo"])
        policy.brokers_per_consumer = max(0, control["alwdBrokerClientRate"])
    for item in topics:
        policy.topics.add(
            topic=item["topicName"],
            consume=bool(item["consumeEnable"]),
            reason=item["disableCsmRsn"],
            filters=item["filterConds"].strip(",") if item["filterEnable"] else "",
        )
    return policy


def _seen(topics: Iterable[str], call: ServedCall) -> list[str]:
    """Return those of a group's topics that a client may know of."""
    return [topic for topic in topics if call.may("see", topic)]


def _group(item: dict[str, Any], call: ServedCall) -> pb.ListGroupsResponse.Group:
    return pb.ListGroupsResponse.Group(
        name=item["consumeGroup"], topics=_seen(item["topicSet"], call), members=item["consumerNum"]
    )


def _member(item: dict[str, Any], call: ServedCall) -> pb.ListMembersResponse.Member:
    member = pb.ListMembersResponse.Member(client_id=item["consumerId"])
    for part in item["parInfo"]:
        if not call.may("see", part["topicName"]):
            continue
        member.partitions.add(
            topic=part["topicName"], partition_id=int(part["partId"]), broker=part["brokerAddr"]
        )
    return member


_MOST_PARTS: Final = 1_000
"""Of a topic on one broker: stores, or partitions of one store."""


class TopicService:
    """Serves ``CreateTopic``; used in the event loop."""

    def __init__(self, settings: GatewaySettings, administration: WorkLimit) -> None:
        self._gateway = settings.name
        self._web = settings.web_servers
        self._token = settings.master_admin_token
        self._administration = administration

    async def create_topic(self, request: pb.CreateTopicRequest, call: ServedCall) -> pb.CreateTopicResponse:
        """Create a topic on brokers, by default on all that are online; leave one that exists as it is."""
        if self._token is None:
            raise GatewayError(
                "TUBEMQ_GATEWAY_CREATES_NONE", gateway=self._gateway, topic=request.topic or "any"
            )
        _check(request)
        timeout_s = _timeout_s(call.owner().access)

        def ask(admin: MasterAdmin) -> pb.CreateTopicResponse:
            return _create(admin, request)

        return await self._administration.run_in_thread(
            lambda: ask_a_master(self._web(), timeout_s, ask, "TUBEMQ_TOPICS_NOT_LISTED", self._token),
            call.who,
        )


def _check(request: pb.CreateTopicRequest) -> None:
    if not TOPIC_NAME.fullmatch(request.topic):
        raise refusal(f"the topic is to be named {request.topic!r}, but needs {TOPIC_NAME_RULE}")
    for what, count in (("stores", request.stores), ("partitions", request.partitions)):
        if count > _MOST_PARTS:
            raise refusal(f"the topic is to have {count} {what}, but may have {_MOST_PARTS}")


def _create(admin: MasterAdmin, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
    if there := admin.topic_brokers(request.topic, deleted=False):
        return pb.CreateTopicResponse(created=False, broker_ids=sorted(there))
    brokers = _brokers(admin, request.broker_ids)
    try:
        admin.add_topic(
            request.topic, brokers, stores=request.stores or 1, partitions=request.partitions or 1
        )
    except AdminError as error:
        # The master answers for each broker by itself.
        there = admin.topic_brokers(request.topic, deleted=False)
        if missing := sorted(set(brokers) - there):
            if not there:
                raise
            raise RemoteProtocolError(
                "TUBEMQ_TOPIC_PARTLY_CREATED", topic=request.topic, brokers=sorted(there), missing=missing
            ) from error
        # Another client was quicker.
        return pb.CreateTopicResponse(created=False, broker_ids=sorted(there))
    return pb.CreateTopicResponse(created=True, broker_ids=brokers)


def _brokers(admin: MasterAdmin, broker_ids: Sequence[int]) -> list[int]:
    statuses = admin.broker_run_status()
    if unknown := sorted(set(broker_ids) - statuses.keys()):
        raise refusal(f"the cluster has no broker {unknown[0]}, but {sorted(statuses)}")
    chosen = sorted(set(broker_ids)) or sorted(
        broker_id for broker_id, status in statuses.items() if status.is_online
    )
    if not chosen:
        raise refusal("no broker of the cluster is online")
    return chosen
