"""The master's web calls about brokers: their configuration and status (WebBrokerConfHandler).

The server configures its brokers itself, as online. An operator may add each one once, as scripts do that
create a cluster. No call creates a broker that does not exist.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.fields import Fields, number, read_fields, read_properties, show_properties
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
    outcome_of,
    success,
)
from tubemq_spark.embedded.config.catalog import SYSTEM_USER, shown
from tubemq_spark.embedded.config.controls import BrokerRecord, ManageStatus
from tubemq_spark.embedded.master.state import BrokerEntry, MasterState

_FROM_IP: Final = 0
"""As an id: take the broker with the address."""
_UNKNOWN: Final = "-"
_NUMBERS: Final[Fields] = {
    "brokerTLSPort": number("tls_port", 1),
    "regionId": number("region_id", 0),
    "groupId": number("group_id", 0),
}
_RUN_FIELDS: Final = (
    "runStatus",
    "subStatus",
    "isConfChanged",
    "isConfLoaded",
    "isBrokerOnline",
    "brokerVersion",
    "acceptPublish",
    "acceptSubscribe",
)


class BrokerSetup:
    """The calls about brokers."""

    def __init__(self, state: MasterState, token: str) -> None:
        """Calls that change something need ``token``."""
        self._state = state
        self._brokers = state.brokers
        changes = RecordChanges(token)
        self._change_lock = changes.lock
        self.calls: Mapping[str, Call] = {
            "admin_add_broker_configure": GuardedCall(token, self.add),
            "admin_online_broker_configure": changes.call(_broker_ids, self._online),
            "admin_query_broker_configure": self.query_setup,
            "admin_query_broker_run_status": self.query_run_status,
        }

    def add(self, parameters: Parameters) -> dict[str, Any]:
        """Configure a broker as if it were new; its address stays, whichever the call names."""
        who = author_of(parameters, adding=True)
        fields = read_properties(parameters)
        for own in ("brokerPort", "brokerWebPort"):  # which are not in the record
            parameters.optional_number(own, least=1)
        numbers = read_fields(_NUMBERS, parameters)
        status = _manage_status(parameters) or ManageStatus.DRAFT
        address = parameters.required("brokerIp")
        broker_id = parameters.number("brokerId", _FROM_IP, least=0)
        with self._change_lock:
            broker = self._addressed(broker_id, address)
            self._refuse_second(broker, address)

            def add() -> None:
                if broker is None:
                    ids = ", ".join(str(broker.id) for broker in self._brokers)
                    what = f"the embedded TubeMQ has no broker {broker_id}; the broker ids are: {ids}"
                    raise ItemError(ItemCode.ILLEGAL_VALUE, what)
                cluster = self._state.controls.cluster
                defaults = dataclasses.replace(cluster.properties, **fields)
                if (problem := defaults.problem()) is not None:
                    raise ItemError(ItemCode.ILLEGAL_VALUE, problem)
                record = BrokerRecord(status, defaults, **{"tls_port": cluster.broker_tls_port, **numbers})
                _replace(broker, record, who, as_new=True)

            shown_id = broker_id if broker is None else broker.id
            return success([{"brokerId": shown_id, "brokerIp": address, **outcome_of(add)}])

    def _online(self, key: Key, _fields: Values, who: Author) -> None:
        """Put a broker online."""
        broker = self._brokers.get(key["brokerId"])
        if broker is None:
            what = f"Not found broker configure for brokerId({key['brokerId']})!"
            raise ItemError(ItemCode.NOT_FOUND, what)
        record = broker.config.record
        if record.status is ManageStatus.ONLINE:
            raise ItemError(ItemCode.UNCHANGED, f"Unchanged  manageStatus({record.status})!")
        _replace(broker, dataclasses.replace(record, status=ManageStatus.ONLINE), who)

    def query_setup(self, parameters: Parameters) -> dict[str, Any]:
        """Return the configuration of brokers."""
        return success([_setup(broker) for broker in self._selected(parameters)])

    def query_run_status(self, parameters: Parameters) -> dict[str, Any]:
        """Return the status of brokers, which are never abnormal and have no TLS."""
        with_detail = parameters.flag("withDetail", default=False)
        items = []
        for broker in self._selected(parameters):
            item = _run_status(broker)
            if with_detail and broker.registered:
                item["BrokerRunStatusInfo"] = self._detail(broker)
            items.append(item)
        return success(items)

    def _selected(self, parameters: Parameters) -> list[BrokerEntry]:
        """Return the brokers that match the ids and addresses of the call."""
        ids, addresses = parameters.numbers("brokerId"), parameters.items("brokerIp")
        return [
            broker
            for broker in self._brokers
            if (not ids or broker.id in ids) and (not addresses or broker.endpoint.host in addresses)
        ]

    def _addressed(self, broker_id: int, address: str) -> BrokerEntry | None:
        """Return the broker of a call: by id, or without one by address, or else the first."""
        if broker_id != _FROM_IP:
            return self._brokers.get(broker_id)
        everyone = list(self._brokers)
        return next((broker for broker in everyone if broker.endpoint.host == address), everyone[0])

    def _refuse_second(self, addressed: BrokerEntry | None, address: str) -> None:
        """Refuse to add a broker that an operator has already added (getBrokerIpAndIdParamValue)."""
        for broker in self._brokers:
            if broker.config.record.stamp.create_user == SYSTEM_USER:
                continue
            if address == broker.endpoint.host:
                raise bad_request(f"Duplicated broker configure record, query by brokerIp : {address}")
            if broker is addressed:
                raise bad_request(f"Duplicated broker configure record, query by brokerId : {broker.id}")

    def _detail(self, broker: BrokerEntry) -> dict[str, Any]:
        """Return the state machine of an idle broker (BrokerRunStatusInfo.toJsonString)."""
        version = broker.catalog.version
        return {
            "type": "BrokerRunStatusInfo",
            "brokerInfo": str(broker),
            "createId": str(self._brokers.list_id),
            "isConfChanged": False,
            "isConfLoaded": True,
            "confChangeNo": version,
            "curStepStatus": "idle",
            "nextStepOpTimeInMills": 0,
            "confLoadedNo": version,
            "isOnline": True,
            "isDoneDataLoad": True,
            "isDoneDataSub": True,
            "isDoneDataPub": True,
            "isOverTLS": False,
            "lastBrokerSyncTime": version,
            "maxConfLoadedTimeInMs": 0,
            "curConfLoadTimeInMs": version,
        }


def broker_fields(broker: BrokerEntry) -> dict[str, Any]:
    """Return a broker's id and address in the form of answers."""
    return {"brokerId": broker.id, "brokerIp": broker.endpoint.host, "brokerPort": broker.endpoint.port}


