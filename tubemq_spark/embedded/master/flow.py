"""What the master tells consumers about flow control and query priority (TMaster)."""

from typing import Any, Final

from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.pb import master_pb2 as pb

_NO_TEXT: Final = " "
"""Says that there are no rules, or no new ones."""


def flow_fields(
    controls: Controls, group: str, request: pb.RegisterRequestC2M | pb.HeartRequestC2M
) -> dict[str, Any]:
    """Return the fields for a server-balanced consumer; none unless it says what it already knows."""
    if not (request.HasField("defFlowCheckId") or request.HasField("groupFlowCheckId")):
        return {}
    cluster, own = controls.cluster, controls.group(group)
    fields: dict[str, Any] = {
        "ssdStoreId": UNDEFINED,
        "qryPriorityId": UNDEFINED,
        "defFlowCheckId": cluster.flow_id,
        "defFlowControlInfo": _NO_TEXT,
        "groupFlowCheckId": UNDEFINED,
        "groupFlowControlInfo": _NO_TEXT,
    }
    if cluster.flow_control and request.defFlowCheckId != cluster.flow_id:
        fields["defFlowControlInfo"] = cluster.flow_rules
    if own is not None and own.flow_control:
        fields["groupFlowCheckId"] = own.flow_id
        fields["qryPriorityId"] = own.query_priority
        if request.groupFlowCheckId != own.flow_id:
            fields["groupFlowControlInfo"] = own.flow_rules
    return fields


def ops_task(controls: Controls, group: str, info: pb.OpsTaskInfo) -> pb.OpsTaskInfo:
    """Return what a client-balanced consumer is told, without what does not apply."""
    cluster, own = controls.cluster, controls.group(group)
    task = pb.OpsTaskInfo()
    if cluster.flow_control:
        task.defFlowCheckId = cluster.flow_id
        if info.defFlowCheckId != cluster.flow_id:
            task.defFlowControlInfo = cluster.flow_rules
    if own is not None and own.flow_control:
        task.groupFlowCheckId = own.flow_id
        task.qryPriorityId = own.query_priority
        if info.groupFlowCheckId != own.flow_id:
            task.groupFlowControlInfo = own.flow_rules
    return task
