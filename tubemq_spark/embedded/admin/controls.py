"""The master's web calls about the permissions and limits of groups.

See WebGroupConsumeCtrlHandler, WebGroupResCtrlHandler and WebAdminTopicAuthHandler.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tubemq_spark.embedded.admin.flow import read_priority, read_rules, show_rules
from tubemq_spark.embedded.admin.items import ItemCode, ItemError, outcome_of, success
from tubemq_spark.embedded.admin.parameters import Call, GuardedCall, Parameters, author_of, bad_request
from tubemq_spark.embedded.config.controls import ConsumeControl, GroupControl, TopicControl
from tubemq_spark.embedded.config.stamps import SYSTEM_USER, shown
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.protocol.constants import UNDEFINED


class ControlCalls:
    """The calls about consume controls (of a group and a topic) and resource controls (of a group)."""

    def __init__(self, state: MasterState, token: str) -> None:
        """Calls that change something need ``token``."""
        self._state = state
        self._controls = state.controls
        # Two calls at once must not both find that a record is new.
        self._changing = threading.Lock()
        self.calls: Mapping[str, Call] = {
            "admin_set_topic_authorize_control": GuardedCall(token, self.authorize_topics),
            "admin_add_group_csmctrl_info": GuardedCall(token, self.add_consume),
            "admin_add_group_resctrl_info": GuardedCall(token, self.add_group),
            "admin_update_group_resctrl_info": GuardedCall(token, self.update_group),
            "admin_query_group_csmctrl_info": self.query_consume,
            "admin_query_group_resctrl_info": self.query_groups,
        }

    def authorize_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Set whether topics are restricted to groups with a consume control."""
        who = author_of(parameters, adding=True)
        topics = parameters.required_items("topicName")
        # The name that TubeMQ reads, and the name in its newer calls.
        older = parameters.optional_flag("isEnable")
        enabled = parameters.flag("enableAuthControl", default=False) if older is None else older

        def authorize(topic: str) -> None:
            exists = bool(self._state.brokers.deployments(topic)) or topic in self._controls.topics()
            if exists and enabled == self._controls.topic(topic).authorize:
                raise ItemError(ItemCode.UNCHANGED, "Topic control configure not changed!")
            self._controls.set_topic(topic, TopicControl(enabled), who.user, who.date)

        return self._each([{"topicName": topic} for topic in topics], lambda key: authorize(key["topicName"]))

    def add_consume(self, parameters: Parameters) -> dict[str, Any]:
        """Set what groups may do with topics."""
        who = author_of(parameters, adding=True)
        topics, groups = self._topics(parameters), parameters.required_items("groupName")
        fields = _consume_fields(parameters)

        def add(key: Mapping[str, str]) -> None:
            group, topic = key["groupName"], key["topicName"]
            if self._controls.consume(group, topic) is not None:
                what = f"Existed record found for groupName-topicName({topic}:{group})!"
                raise ItemError(ItemCode.EXISTS, what)
            self._introduce(group, topic)
            self._controls.set_consume(group, topic, ConsumeControl(**fields), who.user, who.date)

        keys = [{"groupName": group, "topicName": topic} for group in groups for topic in topics]
        return self._each(keys, add)

    def query_consume(self, parameters: Parameters) -> dict[str, Any]:
        """Return what groups may do with topics."""
        groups, topics = parameters.items("groupName"), parameters.items("topicName")
        return success(
            [
                show_consume(group, topic, control)
                for (group, topic), control in self._controls.consumes().items()
                if (not groups or group in groups) and (not topics or topic in topics)
            ]
        )

    def add_group(self, parameters: Parameters) -> dict[str, Any]:
        """Add resource controls of groups."""
        who = author_of(parameters, adding=True)
        groups = parameters.required_items("groupName")
        default = GroupControl(query_priority=self._controls.cluster.query_priority)
        control = dataclasses.replace(default, **_group_fields(parameters))

        def add(key: Mapping[str, str]) -> None:
            group = key["groupName"]
            if self._controls.group(group) is not None:
                raise ItemError(ItemCode.EXISTS, f"Existed record found for groupName({group})!")
            self._controls.set_group(group, control, who.user, who.date)

        return self._each([{"groupName": group} for group in groups], add)

    def update_group(self, parameters: Parameters) -> dict[str, Any]:
        """Change resource controls of groups."""
        who = author_of(parameters, adding=False)
        groups = parameters.required_items("groupName")
        fields = _group_fields(parameters)

        def update(key: Mapping[str, str]) -> None:
            group = key["groupName"]
            old = self._controls.group(group)
            if old is None:
                what = f"Not found group control configure for groupName({group})!"
                raise ItemError(ItemCode.NOT_FOUND, what)
            new = dataclasses.replace(old, **fields)
            if new == old:
                raise ItemError(ItemCode.UNCHANGED, "Group control configure not changed!")
            self._controls.set_group(group, new, who.user, who.date)

        return self._each([{"groupName": group} for group in groups], update)

    def query_groups(self, parameters: Parameters) -> dict[str, Any]:
        """Return resource controls of groups."""
        groups = parameters.items("groupName")
        records = self._controls.groups().items()
        return success([_shown_group(*record) for record in records if not groups or record[0] in groups])

    def _topics(self, parameters: Parameters) -> list[str]:
        topics = parameters.required_items("topicName")
        for topic in topics:
            if not self._state.brokers.deployments(topic):
                raise bad_request(f"topicName value {topic} is not configure, please configure first!")
        return topics

    def _introduce(self, group: str, topic: str) -> None:
        """Create the records that a consume control needs, if they do not exist."""
        if topic not in self._controls.topics():
            self._controls.set_topic(topic, TopicControl(), SYSTEM_USER)
        if self._controls.group(group) is None:
            self._controls.set_group(group, GroupControl(), SYSTEM_USER)

    def _each(
        self, keys: list[dict[str, str]], change: Callable[[Mapping[str, str]], None]
    ) -> dict[str, Any]:
        with self._changing:
            return success([{**key, **outcome_of(change, key)} for key in keys])