def _replace(broker: BrokerEntry, record: BrokerRecord, who: Author, *, as_new: bool = False) -> None:
    """Store a record, and raise the version of the broker's configuration."""
    broker.config.replace(record, who.user, who.date, as_new=as_new)
    broker.catalog.touch()


def _manage_status(parameters: Parameters) -> ManageStatus | None:
    """Return the status that a call names, if any."""
    text = parameters.text("manageStatus")
    try:
        return ManageStatus(text.lower()) if text else None
    except ValueError as error:
        what = f"unknown broker manage status name {text}"
        raise bad_request(f"Illegal manageStatus parameter value :{what}") from error


def _broker_ids(parameters: Parameters) -> list[Key]:
    return [{"brokerId": broker_id, "brokerIp": ""} for broker_id in parameters.required_numbers("brokerId")]


def _setup(broker: BrokerEntry) -> dict[str, Any]:
    record = broker.config.record
    return {
        **broker_fields(broker),
        "brokerTLSPort": record.tls_port,
        "brokerWebPort": broker.web_port,
        "manageStatus": record.status,
        "isConfChanged": False,
        "isConfLoaded": broker.registered,
        "regionId": record.region_id,
        "groupId": record.group_id,
        **show_properties(record.defaults),
        **shown(record.stamp),
    }


def _run_status(broker: BrokerEntry) -> dict[str, Any]:
    item = {
        **broker_fields(broker),
        "brokerWebPort": broker.web_port,
        "manageStatus": broker.config.record.status,
        "brokerTLSPort": broker.config.record.tls_port,
        "enableTLS": False if broker.registered else _UNKNOWN,
        "isRepAbnormal": False,
        "isAutoForbidden": False,
        **dict.fromkeys(_RUN_FIELDS, _UNKNOWN),
    }
    if broker.registered:
        item.update(
            runStatus="running",
            subStatus="idle",
            # TubeMQ's answers have texts here.
            isConfChanged="false",
            isConfLoaded="true",
            isBrokerOnline="true",
            acceptPublish=str(broker.accept_publish).lower(),
            acceptSubscribe=str(broker.accept_subscribe).lower(),
        )
    return item
