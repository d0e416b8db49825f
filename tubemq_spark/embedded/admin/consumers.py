"""A broker's web calls about the consumers that hold its partitions."""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import Call, Parameters
from tubemq_spark.embedded.broker.leases import GrantedLease
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.broker.state import BrokerState, has_partition

_MIB: Final = 1 << 20


class ConsumerCalls:
    """The calls of BrokerAdminServlet about consumers; none needs a token."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self.calls: Mapping[str, Call] = {
            "admin_get_partition_reginfo": self.query_registered,
            "admin_query_consumer_regmap": self.query_registered,
            "admin_query_broker_all_consumer_info": self.query_consumers,
            "admin_get_group_detail_info": self.query_consumers,
        }

    def query_registered(self, parameters: Parameters) -> dict[str, Any]:
        """Return which consumer holds which partition."""
        data = [
            {
                "Partition": f"{seat.group}:{seat.topic}:{seat.partition_id}",
                "Consumer": lease.client_id,
                "index": index,
            }
            for index, (seat, lease) in enumerate(self._leases(parameters), 1)
        ]
        return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": data, "totalCnt": len(data)}

    def query_consumers(self, parameters: Parameters) -> dict[str, Any]:
        """Return everything about the consumers that hold partitions."""
        data = [
            {"index": index, **self._consumer(seat, lease), **self._place(seat)}
            for index, (seat, lease) in enumerate(self._leases(parameters), 1)
        ]
        return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": data, "totalCnt": len(data)}

    def _leases(self, parameters: Parameters) -> Iterator[tuple[Seat, GrantedLease]]:
        groups = parameters.items("groupName")
        for seat, lease in sorted(self._state.leases.all().items(), key=lambda item: item[0]):
            if not groups or seat.group in groups:
                yield seat, lease

    def _consumer(self, seat: Seat, lease: GrantedLease) -> dict[str, Any]:
        allowance = lease.allowance
        return {
            "groupName": seat.group,
            "topicName": seat.topic,
            "partitionId": seat.partition_id,
            "consumerId": lease.client_id,
            "isRegOk": True,
            "lastRegTime": lease.heard_at_ms,
            "isFilterConsume": bool(lease.key_codes),
            "receivedFrom": _address_in(lease.client_id),
            "qryPriorityId": lease.query_priority,
            "curDataLimitInM": allowance.limit.bytes_per_minute // _MIB,
            "curFreqLimit": allowance.limit.wait_ms,
            "totalSentSec": allowance.read_in_window,
            "isSupportLimit": True,
            "sentUnitSec": allowance.window_limit,
            "totalSentMin": allowance.read_in_minute,
            "sentUnit": allowance.read_bytes,
        }

    def _place(self, seat: Seat) -> dict[str, Any]:
        spec = self._state.catalog.get(seat.topic)
        if spec is None or not has_partition(spec, seat.partition_id):
            return {"isMessageStoreOk": False}
        bounds = self._state.store(seat, "").bounds
        position = self._state.offsets.at(seat)
        return {
            "isMessageStoreOk": True,
            "tmpOffset": position.in_flight,
            "minOffset": bounds.earliest,
            "maxOffset": bounds.latest,
            "zkOffset": position.committed,
            "minDataOffset": bounds.data_earliest,
            "maxDataOffset": bounds.data_latest,
        }


def _address_in(client_id: str) -> str:
    """Return the address in a client id, ``group_address-...``; empty if there is none.

    TubeMQ returns the address of the consumer's connection, which handlers do not know here.
    """
    address = client_id.rpartition("_")[2].partition("-")[0]
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""
