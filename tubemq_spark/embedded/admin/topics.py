"""The master's web calls about topics (WebTopicDeployHandler)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.brokers import broker_fields
from tubemq_spark.embedded.admin.controls import show_consume
from tubemq_spark.embedded.admin.fields import read_properties, show_properties
from tubemq_spark.embedded.admin.parameters import (
    Author,
    Call,
    ItemCode,
    ItemError,
    Key,
    Parameters,
    RecordChanges,
    Values,
    success,
)
from tubemq_spark.embedded.config.catalog import TopicSpec, TopicStatus, dates, shown
from tubemq_spark.embedded.master.state import BrokerEntry, MasterState
from tubemq_spark.errors import OptionError
from tubemq_spark.protocol.constants import UNDEFINED

_MIB: Final = 1 << 20
_MUST_FILTER: Final = 2
_NOT_PUBLISHED: Final = "-"

Deployments = list[tuple[BrokerEntry, TopicSpec]]
"""The brokers of a topic, and its specification on each."""


SetTopic = Callable[[int, str, TopicSpec, str, str | None], None]
"""Adds a topic to a broker or changes it there, in the name of a user and with a date (None: now).

The date is ``yyyyMMddHHmmss``. It may raise OptionError.
"""


class TopicCalls:
    """The calls about topics; each takes a list of topics and a list of brokers."""

    def __init__(self, state: MasterState, token: str, set_topic: SetTopic) -> None:
        """Calls that change something need ``token``; ``set_topic`` changes topics."""
        self._state = state
        self._set_topic = set_topic
        call = RecordChanges(token).call
        close = functools.partial(self._change_status, TopicStatus.SOFT_DELETED)
        # At once; TubeMQ's brokers do it in their own time.
        remove = functools.partial(self._change_status, TopicStatus.REMOVED)
        self.calls: Mapping[str, Call] = {
            "admin_add_new_topic_record": call(_by_topic, self._add, read_properties, adding=True),
            "admin_modify_topic_info": call(_by_topic, self._modify, read_properties),
            "admin_delete_topic_info": call(_by_broker, close),
            "admin_remove_topic_info": call(_by_broker, remove),
            "admin_query_topic_info": self.query_topics,
        }

    def _add(self, key: Key, fields: Values, who: Author) -> None:
        """Create a topic; properties that the call does not name are the broker's defaults."""
        broker, name = self._broker(key), _name(key)
        if (old := broker.catalog.get(key["topicName"])) is not None:
            what = f"Existed record found for brokerId-topicName({name})!"
            if old.status is not TopicStatus.NORMAL:
                what = f"Softly deleted record found for brokerId-topicName({name})"
                what = f"{what}, please resume or remove it first!"
            raise ItemError(ItemCode.EXISTS, what)
        spec = dataclasses.replace(
            broker.config.record.defaults,
            status=TopicStatus.NORMAL,
            max_message_bytes=self._state.controls.cluster.max_message_bytes,
            **fields,
        )
        self._set(key, spec, who)

    def _modify(self, key: Key, fields: Values, who: Author) -> None:
        """Change properties of a topic."""
        broker, name = self._broker(key), _name(key)
        old = broker.catalog.get(key["topicName"])
        if old is None:
            what = f"Not found topic deploy configure for brokerId-topicName({name})!"
            raise ItemError(ItemCode.NOT_FOUND, what)
        new = dataclasses.replace(old, **fields)
        _check_change(name, old, new)
        self._set(key, new, who)

    def _change_status(self, status: TopicStatus, key: Key, _fields: Values, who: Author) -> None:
        """Close a topic, whose data is kept, or remove a closed one with its data."""
        broker, topic = self._broker(key), key["topicName"]
        old = broker.catalog.get(topic)
        if old is None:
            what = f"Not found the topic {topic}'s deploy configure in broker={broker.id}"
            raise ItemError(ItemCode.NOT_FOUND, f"{what}, please confirm the configure first!")
        if old.status is not status:
            _check_status_change(_name(key), old, status)
            self._set(key, dataclasses.replace(old, status=status), who)

    def query_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Return topics with their properties and what clients are told."""
        names, brokers = parameters.items("topicName"), parameters.numbers("brokerId")
        topics: dict[str, Deployments] = {}
        for broker in self._state.brokers:
            if not brokers or broker.id in brokers:
                for name, spec in broker.catalog.all().items():
                    if not names or name in names:
                        topics.setdefault(name, []).append((broker, spec))
        return success(
            [
                {
                    "topicName": name,
                    "maxMsgSizeInMB": -(-min(spec.max_message_bytes for _, spec in deployed) // _MIB),
                    "topicInfo": [_record(broker, name, spec) for broker, spec in deployed],
                    **_totals(deployed),
                    "authData": self._authorization(name),
                }
                for name, deployed in sorted(topics.items())
            ]
        )

    def _authorization(self, topic: str) -> dict[str, Any]:
        """Return which groups may read a restricted topic."""
        topic_control = self._state.controls.topic(topic)
        if not topic_control.authorize:
            return {}
        records = self._state.controls.consumes().items()
        controls = {group: control for (group, name), control in records if name == topic}
        groups = [{"groupName": group, **dates(control.stamp)} for group, control in controls.items()]
        filters = [
            {
                "groupName": group,
                "condStatus": _MUST_FILTER if control.filter else 0,
                "filterConds": show_consume(group, topic, control)["filterConds"] if control.filter else "",
                **{key: text for key, text in dates(control.stamp).items() if key != "createUser"},
            }
            for group, control in controls.items()
        ]
        return {
            "enableAuthControl": True,
            "createUser": topic_control.stamp.modify_user,
            "createDate": topic_control.stamp.modify_date,
            "authConsumeGroup": groups,
            "groupCount": len(groups),
            "authFilterCondSet": filters,
            "filterCount": len(filters),
        }

    def _broker(self, key: Key) -> BrokerEntry:
        broker = self._state.brokers.get(key["brokerId"])
        if broker is None:
            what = f"Not found broker configure record by brokerId={key['brokerId']}"
            raise ItemError(ItemCode.NOT_FOUND, f"{what}, please create the broker's configure first!")
        return broker

    def _set(self, key: Key, spec: TopicSpec, who: Author) -> None:
        try:
            self._set_topic(key["brokerId"], key["topicName"], spec, who.user, who.date)
        except OptionError as error:
            raise ItemError(ItemCode.ILLEGAL_VALUE, str(error)) from error


def _by_topic(parameters: Parameters) -> list[Key]:
    topics, brokers = parameters.required_items("topicName"), parameters.required_numbers("brokerId")
    return [{"brokerId": broker_id, "topicName": topic} for topic in topics for broker_id in brokers]


def _by_broker(parameters: Parameters) -> list[Key]:
    return sorted(_by_topic(parameters), key=lambda key: key["brokerId"])


def _name(key: Key) -> str:
    return f"{key['brokerId']}:{key['topicName']}"


def _check_change(key: str, old: TopicSpec, new: TopicSpec) -> None:
    """Refuse invalid changes of properties (AbsTopicDeployMapperImpl.isValidValuesChange)."""
    if new == old:
        raise ItemError(ItemCode.UNCHANGED, "Topic deploy configure not changed!")
    for name, current, count in (
        ("Partition", old.partitions, new.partitions),
        ("TopicStores", old.stores, new.stores),
    ):
        if count < current:
            what = f"{name} number less than before, new value is {count}, current value is {current}"
            raise ItemError(ItemCode.ILLEGAL_VALUE, f"{what}in brokerId-topicName({key}) record!")
    if old.status is not TopicStatus.NORMAL:
        what = "Softly deleted record cannot be changed, please resume or hard remove"
        raise ItemError(ItemCode.ILLEGAL_STATUS, f"{what} for brokerId-topicName({key}) record!")


def _check_status_change(key: str, old: TopicSpec, status: TopicStatus) -> None:
    """Refuse invalid changes of the status (the same)."""
    if old.status is TopicStatus.NORMAL and (old.accept_publish or old.accept_subscribe):
        what = "The values of acceptPublish and acceptSubscribe must be false before change status"
        raise ItemError(ItemCode.ILLEGAL_STATUS, f"{what} of brokerId-topicName({key}) record!")
    if old.status is TopicStatus.NORMAL and status is TopicStatus.REMOVED:
        what = f"Please softly deleted the brokerId-topicName({key}) record first!"
        raise ItemError(ItemCode.ILLEGAL_STATUS, what)


def _record(broker: BrokerEntry, name: str, spec: TopicSpec) -> dict[str, Any]:
    """Return a topic on a broker (TopicDeployEntity.toWebJsonStr), with what clients are told about it."""
    if broker.registered:
        run_info: dict[str, Any] = {
            "acceptPublish": broker.publishes(spec),
            "acceptSubscribe": broker.subscribes(spec),
            "numPartitions": spec.partitions,
            "numTopicStores": spec.stores,
            "brokerManageStatus": broker.config.record.status,
        }
    else:
        names = ("acceptPublish", "acceptSubscribe", "numPartitions", "brokerManageStatus")
        run_info = dict.fromkeys(names, _NOT_PUBLISHED)
    return {
        "topicName": name,
        **broker_fields(broker),
        "topicNameId": UNDEFINED,
        "topicStatusId": int(spec.status),
        **show_properties(spec),
        **shown(broker.catalog.stamp(name)),
        "runInfo": run_info,
    }


def _totals(deployed: Deployments) -> dict[str, Any]:
    return {
        "infoCount": len(deployed),
        "totalCfgNumPart": sum(spec.stores * spec.partitions for _, spec in deployed),
        "isSrvAcceptPublish": any(broker.publishes(spec) for broker, spec in deployed),
        "isSrvAcceptSubscribe": any(broker.subscribes(spec) for broker, spec in deployed),
        "totalRunNumPartCount": sum(
            spec.stores * spec.partitions for broker, spec in deployed if broker.registered
        ),
    }
