"""Groups, their members, and new topics: what the masters' administration API knows and does.

The gateway keeps no list of its own: its sessions are some of a group's members, and others are at other
gateways or come without one. What a master said is used for a moment, and answers say how old it is.

Topics are created where the operator of the gateway lets clients do so, with a token of the cluster's
administrators (``confModAuthToken``). Clients never see that token: the gateway has it, or creates nothing,
and its policy says who may create what. What a topic is made of is decided here and nowhere else. No topic
is ever changed.
"""

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.metadata.admin_questions import ask_a_master, stored_offsets
from tubemq_spark.errors import AdminError, GatewayError, RemoteProtocolError
from tubemq_spark.gateway.admission import WorkLimit
from tubemq_spark.gateway.session.calls import Call
from tubemq_spark.gateway.session.sessions import Session
from tubemq_spark.gateway.session.upstream import Access
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.net.fair_quota import Owner
from tubemq_spark.protocol.constants import TOPIC_NAME, TOPIC_NAME_RULE
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.pages import page

_FRESH_S: Final = 5.0
_PAGE: Final = 1_000
_MOST_ANSWERS: Final = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class _MasterAnswer:
    """What a master said."""

    value: Any
    at: float


class Members:
    """Serves ``ListMembers`` and ``ListGroups``; used in the event loop."""

    def __init__(
        self, settings: GatewaySettings, administration: WorkLimit, clock: Clock = monotonic
    ) -> None:
        self._web = settings.web_servers
        self._new_groups = settings.new_groups
        self._administration = administration
        self._clock = clock
        self._answers: dict[Hashable, _MasterAnswer] = {}

    async def list_members(self, request: pb.ListMembersRequest, call: Call) -> pb.ListMembersResponse:
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
        """Return when a session may consume in its group."""
        if not self._new_groups:
            access, group = session.access, session.access.config.group
            await self._ask(session.who, ("members", group), lambda: self._members(access, group))

    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsResponse:
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
        """Return what a master says of a group; in a thread."""
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


def _seen(topics: Iterable[str], call: Call) -> list[str]:
    """Return those of a group's topics that a client may know of."""
    return [topic for topic in topics if call.may("see", topic)]


def _group(item: dict[str, Any], call: Call) -> pb.ListGroupsResponse.Group:
    return pb.ListGroupsResponse.Group(
        name=item["consumeGroup"], topics=_seen(item["topicSet"], call), members=item["consumerNum"]
    )


def _member(item: dict[str, Any], call: Call) -> pb.ListMembersResponse.Member:
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


class Topics:
    """Serves ``CreateTopic``; used in the event loop."""

    def __init__(self, settings: GatewaySettings, administration: WorkLimit) -> None:
        self._gateway = settings.name
        self._web = settings.web_servers
        self._token = settings.master_admin_token
        self._administration = administration

    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.CreateTopicResponse:
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
        raise _bad(f"the topic is to be named {request.topic!r}, but needs {TOPIC_NAME_RULE}")
    for what, count in (("stores", request.stores), ("partitions", request.partitions)):
        if count > _MOST_PARTS:
            raise _bad(f"the topic is to have {count} {what}, but may have {_MOST_PARTS}")


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
        raise _bad(f"the cluster has no broker {unknown[0]}, but {sorted(statuses)}")
    chosen = sorted(set(broker_ids)) or sorted(
        broker_id for broker_id, status in statuses.items() if status.is_online
    )
    if not chosen:
        raise _bad("no broker of the cluster is online")
    return chosen


def _bad(what: str) -> GatewayError:
    return GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)
