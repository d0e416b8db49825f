"""The master's web calls about permissions and limits of groups.

See WebGroupConsumeCtrlHandler and WebGroupResCtrlHandler.
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
        """Take what the master's handlers share; calls that change something need ``token``."""
        self._state = state
        self._controls = state.controls
        # Two calls at once must not both find that a record is new.
        self._changing = threading.Lock()
        guarded: Mapping[str, Call] = {
            "admin_add_group_csmctrl_info": self.add_consume,
            "admin_update_group_csmctrl_info": self.update_consume,
            "admin_delete_group_csmctrl_info": self.delete_consume,
            "admin_add_group_resctrl_info": self.add_group,
            "admin_update_group_resctrl_info": self.update_group,
            "admin_delete_group_resctrl_info": self.delete_group,
        }
        self.calls: Mapping[str, Call] = {
            **{name: GuardedCall(token, call) for name, call in guarded.items()},
            "admin_query_group_csmctrl_info": self.query_consume,
            "admin_query_booked_csmctrl_groups": self.query_consume_names,
            "admin_query_group_resctrl_info": self.query_groups,
            "admin_query_booked_resctrl_groups": self.query_group_names,
        }

    def add_consume(self, parameters: Parameters) -> dict[str, Any]:
        """Set what groups may do with topics."""
        who = author_of(parameters, adding=True)
        topics, groups = self._topics(parameters), parameters.required_items("groupName")
        fields = _consume_fields(parameters)

        def add(group: str, topic: str) -> None:
            if self._controls.consume(group, topic) is not None:
                what = f"Existed record found for groupName-topicName({_key(group, topic)})!"
                raise ItemError(ItemCode.EXISTS, what)
            self._introduce(group, topic)
            self._controls.set_consume(group, topic, ConsumeControl(**fields), who.user, who.date)

        return self._each([(group, topic) for group in groups for topic in topics], add)

    def update_consume(self, parameters: Parameters) -> dict[str, Any]:
        """Change what groups may do with topics."""
        who = author_of(parameters, adding=False)
        topics, groups = self._topics(parameters), parameters.required_items("groupName")
        fields = _consume_fields(parameters)

        def update(group: str, topic: str) -> None:
            old = self._controls.consume(group, topic)
            if old is None:
                what = f"Not found consume control for groupName-topicName({_key(group, topic)})!"
                raise ItemError(ItemCode.NOT_FOUND, what)
            new = dataclasses.replace(old, **fields)
            if new == old:
                raise ItemError(ItemCode.UNCHANGED, "Consume control configure not changed!")
            self._controls.set_consume(group, topic, new, who.user, who.date)

        return self._each([(group, topic) for group in groups for topic in topics], update)

    def delete_consume(self, parameters: Parameters) -> dict[str, Any]:
        """Delete what groups may do with topics, or with all topics if none is named."""
        author_of(parameters, adding=False)
        groups, topics = parameters.required_items("groupName"), parameters.items("topicName")

        def delete(group: str, topic: str) -> None:
            known = [name for owner, name in self._controls.consumes() if owner == group]
            for name in [topic] if topic else known:
                self._controls.remove_consume(group, name)

        return self._each([(group, topic) for group in groups for topic in topics or [""]], delete)

    def query_consume(self, parameters: Parameters) -> dict[str, Any]:
        """Return what groups may do with topics."""
        records = self._consume_records(parameters)
        return success([show_consume(*key, control) for key, control in records.items()])

    def query_consume_names(self, parameters: Parameters) -> dict[str, Any]:
        """Return the groups that have consume controls."""
        names = sorted({group for group, _ in self._consume_records(parameters)})
        return {**success([]), "data": names, "count": len(names)}

    def add_group(self, parameters: Parameters) -> dict[str, Any]:
        """Add resource controls of groups."""
        who = author_of(parameters, adding=True)
        groups = parameters.required_items("groupName")
        default = GroupControl(query_priority=self._controls.cluster.query_priority)
        control = dataclasses.replace(default, **_group_fields(parameters))

        def add(group: str, _topic: str) -> None:
            if self._controls.group(group) is not None:
                raise ItemError(ItemCode.EXISTS, f"Existed record found for groupName({group})!")
            self._controls.set_group(group, control, who.user, who.date)

        return self._each_group(groups, add)

    def update_group(self, parameters: Parameters) -> dict[str, Any]:
        """Change resource controls of groups."""
        who = author_of(parameters, adding=False)
        groups = parameters.required_items("groupName")
        fields = _group_fields(parameters)

        def update(group: str, _topic: str) -> None:
            old = self._controls.group(group)
            if old is None:
                what = f"Not found group control configure for groupName({group})!"
                raise ItemError(ItemCode.NOT_FOUND, what)
            new = dataclasses.replace(old, **fields)
            if new == old:
                raise ItemError(ItemCode.UNCHANGED, "Group control configure not changed!")
            self._controls.set_group(group, new, who.user, who.date)

        return self._each_group(groups, update)

    def delete_group(self, parameters: Parameters) -> dict[str, Any]:
        """Delete resource controls of groups that have no consume controls."""
        author_of(parameters, adding=False)
        groups = parameters.required_items("groupName")

        def delete(group: str, _topic: str) -> None:
            in_use = any(owner == group for owner, _ in self._controls.consumes())
            if self._controls.group(group) is not None and in_use:
                what = f"Group {group} has consume control configures,"
                what += ", please delete consume control configures first!"
                raise ItemError(ItemCode.CONDITION_LACKING, what)
            self._controls.remove_group(group)

        return self._each_group(groups, delete)

    def query_groups(self, parameters: Parameters) -> dict[str, Any]:
        """Return resource controls of groups."""
        records = self._group_records(parameters)
        return success([_shown_group(name, control) for name, control in records.items()])

    def query_group_names(self, parameters: Parameters) -> dict[str, Any]:
        """Return the groups that have a resource control."""
        names = list(self._group_records(parameters))
        return {**success([]), "data": names, "count": len(names)}

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

    def _consume_records(self, parameters: Parameters) -> dict[tuple[str, str], ConsumeControl]:
        groups, topics = parameters.items("groupName"), parameters.items("topicName")
        wanted = {
            "consume": parameters.optional_flag("consumeEnable"),
            "filter": parameters.optional_flag("filterEnable"),
        }
        conditions = set(parameters.items("filterConds"))
        by_whom = _maker(parameters)
        return {
            (group, topic): control
            for (group, topic), control in self._controls.consumes().items()
            if (not groups or group in groups)
            and (not topics or topic in topics)
            and _is_as_wanted(control, wanted)
            and conditions <= set(control.filter_conditions)
            and by_whom(control)
        }

    def _group_records(self, parameters: Parameters) -> dict[str, GroupControl]:
        groups = parameters.items("groupName")
        wanted = {
            "res_check": parameters.optional_flag("resCheckEnable"),
            "query_priority": read_priority(parameters),
            "flow_control": parameters.optional_flag("flowCtrlEnable"),
        }
        by_whom = _maker(parameters)
        return {
            name: control
            for name, control in self._controls.groups().items()
            if (not groups or name in groups) and _is_as_wanted(control, wanted) and by_whom(control)
        }

    def _each(self, keys: list[tuple[str, str]], change: Callable[[str, str], None]) -> dict[str, Any]:
        items = []
        with self._changing:
            for group, topic in keys:
                outcome = outcome_of(change, group, topic)
                items.append({"groupName": group, "topicName": topic, **outcome})
        return success(items)

    def _each_group(self, groups: list[str], change: Callable[[str, str], None]) -> dict[str, Any]:
        answer = self._each([(group, "") for group in groups], change)
        for item in answer["data"]:
            del item["topicName"]
        return answer


def _consume_fields(parameters: Parameters) -> dict[str, Any]:
    """Return the fields of a consume control in a call."""
    conditions = parameters.items("filterConds")
    fields = {
        "consume": parameters.optional_flag("consumeEnable"),
        # Without a reason, a former one is deleted.
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


def _maker(parameters: Parameters) -> Callable[[ConsumeControl | GroupControl], bool]:
    """Return a function that says whether a record was created and changed by the users of a call."""
    creator, modifier = parameters.text("createUser"), parameters.text("modifyUser")

    def fits(control: ConsumeControl | GroupControl) -> bool:
        stamp = control.stamp
        return creator in ("", stamp.create_user) and modifier in ("", stamp.modify_user)

    return fits


def _is_as_wanted(control: ConsumeControl | GroupControl, wanted: Mapping[str, object]) -> bool:
    return all(value is None or getattr(control, name) == value for name, value in wanted.items())


def _key(group: str, topic: str) -> str:
    """Return TubeMQ's key of a group and a topic (KeyBuilderUtils.buildGroupTopicRecKey)."""
    return f"{topic}:{group}"
