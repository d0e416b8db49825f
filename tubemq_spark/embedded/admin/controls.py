"""The master's web calls about the cluster's setting, and the permissions and limits of groups.

See WebMasterInfoHandler, WebGroupConsumeCtrlHandler, WebGroupResCtrlHandler and WebAdminTopicAuthHandler.
"""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.fields import (
    Field,
    Fields,
    flag,
    number,
    read_fields,
    read_flow,
    read_properties,
    show_fields,
    show_flow,
    show_properties,
)
from tubemq_spark.embedded.admin.parameters import (
    Author,
    Call,
    GuardedCall,
    ItemCode,
    ItemError,
    Key,
    Parameters,
    RecordChanges,
    Values,
    author_of,
    bad_request,
    ok,
    success,
)
from tubemq_spark.embedded.config.catalog import SYSTEM_USER, TopicSpec, shown
from tubemq_spark.embedded.config.controls import NO_RULES, ConsumeControl, GroupControl, TopicControl
from tubemq_spark.embedded.master.state import MasterState

_SIZE: Final[Fields] = {"maxMsgSizeInMB": number("max_message_mb", 1, 20)}
_PORTS: Final[Fields] = {
    "brokerPort": number("broker_port", 1),
    "brokerTLSPort": number("broker_tls_port", 1),
    "brokerWebPort": number("broker_web_port", 1),
}
_GROUP: Final[Fields] = {
    "resCheckEnable": flag("res_check"),
    "alwdBrokerClientRate": number("allowed_broker_client_rate", 0),
}
_CONSUME: Final[Fields] = {
    "consumeEnable": flag("consume"),
    "disableCsmRsn": Field("disable_reason", Parameters.text),
    "filterEnable": flag("filter"),
}


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
            **ok("Ok", groupName="embedded"),
            "isPrimaryNodeActive": False,
            "data": [node],
            "count": 1,
            "groupStatus": "Running-ReadWrite",
        }

    def set_cluster(self, parameters: Parameters) -> dict[str, Any]:
        """Set the cluster's setting; topic properties that the call does not name are reset."""
        who = author_of(parameters, adding=True)
        fields = {
            "flow_rules": NO_RULES,
            **read_fields(_SIZE, parameters),
            **read_fields(_PORTS, parameters),
            **read_flow(parameters),
            "properties": TopicSpec(**read_properties(parameters)),
        }
        controls = self._state.controls
        with self._change_lock:
            setting = dataclasses.replace(controls.cluster, **fields)
            if setting == controls.cluster:
                raise bad_request("Cluster configure not changed!")
            controls.set_cluster(setting, who.user, who.date)
            shown_setting = controls.cluster
        # As ClusterSettingEntity.toWebJsonStr does.
        return success(
            [
                {
                    **show_fields(_PORTS, shown_setting),
                    **show_fields(_SIZE, shown_setting),
                    **show_flow(shown_setting),
                    **show_properties(shown_setting.properties),
                    **shown(shown_setting.stamp),
                }
            ]
        )


