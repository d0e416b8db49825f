"""The master's web calls that concern the masters themselves, and where everything listens."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tubemq_spark.embedded.admin.parameters import Call, Parameters
from tubemq_spark.model import Endpoint


@dataclasses.dataclass(frozen=True, slots=True)
class Addresses:
    """Where the servers listen, as clients are told."""

    master: Endpoint
    broker: Endpoint
    broker_web_port: int


class ClusterCalls:
    """The calls of WebMasterInfoHandler that are about masters; there is one."""

    def __init__(self, addresses: Addresses, started_ms: int) -> None:
        """Take the addresses, and when the master became one, in ms since the epoch."""
        self._addresses = addresses
        self._started_ms = started_ms
        self.calls: Mapping[str, Call] = {"admin_query_master_group_info": self.query_master_group}

    def query_master_group(self, _parameters: Parameters) -> dict[str, Any]:
        """Return the masters: this one leads, for one that does not answers nothing."""
        master = self._addresses.master
        node = {
            "index": 1,
            "name": "embedded",
            "hostName": master.host,
            # A text, in TubeMQ's answers too.
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