def _consume_fields(parameters: Parameters) -> dict[str, Any]:
    """Return the fields of a consume control in a call."""
    conditions = parameters.items("filterConds")
    fields = {
        "consume": parameters.optional_flag("consumeEnable"),
        "disable_reason": parameters.text("disableCsmRsn"),
        "filter": parameters.optional_flag("filterEnable"),
        "filter_conditions": tuple(conditions) if conditions else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _group_fields(parameters: Parameters) -> dict[str, Any]:
    """Return the fields of a resource control in a call."""
    fields = {
        "res_check": parameters.optional_flag("resCheckEnable"),
        "allowed_broker_client_rate": parameters.optional_number("alwdBrokerClientRate", least=0),
        "query_priority": read_priority(parameters),
        "flow_control": parameters.optional_flag("flowCtrlEnable"),
        "flow_rules": read_rules(parameters),
    }
    return {name: value for name, value in fields.items() if value is not None}


def show_consume(group: str, topic: str, control: ConsumeControl) -> dict[str, Any]:
    """Return a record as GroupConsumeCtrlEntity.toWebJsonStr does."""
    conditions = f",{','.join(control.filter_conditions)}," if control.filter_conditions else ""
    return {
        "topicName": topic,
        "groupName": group,
        "consumeEnable": control.consume,
        "disableCsmRsn": control.disable_reason,
        "filterEnable": control.filter,
        "filterConds": conditions,
        "dataVersionId": UNDEFINED,
        **shown(control.stamp),
    }


def _shown_group(name: str, control: GroupControl) -> dict[str, Any]:
    """Return a record as GroupResCtrlEntity.toWebJsonStr does."""
    return {
        "groupName": name,
        "resCheckEnable": control.res_check,
        "alwdBrokerClientRate": control.allowed_broker_client_rate,
        "qryPriorityId": control.query_priority,
        "flowCtrlEnable": control.flow_control,
        **show_rules(control.flow_rules),
        "dataVersionId": UNDEFINED,
        **shown(control.stamp),
    }