class ControlCalls:
    """The calls about consume controls (of a group and a topic) and resource controls (of a group)."""

    def __init__(self, state: MasterState, token: str) -> None:
        """Calls that change something need ``token``."""
        self._state = state
        self._controls = state.controls
        call = RecordChanges(token).call
        self.calls: Mapping[str, Call] = {
            "admin_set_topic_authorize_control": call(
                _topics, self._authorize_topic, _read_authorize, adding=True
            ),
            "admin_add_group_csmctrl_info": call(
                self._groups_and_topics, self._add_consume, _read_consume, adding=True
            ),
            "admin_add_group_resctrl_info": call(_groups, self._add_group, _read_group, adding=True),
            "admin_update_group_resctrl_info": call(_groups, self._update_group, _read_group),
            "admin_query_group_csmctrl_info": self._query_consumes,
            "admin_query_group_resctrl_info": self._query_groups,
        }

    def _authorize_topic(self, key: Key, fields: Values, who: Author) -> None:
        """Set whether a topic is restricted to groups with a consume control."""
        topic, control = key["topicName"], TopicControl(**fields)
        exists = bool(self._state.brokers.deployments(topic)) or topic in self._controls.topics()
        if exists and control == self._controls.topic(topic):
            raise ItemError(ItemCode.UNCHANGED, "Topic control configure not changed!")
        self._controls.set_topic(topic, control, who.user, who.date)

    def _add_consume(self, key: Key, fields: Values, who: Author) -> None:
        """Set what a group may do with a topic; records that this needs are created."""
        group, topic = key["groupName"], key["topicName"]
        if self._controls.consume(group, topic) is not None:
            what = f"Existed record found for groupName-topicName({topic}:{group})!"
            raise ItemError(ItemCode.EXISTS, what)
        if topic not in self._controls.topics():
            self._controls.set_topic(topic, TopicControl(), SYSTEM_USER)
        if self._controls.group(group) is None:
            self._controls.set_group(group, GroupControl(), SYSTEM_USER)
        self._controls.set_consume(group, topic, ConsumeControl(**fields), who.user, who.date)

    def _query_consumes(self, parameters: Parameters) -> dict[str, Any]:
        """Return what groups may do with topics."""
        groups, topics = parameters.items("groupName"), parameters.items("topicName")
        return success(
            [
                show_consume(group, topic, control)
                for (group, topic), control in self._controls.consumes().items()
                if (not groups or group in groups) and (not topics or topic in topics)
            ]
        )

    def _add_group(self, key: Key, fields: Values, who: Author) -> None:
        """Add the resource control of a group."""
        group = key["groupName"]
        if self._controls.group(group) is not None:
            raise ItemError(ItemCode.EXISTS, f"Existed record found for groupName({group})!")
        default = GroupControl(query_priority=self._controls.cluster.query_priority)
        self._controls.set_group(group, dataclasses.replace(default, **fields), who.user, who.date)

    def _update_group(self, key: Key, fields: Values, who: Author) -> None:
        """Change the resource control of a group."""
        group = key["groupName"]
        old = self._controls.group(group)
        if old is None:
            what = f"Not found group control configure for groupName({group})!"
            raise ItemError(ItemCode.NOT_FOUND, what)
        new = dataclasses.replace(old, **fields)
        if new == old:
            raise ItemError(ItemCode.UNCHANGED, "Group control configure not changed!")
        self._controls.set_group(group, new, who.user, who.date)

    def _query_groups(self, parameters: Parameters) -> dict[str, Any]:
        """Return resource controls of groups (GroupResCtrlEntity.toWebJsonStr)."""
        groups = parameters.items("groupName")
        return success(
            [
                {
                    "groupName": name,
                    **show_fields(_GROUP, control),
                    **show_flow(control),
                    **shown(control.stamp),
                }
                for name, control in self._controls.groups().items()
                if not groups or name in groups
            ]
        )

    def _groups_and_topics(self, parameters: Parameters) -> list[Key]:
        topics = parameters.required_items("topicName")
        for topic in topics:
            if not self._state.brokers.deployments(topic):
                raise bad_request(f"topicName value {topic} is not configure, please configure first!")
        groups = parameters.required_items("groupName")
        return [{"groupName": group, "topicName": topic} for group in groups for topic in topics]


def _topics(parameters: Parameters) -> list[Key]:
    return [{"topicName": topic} for topic in parameters.required_items("topicName")]


def _groups(parameters: Parameters) -> list[Key]:
    return [{"groupName": group} for group in parameters.required_items("groupName")]


def _read_authorize(parameters: Parameters) -> Values:
    # The name that TubeMQ reads, and the name in its newer calls.
    older = parameters.optional_flag("isEnable")
    enabled = parameters.flag("enableAuthControl", default=False) if older is None else older
    return {"authorize": enabled}


def _read_consume(parameters: Parameters) -> Values:
    conditions = parameters.items("filterConds")
    filters = {"filter_conditions": tuple(conditions)} if conditions else {}
    return {**filters, **read_fields(_CONSUME, parameters)}


def _read_group(parameters: Parameters) -> Values:
    return {**read_fields(_GROUP, parameters), **read_flow(parameters)}


def show_consume(group: str, topic: str, control: ConsumeControl) -> dict[str, Any]:
    """Return a record as GroupConsumeCtrlEntity.toWebJsonStr does."""
    conditions = f",{','.join(control.filter_conditions)}," if control.filter_conditions else ""
    return {
        "topicName": topic,
        "groupName": group,
        **show_fields(_CONSUME, control),
        "filterConds": conditions,
        **shown(control.stamp),
    }
