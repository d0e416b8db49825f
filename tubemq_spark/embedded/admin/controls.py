"""The master's web calls about the cluster's setting, and the permissions and limits of groups.

See WebMasterInfoHandler, WebGroupConsumeCtrlHandler, WebGroupResCtrlHandler and WebAdminTopicAuthHandler.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import (
    Call,
    GuardedCall,
    ItemCode,
    ItemError,
    Parameters,
    author_of,
    bad_request,
    outcome_of,
    success,
)
from tubemq_spark.embedded.admin.topic_properties import (
    read_priority,
    read_properties,
    read_rules,
    show_properties,
    show_rules,
)
from tubemq_spark.embedded.config.catalog import SYSTEM_USER, TopicSpec, shown
from tubemq_spark.embedded.config.controls import (
    NO_RULES,
    ClusterSetting,
    ConsumeControl,
    GroupControl,
    TopicControl,
)
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.protocol.constants import UNDEFINED

_MAX_MESSAGE_MB: Final = 20


class ClusterCalls:
    """The calls about the cluster."""

    def __init__(self, state: MasterState, token: str, started_ms: int) -> None:
        """Calls that change something need ``token``; the master became active at ``started_ms``."""
        self._state = state
        self._started_ms = started_ms
        self._change_lock = threading.Lock()
        self.calls: Mapping[str, Call] = {
            "admin_query_master_group_info": self.query_master_group,
            "admin_set_cluster_default_setting": GuardedCall(token, self.set_cluster),
        }

    def query_master_group(self, _parameters: Parameters) -> dict[str, Any]:
        """Return the masters: this one leads, because one that does not redirects all calls."""
        master = self._state.address
        node = {
            "index": 1,
            "name": "embedded",
            "hostName": master.host,
            # A text, as in TubeMQ's answers.
            "port": str(master.port),
            "statusInfo": {"nodeStatus": "Master", "joinTime": str(self._started_ms)},
        }
        return {
            "result": True,
            "errCode": 0,
            "errMsg": "Ok",
            "groupName": "embedded",
            "isPrimaryNodeActive": False,
            "data": [node],
            "count": 1,
            "groupStatus": "Running-ReadWrite",
        }

    def set_cluster(self, parameters: Parameters) -> dict[str, Any]:
        """Set the cluster's setting; topic properties that the call does not name are reset."""
        who = author_of(parameters, adding=True)
        fields = _cluster_fields(parameters)
        fields["properties"] = TopicSpec(**read_properties(parameters))
        fields.setdefault("flow_rules", NO_RULES)
        controls = self._state.controls
        with self._change_lock:
            setting = dataclasses.replace(controls.cluster, **fields)
            if setting == controls.cluster:
                raise bad_request("Cluster configure not changed!")
            controls.set_cluster(setting, who.user, who.date)
        return success([_shown_cluster(controls.cluster)])


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


class ControlCalls:
    """The calls about consume controls (of a group and a topic) and resource controls (of a group)."""

    def __init__(self, state: MasterState, token: str) -> None:
        """Calls that change something need ``token``."""
        self._state = state
        self._controls = state.controls
        # Two calls at once must not both find that a record is new.
        self._change_lock = threading.Lock()
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
        with self._change_lock:
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
