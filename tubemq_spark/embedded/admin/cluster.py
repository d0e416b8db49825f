"""The master's web calls about the masters themselves."""

from collections.abc import Mapping
from typing import Any

from tubemq_spark.embedded.admin.parameters import Call, Parameters
from tubemq_spark.embedded.master.state import MasterState


class ClusterCalls:
    """The calls of WebMasterInfoHandler about masters: one."""

    def __init__(self, state: MasterState, started_ms: int) -> None:
        """Take what the master's handlers share, and when it became active, in ms since the epoch."""
        self._state = state
        self._started_ms = started_ms
        self.calls: Mapping[str, Call] = {"admin_query_master_group_info": self.query_master_group}

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
