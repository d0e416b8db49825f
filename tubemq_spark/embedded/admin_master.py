"""The master's web calls: topics, the broker's state, and the groups that are online."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin_http import Call, Parameters, bad_request
from tubemq_spark.embedded.catalog import TopicSpec, TopicStatus
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.master_state import MasterState
from tubemq_spark.embedded.members import Consumer
from tubemq_spark.embedded.settings import BROKER_ID
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint

_MIB: Final = 1 << 20
_OK: Final = 200
_NOT_FOUND: Final = 401
_EXISTS: Final = 402
_UNCHANGED: Final = 403
_ILLEGAL_STATUS: Final = 406
_ILLEGAL_VALUE: Final = 407
_DELETE_POLICY: Final = re.compile(r"delete,(\d+)([smh]?)", re.ASCII)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "": 3_600_000}
_NOT_PUBLISHED: Final = "-"

SetTopic = Callable[[str, TopicSpec], None]
"""Adds a topic or changes one; refuses with OptionError."""


@dataclasses.dataclass(frozen=True, slots=True)
class Addresses:
    """Where the servers listen, as clients are told."""

    master: Endpoint
    broker: Endpoint
    broker_web_port: int


class MasterCalls:
    """The calls of the master's web API that concern topics, the broker, and groups."""

    def __init__(self, state: MasterState, addresses: Addresses, token: str, set_topic: SetTopic) -> None:
        """Changing calls must carry ``token``; topics are changed by ``set_topic``."""
        self._state = state
        self._addresses = addresses
        self._token = token
        self._set_topic = set_topic
        self.calls: Mapping[str, Call] = {
            "admin_add_broker_configure": self._changing("createUser", self.accept_broker),
            "admin_online_broker_configure": self._changing("modifyUser", self.accept_broker),
            "admin_add_new_topic_record": self._changing("createUser", self.add_topics),
            "admin_add_topic_deploy_info": self._changing("createUser", self.add_topics),
            "admin_modify_topic_info": self._changing("modifyUser", self.modify_topics),
            "admin_update_topic_deploy_info": self._changing("modifyUser", self.modify_topics),
            "admin_delete_topic_info": self._changing("modifyUser", self.delete_topics),
            "admin_delete_topic_deploy_info": self._changing("modifyUser", self.delete_topics),
            "admin_remove_topic_info": self._changing("modifyUser", self.remove_topics),
            "admin_remove_topic_deploy_info": self._changing("modifyUser", self.remove_topics),
            "admin_query_topic_info": self.query_topics,
            "admin_query_broker_run_status": self.query_broker_run_status,
            "admin_query_master_group_info": self.query_master_group,
            "admin_query_sub_info": self.query_subscriptions,
            "admin_query_consume_group_detail": self.query_group_detail,
        }

    def accept_broker(self, parameters: Parameters) -> dict[str, Any]:
        """Say yes to configuring the one broker that there is; it needs none."""
        items = []
        for text in parameters.items("brokerId") or [str(BROKER_ID)]:
            known = text in (str(BROKER_ID), "0")
            outcome = (
                _outcome(_OK, "Ok") if known else _outcome(_NOT_FOUND, f"there is only broker {BROKER_ID}")
            )
            items.append({"brokerId": text, "brokerIp": parameters.text("brokerIp"), **outcome})
        return _success(items)

    def add_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Create topics."""

        def add(_topic: str, spec: TopicSpec | None) -> TopicSpec:
            if spec is not None:
                raise _ItemError(_EXISTS, "the topic exists already")
            return _changed(TopicSpec(), parameters)

        return self._each_topic(parameters, add)

    def modify_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Change properties of topics."""

        def modify(_topic: str, spec: TopicSpec | None) -> TopicSpec:
            old = _existing(spec)
            new = _changed(old, parameters)
            if new == old:
                raise _ItemError(_UNCHANGED, "nothing would change")
            return new

        return self._each_topic(parameters, modify)

    def delete_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Close topics for good; their data stay."""

        def delete(_topic: str, spec: TopicSpec | None) -> TopicSpec:
            old = _existing(spec)
            if old.accept_publish or old.accept_subscribe:
                raise _ItemError(_ILLEGAL_STATUS, "set acceptPublish and acceptSubscribe to false first")
            return dataclasses.replace(old, status=TopicStatus.SOFT_DELETED)

        return self._each_topic(parameters, delete)

    def remove_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Delete closed topics and their data, at once (TubeMQ's brokers do it in their own time)."""

        def remove(_topic: str, spec: TopicSpec | None) -> TopicSpec:
            old = _existing(spec)
            if old.status is TopicStatus.NORMAL:
                raise _ItemError(_ILLEGAL_STATUS, "delete the topic first")
            return dataclasses.replace(old, status=TopicStatus.REMOVED)

        return self._each_topic(parameters, remove)

    def query_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Return topics with their properties, and what clients are told of them."""
        wanted = parameters.items("topicName")
        topics = self._state.catalog.all().items()
        return _success([self._topic(name, spec) for name, spec in topics if not wanted or name in wanted])

    def query_broker_run_status(self, _parameters: Parameters) -> dict[str, Any]:
        """Return the state of the broker: it always runs."""
        broker = self._addresses.broker
        return _success(
            [
                {
                    "brokerId": BROKER_ID,
                    "brokerIp": broker.host,
                    "brokerPort": broker.port,
                    "brokerWebPort": self._addresses.broker_web_port,
                    "manageStatus": "online",
                    "runStatus": "running",
                    "subStatus": "idle",
                    "stepOp": -2,
                    # These are texts in TubeMQ's answers.
                    "isConfChanged": "false",
                    "isConfLoaded": "true",
                    "isBrokerOnline": "true",
                    "acceptPublish": "true",
                    "acceptSubscribe": "true",
                }
            ]
        )

    def query_master_group(self, _parameters: Parameters) -> dict[str, Any]:
        """Return the masters: this one leads."""
        master = self._addresses.master
        node = {
            "index": 1,
            "name": "embedded",
            "hostName": master.host,
            "port": master.port,
            "statusInfo": {"nodeStatus": "Master", "joinTime": ""},
        }
        group = {"groupName": "embedded", "isPrimaryNodeActive": True}
        return {**_success([node]), **group, "groupStatus": "Running-ReadWrite"}

    def query_subscriptions(self, parameters: Parameters) -> dict[str, Any]:
        """Return the groups that have members."""
        names = parameters.items("groupName") or parameters.items("consumeGroup")
        topics = set(parameters.items("topicName"))
        with self._state.lock:
            return _success(
                [
                    {
                        "consumeGroup": group.name,
                        "topicSet": sorted(group.terms.topics),
                        "consumerNum": len(group.members),
                    }
                    for group in self._state.members.groups.values()
                    if (not names or group.name in names) and (not topics or topics & group.terms.topics)
                ]
            )

    def query_group_detail(self, parameters: Parameters) -> dict[str, Any]:
        """Return a group's members and what they say they hold; an unknown group has none."""
        name = parameters.text("groupName") or parameters.required("consumeGroup")
        with self._state.lock:
            group = self._state.members.groups.get(name)
            members = [self._member(consumer) for consumer in group.members.values()] if group else []
            topics = sorted(group.terms.topics) if group else []
            filters = {topic: sorted(types) for topic, types in group.terms.filters.items()} if group else {}
        return {
            "result": True,
            "errCode": 0,
            "errMsg": "OK",
            "count": len(members),
            "topicSet": topics,
            "consumeGroup": name,
            "re-rebalance": {},
            "isBandConsume": "client-rebalance" if group else "unbound",
            "rebInfo": {"isRebalanced": False},
            "filterConds": filters,
            "data": members,
        }

    def _changing(self, user: str, call: Call) -> Call:
        """Let a call through only with the token and the name of a user."""

        def checked(parameters: Parameters) -> dict[str, Any]:
            if parameters.required("confModAuthToken") != self._token:
                raise bad_request("illegal access, unauthorized request!")
            parameters.required(user)
            return call(parameters)

        return checked

    def _each_topic(
        self, parameters: Parameters, change: Callable[[str, TopicSpec | None], TopicSpec]
    ) -> dict[str, Any]:
        """Change each topic of a call on each broker of it; what fails is said in the item only."""
        items = []
        for broker_id in parameters.required_items("brokerId"):
            for topic in parameters.required_items("topicName"):
                try:
                    if broker_id != str(BROKER_ID):
                        raise _ItemError(_NOT_FOUND, f"there is only broker {BROKER_ID}")
                    self._set_topic(topic, change(topic, self._state.catalog.get(topic)))
                    outcome = _outcome(_OK, "Ok")
                except _ItemError as error:
                    outcome = _outcome(error.code, str(error))
                except OptionError as error:
                    outcome = _outcome(_ILLEGAL_VALUE, str(error))
                items.append({"brokerId": broker_id, "topicName": topic, **outcome})
        return _success(items)

    def _topic(self, name: str, spec: TopicSpec) -> dict[str, Any]:
        online = spec.publishable or spec.subscribable
        broker = self._addresses.broker
        run_info = {
            "acceptPublish": spec.publishable if online else _NOT_PUBLISHED,
            "acceptSubscribe": spec.subscribable if online else _NOT_PUBLISHED,
            "numPartitions": spec.partitions if online else _NOT_PUBLISHED,
            "numTopicStores": spec.stores if online else _NOT_PUBLISHED,
            "brokerManageStatus": "online",
        }
        deployed = {
            "topicName": name,
            "topicStatusId": int(spec.status),
            "brokerId": BROKER_ID,
            "brokerIp": broker.host,
            "brokerPort": broker.port,
            "numPartitions": spec.partitions,
            "numTopicStores": spec.stores,
            "acceptPublish": spec.accept_publish,
            "acceptSubscribe": spec.accept_subscribe,
            "unflushThreshold": spec.flush_messages,
            "unflushInterval": spec.flush_interval_ms,
            "unflushDataHold": spec.flush_bytes,
            "deletePolicy": f"delete,{spec.retention_ms // 1000}s",
            "runInfo": run_info,
        }
        count = spec.stores * spec.partitions
        return {
            "topicName": name,
            "maxMsgSizeInMB": -(-spec.max_message_bytes // _MIB),
            "topicInfo": [deployed],
            "infoCount": 1,
            "totalCfgNumPart": count,
            "isSrvAcceptPublish": spec.publishable,
            "isSrvAcceptSubscribe": spec.subscribable,
            "totalRunNumPartCount": count if online else 0,
            "authData": {"enableAuthControl": False},
        }

    def _member(self, consumer: Consumer) -> dict[str, Any]:
        parts = [
            {
                "partId": held.partition_id,
                "brokerAddr": str(self._addresses.broker),
                "topicName": held.topic,
            }
            for held in consumer.held
        ]
        return {
            "consumerId": consumer.client_id,
            "receivedFrom": "",
            "isOverTLS": False,
            "parCount": len(parts),
            "parInfo": parts,
        }


class _ItemError(Exception):
    """One item of a call that goes on with the others."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _existing(spec: TopicSpec | None) -> TopicSpec:
    if spec is None:
        raise _ItemError(_NOT_FOUND, "there is no such topic")
    return spec


def _changed(spec: TopicSpec, parameters: Parameters) -> TopicSpec:
    """Return a topic with the properties that a call names."""
    try:
        return dataclasses.replace(
            spec,
            stores=parameters.number("numTopicStores", spec.stores),
            partitions=parameters.number("numPartitions", spec.partitions),
            accept_publish=parameters.flag("acceptPublish", default=spec.accept_publish),
            accept_subscribe=parameters.flag("acceptSubscribe", default=spec.accept_subscribe),
            flush_messages=parameters.number("unflushThreshold", spec.flush_messages),
            flush_interval_ms=parameters.number("unflushInterval", spec.flush_interval_ms),
            flush_bytes=parameters.number("unflushDataHold", spec.flush_bytes),
            retention_ms=_retention_ms(parameters.text("deletePolicy"), spec.retention_ms),
        )
    except RefusedError as error:
        raise _ItemError(_ILLEGAL_VALUE, error.text) from error


def _retention_ms(policy: str, default: int) -> int:
    """Read ``delete,<number><unit>``, where the unit is s, m or h."""
    if not policy:
        return default
    match = _DELETE_POLICY.fullmatch(policy)
    if match is None:
        raise _ItemError(_ILLEGAL_VALUE, f"{policy} is no deletePolicy, such as delete,168h")
    return int(match[1]) * _UNIT_MS[match[2]]


def _outcome(code: int, text: str) -> dict[str, Any]:
    return {"success": code == _OK, "errCode": code, "errInfo": text}


def _success(data: list[dict[str, Any]]) -> dict[str, Any]:
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}
