"""The master's web calls about topics (WebTopicDeployHandler)."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from tubemq_spark.embedded.admin.brokers import broker_fields
from tubemq_spark.embedded.admin.controls import show_consume
from tubemq_spark.embedded.admin.parameters import (
    Author,
    Call,
    GuardedCall,
    ItemCode,
    ItemError,
    Parameters,
    author_of,
    outcome_of,
    success,
)
from tubemq_spark.embedded.admin.topic_properties import read_properties, show_properties
from tubemq_spark.embedded.config.catalog import TopicSpec, TopicStatus, dates, shown
from tubemq_spark.embedded.master.brokers import BrokerEntry
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.errors import OptionError
from tubemq_spark.protocol.constants import UNDEFINED

_MIB: Final = 1 << 20
_MUST_FILTER: Final = 2
_NOT_PUBLISHED: Final = "-"

Deployments = list[tuple[BrokerEntry, TopicSpec]]
"""The brokers of a topic, and its specification on each."""


class SetTopic(Protocol):
    """Adds a topic to a broker or changes it there, in the name of a user; may raise OptionError."""

    def __call__(self, broker_id: int, topic: str, spec: TopicSpec, by: str, date: str | None) -> None:
        """Set the topic; ``date`` is ``yyyyMMddHHmmss``, None means now."""


class TopicCalls:
    """The calls about topics; each takes a list of topics and a list of brokers."""

    def __init__(self, state: MasterState, token: str, set_topic: SetTopic) -> None:
        """Calls that change something need ``token``; ``set_topic`` changes topics."""
        self._state = state
        self._set_topic = set_topic
        # Two calls at once must not both find that a topic is new.
        self._change_lock = threading.Lock()
        guarded = {
            "admin_add_new_topic_record": self.add_topics,
            "admin_modify_topic_info": self.modify_topics,
            "admin_delete_topic_info": self.delete_topics,
            "admin_remove_topic_info": self.remove_topics,
        }
        self.calls: Mapping[str, Call] = {
            **{name: GuardedCall(token, call) for name, call in guarded.items()},
            "admin_query_topic_info": self.query_topics,
        }

    def add_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Create topics; properties that the call does not name are the broker's defaults."""
        who = author_of(parameters, adding=True)
        topics, brokers = _targets(parameters)
        fields = read_properties(parameters)

        def add(broker_id: int, topic: str) -> None:
            broker = self._broker(broker_id)
            if (old := broker.catalog.get(topic)) is not None:
                raise ItemError(ItemCode.EXISTS, _exists_already(_key(broker_id, topic), old))
            spec = dataclasses.replace(
                broker.config.record.defaults,
                status=TopicStatus.NORMAL,
                max_message_bytes=self._state.controls.cluster.max_message_bytes,
                **fields,
            )
            self._set(broker_id, topic, spec, who)

        return self._each([(broker, topic) for topic in topics for broker in brokers], add)

    def modify_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Change properties of topics."""
        who = author_of(parameters, adding=False)
        topics, brokers = _targets(parameters)
        fields = read_properties(parameters)

        def modify(broker_id: int, topic: str) -> None:
            broker = self._broker(broker_id)
            key = _key(broker_id, topic)
            old = broker.catalog.get(topic)
            if old is None:
                what = f"Not found topic deploy configure for brokerId-topicName({key})!"
                raise ItemError(ItemCode.NOT_FOUND, what)
            new = dataclasses.replace(old, **fields)
            _check_change(key, old, new)
            self._set(broker_id, topic, new, who)

        return self._each([(broker, topic) for topic in topics for broker in brokers], modify)

    def delete_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Close topics; their data is kept."""
        return self._change_status(parameters, TopicStatus.SOFT_DELETED)

    def remove_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Remove closed topics and their data, at once (TubeMQ's brokers do it in their own time)."""
        return self._change_status(parameters, TopicStatus.REMOVED)

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

    def _change_status(self, parameters: Parameters, status: TopicStatus) -> dict[str, Any]:
        who = author_of(parameters, adding=False)
        topics, brokers = _targets(parameters)

        def change(broker_id: int, topic: str) -> None:
            broker = self._broker(broker_id)
            old = broker.catalog.get(topic)
            if old is None:
                what = f"Not found the topic {topic}'s deploy configure in broker={broker_id}"
                raise ItemError(ItemCode.NOT_FOUND, f"{what}, please confirm the configure first!")
            if old.status is not status:
                _check_status_change(_key(broker_id, topic), old, status)
                self._set(broker_id, topic, dataclasses.replace(old, status=status), who)

        return self._each([(broker, topic) for broker in brokers for topic in topics], change)

    def _broker(self, broker_id: int) -> BrokerEntry:
        broker = self._state.brokers.get(broker_id)
        if broker is None:
            what = f"Not found broker configure record by brokerId={broker_id}"
            raise ItemError(ItemCode.NOT_FOUND, f"{what}, please create the broker's configure first!")
        return broker

    def _set(self, broker_id: int, topic: str, spec: TopicSpec, who: Author) -> None:
        try:
            self._set_topic(broker_id, topic, spec, who.user, who.date)
        except OptionError as error:
            raise ItemError(ItemCode.ILLEGAL_VALUE, str(error)) from error

    def _each(self, targets: list[tuple[int, str]], change: Callable[[int, str], None]) -> dict[str, Any]:
        """Apply a change to each topic on each broker; a failure affects only its item."""
        items = []
        for broker_id, topic in targets:
            with self._change_lock:
                outcome = outcome_of(change, broker_id, topic)
            items.append({"brokerId": broker_id, "topicName": topic, **outcome})
        return success(items)


def _targets(parameters: Parameters) -> tuple[list[str], list[int]]:
    return parameters.required_items("topicName"), parameters.required_numbers("brokerId")


def _key(broker_id: int, topic: str) -> str:
    return f"{broker_id}:{topic}"


def _exists_already(key: str, old: TopicSpec) -> str:
    if old.status is TopicStatus.NORMAL:
        return f"Existed record found for brokerId-topicName({key})!"
    what = f"Softly deleted record found for brokerId-topicName({key})"
    return f"{what}, please resume or remove it first!"


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
        "dataVersionId": UNDEFINED,
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
