"""The master's web calls about the masters and the setting of the whole cluster (WebMasterInfoHandler)."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.flow import read_priority, read_rules, show_rules
from tubemq_spark.embedded.admin.items import success
from tubemq_spark.embedded.admin.parameters import Call, GuardedCall, Parameters, author_of, bad_request
from tubemq_spark.embedded.admin.topic_properties import read_properties, show_properties
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.controls import NO_RULES, ClusterSetting
from tubemq_spark.embedded.config.stamps import shown
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.protocol.constants import UNDEFINED

_MAX_MESSAGE_MB: Final = 20


class ClusterCalls:
    """The calls about the cluster."""

    def __init__(self, state: MasterState, token: str, started_ms: int) -> None:
        """Calls that change something need ``token``; the master became active at ``started_ms``."""
        self._state = state
        self._started_ms = started_ms
        self._changing = threading.Lock()
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
        with self._changing:
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
