"""The master's web calls about topic controls and the cluster's setting.

See WebTopicCtrlHandler, WebAdminTopicAuthHandler, WebMasterInfoHandler.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.flow import read_priority, read_rules, show_rules
from tubemq_spark.embedded.admin.items import ItemCode, ItemError, outcome_of, success
from tubemq_spark.embedded.admin.parameters import (
    Author,
    Call,
    GuardedCall,
    Parameters,
    author_of,
    bad_request,
)
from tubemq_spark.embedded.admin.topic_properties import read_properties, show_properties
from tubemq_spark.embedded.admin.topics import SetTopic
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.controls import NO_RULES, ClusterSetting, ConsumeControl, TopicControl
from tubemq_spark.embedded.config.stamps import dates, shown
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.protocol.constants import UNDEFINED

_MIB: Final = 1 << 20
_MAX_MESSAGE_MB: Final = 20
_FILTERED: Final = 2
"""Says in answers of the older shape that a group must filter."""


class SettingCalls:
    """The calls about topic controls and the settings of the whole cluster."""

    def __init__(self, state: MasterState, token: str, set_topic: SetTopic) -> None:
        """Calls that change something need ``token``; ``set_topic`` changes a topic's size limit."""
        self._state = state
        self._controls = state.controls
        self._set_topic = set_topic
        # Two calls at once must not both find that a record is new.
        self._changing = threading.Lock()
        guarded: Mapping[str, Call] = {
            "admin_set_topic_authorize_control": self.authorize_topics,
            "admin_delete_topic_authorize_control": self.open_topics,
            "admin_add_topic_control_info": self.add_topics,
            "admin_update_topic_control_info": self.update_topics,
            "admin_delete_topic_control_info": self.delete_topics,
            "admin_set_cluster_default_setting": self.set_cluster,
            "admin_update_cluster_default_setting": self.update_cluster,
        }
        self.calls: Mapping[str, Call] = {
            **{name: GuardedCall(token, call) for name, call in guarded.items()},
            "admin_query_topic_authorize_control": self.query_authorization,
            "admin_query_topic_control_info": self.query_topics,
            "admin_query_cluster_default_setting": self.query_cluster,
        }

    def authorize_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Set whether topics are restricted to groups with a consume control."""
        who = author_of(parameters, adding=True)
        topics = parameters.required_items("topicName")
        # The name that TubeMQ reads, and the name in its newer calls.
        asked = parameters.optional_flag("isEnable")
        enabled = parameters.flag("enableAuthControl", default=False) if asked is None else asked

        def authorize(topic: str) -> None:
            self._change_topic(topic, TopicControl(enabled), None, who)

        return self._each(topics, authorize)

    def open_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Open topics to all groups."""
        who = author_of(parameters, adding=False)

        def open_topic(topic: str) -> None:
            if self._controls.topic(topic).authorize:
                self._controls.set_topic(topic, TopicControl(authorize=False), who.user, who.date)

        return self._each(parameters.required_items("topicName"), open_topic)

    def add_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Add controls of topics that do not exist yet; existing topics already have one."""
        who = author_of(parameters, adding=True)
        control, size_mb = _control_and_size(parameters)

        def add(topic: str) -> None:
            if self._is_known(topic):
                raise ItemError(ItemCode.EXISTS, f"Existed record found for topicName({topic})!")
            self._check_size(topic, size_mb)
            self._controls.set_topic(topic, control or TopicControl(), who.user, who.date)

        return self._each(parameters.required_items("topicName"), add)

    def update_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Change controls of topics, and their size limits."""
        who = author_of(parameters, adding=False)
        control, size_mb = _control_and_size(parameters)

        def update(topic: str) -> None:
            if not self._is_known(topic):
                what = f"Not found topic control configure for topicName({topic})!"
                raise ItemError(ItemCode.NOT_FOUND, what)
            self._change_topic(topic, control or self._controls.topic(topic), size_mb, who)

        return self._each(parameters.required_items("topicName"), update)

    def delete_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Delete controls of topics that do not exist any more."""
        author_of(parameters, adding=False)

        def delete(topic: str) -> None:
            in_use = f"TopicName {topic} is in use, please delete"
            if self._state.brokers.deployments(topic):
                raise ItemError(ItemCode.ILLEGAL_STATUS, f"{in_use} deploy configure first!")
            if any(name == topic for _, name in self._controls.consumes()):
                raise ItemError(ItemCode.ILLEGAL_STATUS, f"{in_use} the consume control first!")
            self._controls.remove_topic(topic)

        return self._each(parameters.required_items("topicName"), delete)

    def query_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Return controls of topics."""
        return success(
            [
                {
                    "topicName": topic,
                    "topicNameId": UNDEFINED,
                    "enableAuthControl": control.authorize,
                    "maxMsgSizeInMB": self._size_mb(topic),
                    "dataVersionId": UNDEFINED,
                    **shown(control.stamp),
                }
                for topic, control in self._topic_records(parameters).items()
            ]
        )

    def query_authorization(self, parameters: Parameters) -> dict[str, Any]:
        """Return which topics are restricted, and to which groups, in the older shape."""
        return success([self._authorization(*item) for item in self._topic_records(parameters).items()])

    def set_cluster(self, parameters: Parameters) -> dict[str, Any]:
        """Set the cluster's setting; topic properties that the call does not name are reset."""
        who = author_of(parameters, adding=True)
        fields = _cluster_fields(parameters)
        fields["properties"] = TopicSpec(**read_properties(parameters))
        fields.setdefault("flow_rules", NO_RULES)
        return self._change_cluster(fields, who)

    def update_cluster(self, parameters: Parameters) -> dict[str, Any]:
        """Change the cluster's setting."""
        who = author_of(parameters, adding=False)
        fields = _cluster_fields(parameters)
        old = self._controls.cluster.properties
        fields["properties"] = dataclasses.replace(old, **read_properties(parameters))
        return self._change_cluster(fields, who)

    def query_cluster(self, _parameters: Parameters) -> dict[str, Any]:
        """Return the cluster's setting, if it has been set."""
        setting = self._controls.cluster
        return success([_shown_cluster(setting)] if setting.stamp.serial_id != UNDEFINED else [])

    def _change_cluster(self, fields: Mapping[str, Any], who: Author) -> dict[str, Any]:
        with self._changing:
            old = self._controls.cluster
            new = dataclasses.replace(old, **fields)
            if new == old:
                raise bad_request("Cluster configure not changed!")
            self._controls.set_cluster(new, who.user, who.date)
        return success([_shown_cluster(self._controls.cluster)])

    def _change_topic(self, topic: str, control: TopicControl, size_mb: int | None, who: Author) -> None:
        self._check_size(topic, size_mb)
        known = self._is_known(topic)
        new_size = size_mb if size_mb != self._size_mb(topic) else None
        if known and control == self._controls.topic(topic) and new_size is None:
            raise ItemError(ItemCode.UNCHANGED, "Topic control configure not changed!")
        if new_size is not None:
            for broker, spec in self._state.brokers.deployments(topic):
                new = dataclasses.replace(spec, max_message_bytes=new_size * _MIB)
                self._set_topic(broker.id, topic, new, who.user, who.date)
        self._controls.set_topic(topic, control, who.user, who.date)

    def _check_size(self, topic: str, size_mb: int | None) -> None:
        """Refuse a size limit of a topic that does not exist, because there is nowhere to store it."""
        if size_mb is not None and not self._state.brokers.deployments(topic):
            what = f"TopicName {topic} is not deployed, its maxMsgSizeInMB cannot be set"
            raise ItemError(ItemCode.CONDITION_LACKING, what)

    def _is_known(self, topic: str) -> bool:
        return bool(self._state.brokers.deployments(topic)) or topic in self._controls.topics()

    def _size_mb(self, topic: str) -> int:
        sizes = [spec.max_message_bytes for _, spec in self._state.brokers.deployments(topic)]
        return -(-min(sizes) // _MIB) if sizes else self._controls.cluster.max_message_mb

    def _topic_records(self, parameters: Parameters) -> dict[str, TopicControl]:
        wanted = parameters.items("topicName")
        names = sorted({*self._state.brokers.topics(), *self._controls.topics()})
        return {name: self._controls.topic(name) for name in names if not wanted or name in wanted}

    def _authorization(self, topic: str, control: TopicControl) -> dict[str, Any]:
        rights = self._controls.consumes().items()
        groups = [(group, right) for (group, name), right in rights if name == topic]
        return {
            "topicName": topic,
            "isEnable": control.authorize,
            **dates(control.stamp),
            "authConsumeGroup": [
                {"topicName": topic, "groupName": group, **dates(right.stamp)} for group, right in groups
            ],
            "groupCount": len(groups),
            "authFilterCondSet": [_shown_filter(topic, group, right) for group, right in groups],
            "filterCount": len(groups),
        }

    def _each(self, topics: list[str], change: Callable[[str], None]) -> dict[str, Any]:
        items = []
        with self._changing:
            for topic in topics:
                outcome = outcome_of(change, topic)
                items.append({"topicName": topic, **outcome})
        return success(items)


def _control_and_size(parameters: Parameters) -> tuple[TopicControl | None, int | None]:
    """Return the control and the size limit in a call."""
    authorize = parameters.optional_flag("enableAuthControl")
    size_mb = parameters.optional_number("maxMsgSizeInMB", least=1, most=_MAX_MESSAGE_MB)
    return None if authorize is None else TopicControl(authorize), size_mb


def _cluster_fields(parameters: Parameters) -> dict[str, Any]:
    """Return the fields of the cluster's setting in a call, without topic properties."""
    fields = {
        "max_message_mb": parameters.optional_number("maxMsgSizeInMB", least=1, most=_MAX_MESSAGE_MB),
        "broker_port": parameters.optional_number("brokerPort", least=1),
        "broker_tls_port": parameters.optional_number("brokerTLSPort", least=1),
        "broker_web_port": parameters.optional_number("brokerWebPort", least=1),
        "query_priority": read_priority(parameters),
        "flow_control": parameters.optional_flag("flowCtrlEnable"),
        "flow_rules": read_rules(parameters),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _shown_cluster(setting: ClusterSetting) -> dict[str, Any]:
    """Return the setting as ClusterSettingEntity.toWebJsonStr does."""
    return {
        "brokerPort": setting.broker_port,
        "brokerTLSPort": setting.broker_tls_port,
        "brokerWebPort": setting.broker_web_port,
        "maxMsgSizeInMB": setting.max_message_mb,
        "qryPriorityId": setting.query_priority,
        "flowCtrlEnable": setting.flow_control,
        **show_rules(setting.flow_rules),
        **show_properties(setting.properties),
        "dataVersionId": UNDEFINED,
        **shown(setting.stamp),
    }


def _shown_filter(topic: str, group: str, right: ConsumeControl) -> dict[str, Any]:
    conditions = f",{','.join(right.filter_conditions)}," if right.filter_conditions else ""
    return {
        "topicName": topic,
        "groupName": group,
        "condStatus": _FILTERED if right.filter else 0,
        "filterConds": conditions,
        **dates(right.stamp),
    }
