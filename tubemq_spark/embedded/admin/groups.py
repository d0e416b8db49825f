"""The master's web calls about groups that are online (WebOtherInfoHandler, WebAdminGroupCtrlHandler)."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tubemq_spark.embedded.admin.parameters import (
    Call,
    GuardedCall,
    Parameters,
    author_of,
    bad_request,
    ok,
    success,
)
from tubemq_spark.embedded.master.balancing import DEFAULT_BROKERS_PER_CLIENT
from tubemq_spark.embedded.master.groups import ConsumeType, Group, GroupTerms, RegisteredConsumer
from tubemq_spark.embedded.master.handlers import layout_texts
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.protocol.constants import UNDEFINED

logger = logging.getLogger(__name__)


class GroupCalls:
    """The calls that query groups with members, and that give such groups orders."""

    def __init__(self, state: MasterState, token: str, now_ms: Callable[[], int] = wall_ms) -> None:
        """Take what the master's handlers share; calls that change something need ``token``."""
        self._state = state
        self._now_ms = now_ms
        self.calls: Mapping[str, Call] = {
            "admin_query_sub_info": self.query_subscriptions,
            "admin_query_consume_group_detail": self.query_group_detail,
            "admin_set_client_balance_group_consume_from_max": GuardedCall(token, self.consume_from_max),
        }

    def query_subscriptions(self, parameters: Parameters) -> dict[str, Any]:
        """Return the groups that have members."""
        names = parameters.items("groupName") or parameters.items("consumeGroup")
        topics = set(parameters.items("topicName"))
        with self._state.lock:
            return success(
                [
                    {
                        "consumeGroup": group.name,
                        "topicSet": sorted(group.terms.topics),
                        "consumerNum": len(group.members),
                    }
                    for group in self._groups()
                    if (not names or group.name in names) and (not topics or topics & group.terms.topics)
                ]
            )

    def query_group_detail(self, parameters: Parameters) -> dict[str, Any]:
        """Return a group's members and what they report; an unknown group has no members."""
        name = parameters.text("groupName") or parameters.required("consumeGroup")
        with self._state.lock:
            return self._detail(name, self._state.members.groups.get(name))

    def consume_from_max(self, parameters: Parameters) -> dict[str, Any]:
        """Move client-balanced groups on to the latest messages."""
        who = author_of(parameters, adding=False)
        names = parameters.required_items("groupName")
        with self._state.lock:
            groups = [group for group in self._groups() if group.client_balanced and group.name in names]
            if not groups:
                raise bad_request("all consumer groups are not client balance groups")
            for group in groups:
                group.from_max_id = max(self._now_ms(), group.from_max_id + 1)
        logger.info("%s lets %s continue with the latest messages", who.user, ", ".join(names))
        return ok("OK", data=[])

    def _groups(self) -> list[Group]:
        return [group for _, group in sorted(self._state.members.groups.items())]

    def _detail(self, name: str, group: Group | None) -> dict[str, Any]:
        group = group or Group(name, GroupTerms(frozenset(), {}, UNDEFINED, ConsumeType.NORMAL))
        members = [self._member(group, consumer) for _, consumer in sorted(group.members.items())]
        return {
            **ok("OK", count=len(members)),
            "topicSet": sorted(group.terms.topics),
            "consumeGroup": name,
            "re-rebalance": {},
            "isBandConsume": group.terms.kind.value,
            **self._fields_of_kind(group),
            "rebInfo": _resources(group),
            "filterConds": {topic: sorted(types) for topic, types in sorted(group.terms.filters.items())},
            "data": members,
        }

    def _fields_of_kind(self, group: Group) -> dict[str, Any]:
        """Return the fields that only groups of this kind have."""
        terms = group.terms
        if terms.kind is ConsumeType.BOUND:
            return {
                "isNotAllocate": group.not_allocated,
                "sessionKey": terms.session_key,
                "isSelectBig": terms.select_big,
                "reqSourceCount": terms.source_count,
                "curSourceCount": len(group.members),
                "rebalanceCheckTime": group.waited_rounds,
            }
        if group.client_balanced:
            layout_id, texts = layout_texts(self._state, group)
            return {"topicMetaId": layout_id, "metaDetails": texts}
        return {}

    def _member(self, group: Group, consumer: RegisteredConsumer) -> dict[str, Any]:
        parts = [
            {
                "partId": partition.partition_id,
                "brokerAddr": str(self._state.brokers.get(partition.broker_id) or partition.broker_id),
                "topicName": partition.topic,
            }
            for partition in group.held(consumer)
        ]
        return {
            "consumerId": consumer.client_id,
            "receivedFrom": "",
            "isOverTLS": False,
            **_member_of_kind(group, consumer),
            "parCount": len(parts),
            "parInfo": parts,
        }


def _member_of_kind(group: Group, consumer: RegisteredConsumer) -> dict[str, Any]:
    if group.terms.kind is ConsumeType.BOUND:
        starts = [
            {"partitionKey": f"{part.broker_id}:{part.topic}:{part.partition_id}", "Offset": offset}
            for part, offset in consumer.starts.items()
        ]
        return {"initReSetPartCount": len(starts), "initReSetPartInfo": starts}
    if group.client_balanced:
        return {"sourceCount": consumer.source_count, "nodeId": consumer.node_id}
    return {}


def _resources(group: Group) -> dict[str, Any]:
    checked = group.resources
    if checked is None:
        return {"isRebalanced": False}
    answer: dict[str, Any] = {
        "isRebalanced": True,
        "checkPasted": checked.members_needed is None,
        "defBClientRate": DEFAULT_BROKERS_PER_CLIENT,
        "confBClientRate": checked.configured_rate,
        "curBClientRate": checked.current_rate,
    }
    if checked.members_needed is not None:
        answer["minRequireClientCnt"] = checked.members_needed
    return answer
