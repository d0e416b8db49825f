"""The master's web calls that set up brokers and tell of them (WebBrokerConfHandler).

There is one broker. The server sets it up itself, online; an operator may set it up anew once, as scripts do
that make a cluster, and change it from then on.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.cluster import Addresses
from tubemq_spark.embedded.admin.items import ItemCode, ItemError, outcome_of, success
from tubemq_spark.embedded.admin.parameters import (
    Call,
    GuardedCall,
    Operation,
    Parameters,
    bad_request,
    operation,
)
from tubemq_spark.embedded.admin.topic_properties import read_properties
from tubemq_spark.embedded.config.broker_config import BrokerRecord, ManageStatus
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.settings import BROKER_ID
from tubemq_spark.embedded.config.stamps import SYSTEM_USER
from tubemq_spark.embedded.master.state import MasterState

_FROM_IP: Final = 0
"""As an id: make one of the address."""
_NO_IP: Final = ""
_NULL_IP: Final = "null"
"""TubeMQ's answers to deletions have this text."""


class BrokerSetup:
    """The calls that change how the broker is set up; each but the first takes a list of ids."""

    def __init__(
        self, state: MasterState, addresses: Addresses, token: str, release: Callable[[], None]
    ) -> None:
        """Calls must carry ``token``; ``release`` lets a stopped broker go on."""
        self._state = state
        self._config = state.broker_config
        self._host = addresses.broker.host
        self._release = release
        # Each call looks at the record before it changes it.
        self._changing = threading.Lock()
        guarded = {
            "admin_add_broker_configure": self.add,
            "admin_update_broker_configure": self.update,
            "admin_online_broker_configure": self.online,
            "admin_offline_broker_configure": self.offline,
            "admin_set_broker_read_or_write": self.set_access,
            "admin_reload_broker_configure": self.reload,
            "admin_delete_broker_configure": self.delete,
            "admin_release_broker_autoforbidden_status": self.release,
        }
        self.calls: Mapping[str, Call] = {name: GuardedCall(token, call) for name, call in guarded.items()}

    def add(self, parameters: Parameters) -> dict[str, Any]:
        """Set the broker up anew; it knows its address itself, whatever the call says."""
        who = operation(parameters, adding=True)
        fields = read_properties(parameters)
        numbers = _numbers(parameters)
        status = manage_status(parameters) or ManageStatus.DRAFT
        address = parameters.required("brokerIp")
        broker_id = parameters.number("brokerId", _FROM_IP, least=0)
        with self._changing:
            self._refuse_second(broker_id, address)

            def add() -> None:
                if broker_id not in (_FROM_IP, BROKER_ID):
                    what = f"the embedded TubeMQ has one broker, and its id is {BROKER_ID}"
                    raise ItemError(ItemCode.ILLEGAL_VALUE, what)
                cluster = self._state.controls.cluster
                record = BrokerRecord(
                    status,
                    _valid(dataclasses.replace(cluster.properties, **fields)),
                    **{"tls_port": cluster.broker_tls_port, **numbers},
                )
                self._replace(record, who, anew=True)

            return success([{"brokerId": broker_id or BROKER_ID, "brokerIp": address, **outcome_of(add)}])

    def update(self, parameters: Parameters) -> dict[str, Any]:
        """Change the broker's defaults for topics, or its status."""
        fields = read_properties(parameters)
        numbers = _numbers(parameters)
        status = manage_status(parameters)

        def update(_broker_id: int, record: BrokerRecord, who: Operation) -> str:
            new = dataclasses.replace(
                record,
                defaults=_valid(dataclasses.replace(record.defaults, **fields)),
                status=status or record.status,
                **numbers,
            )
            if new == record:
                raise ItemError(ItemCode.UNCHANGED, "Broker configure not changed!")
            _check_status_change(record.status, new.status)
            self._replace(new, who)
            return self._host

        return self._each(parameters, update)

    def online(self, parameters: Parameters) -> dict[str, Any]:
        """Let the broker serve."""
        return self._each(parameters, self._to(ManageStatus.ONLINE))

    def offline(self, parameters: Parameters) -> dict[str, Any]:
        """Let the broker serve nobody."""
        return self._each(parameters, self._to(ManageStatus.OFFLINE))

    def set_access(self, parameters: Parameters) -> dict[str, Any]:
        """Open or close the broker for producers, for consumers, or for both."""
        publish, subscribe = _access(parameters, "Publish"), _access(parameters, "Subscribe")
        if publish is None and subscribe is None:
            operation(parameters, adding=False)
            parameters.required_numbers("brokerId")
            raise bad_request("Fields acceptPublish or acceptSubscribe must exist at this method!")

        def change(broker_id: int, record: BrokerRecord, who: Operation) -> str:
            if record.status is ManageStatus.DRAFT:
                what = "The broker configure under draft status, please online first!"
                raise ItemError(ItemCode.CONDITION_LACKING, what)
            status = record.status.changed(publish, subscribe)
            if status is record.status:
                return self._host
            return self._to(status)(broker_id, record, who)

        return self._each(parameters, change, missing="The broker configure not exist!")

    def reload(self, parameters: Parameters) -> dict[str, Any]:
        """Do nothing more: the broker always has what is configured."""

        def reload(broker_id: int, record: BrokerRecord, _who: Operation) -> str:
            if not record.status.serves:
                what = f"The broker manage status by brokerId={broker_id} is not in online status"
                raise ItemError(ItemCode.ILLEGAL_STATUS, f"{what}, can't reload this configure! ")
            return self._host

        return self._each(parameters, reload, missing="The broker configure not exist!")

    def delete(self, parameters: Parameters) -> dict[str, Any]:
        """Forget how the broker is set up; it serves nobody until it is added again."""
        operation(parameters, adding=False)
        parameters.optional_flag("isReservedData")

        def delete(broker_id: int) -> None:
            record = self._record(broker_id)
            if record is None:
                return
            if record.status.serves:
                what = "Broker manage status is online, please offline first!"
                raise ItemError(ItemCode.ILLEGAL_STATUS, what)
            if self._state.catalog.all():
                what = (
                    f"Illegal operate conditions, the broker({broker_id})'s topic deploy configure uncleaned"
                )
                raise ItemError(ItemCode.NOT_CLEAN, f"{what}, please delete them first!")
            self._config.delete()
            self._state.catalog.touch()

        items = []
        for broker_id in parameters.required_numbers("brokerId"):
            with self._changing:
                done = "Ok!" if self._record(broker_id) is not None else "Success"
                outcome = outcome_of(delete, broker_id, done=done)
            items.append({"brokerId": broker_id, "brokerIp": _NULL_IP, **outcome})
        return success(items)

    def release(self, parameters: Parameters) -> dict[str, Any]:
        """Let the broker read and write again that stopped it after too many I/O errors."""
        operation(parameters, adding=False)
        if BROKER_ID in parameters.required_numbers("brokerId"):
            self._release()
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": []}

    def _to(self, status: ManageStatus) -> Callable[[int, BrokerRecord, Operation], str]:
        def change(_broker_id: int, record: BrokerRecord, who: Operation) -> str:
            if record.status is status:
                raise ItemError(ItemCode.UNCHANGED, f"Unchanged  manageStatus({status})!")
            _check_status_change(record.status, status)
            self._replace(dataclasses.replace(record, status=status), who)
            return _NO_IP

        return change

    def _each(
        self,
        parameters: Parameters,
        change: Callable[[int, BrokerRecord, Operation], str],
        missing: str = "Not found broker configure for brokerId({})!",
    ) -> dict[str, Any]:
        """Change each broker of a call; ``change`` returns the address that its item shall have."""
        who = operation(parameters, adding=False)

        def do(broker_id: int, item: dict[str, Any]) -> None:
            record = self._record(broker_id)
            if record is None:
                raise ItemError(ItemCode.NOT_FOUND, missing.format(broker_id))
            item["brokerIp"] = change(broker_id, record, who)

        items = []
        for broker_id in parameters.required_numbers("brokerId"):
            item = {"brokerId": broker_id, "brokerIp": _NO_IP}
            with self._changing:
                outcome = outcome_of(do, broker_id, item)
            items.append({**item, **outcome})
        return success(items)

    def _record(self, broker_id: int) -> BrokerRecord | None:
        return self._config.record if broker_id == BROKER_ID else None

    def _replace(self, record: BrokerRecord, who: Operation, *, anew: bool = False) -> None:
        """Keep a record, and let clients learn of it as they learn of changes of topics."""
        self._config.replace(record, who.user, who.date, anew=anew)
        self._state.catalog.touch()

    def _refuse_second(self, broker_id: int, address: str) -> None:
        """Refuse to add a broker that an operator has added (getBrokerIpAndIdParamValue).

        Raises:
            RefusedError: it is there.
        """
        record = self._config.record
        if record is None or record.stamp.create_user == SYSTEM_USER:
            return
        if address == self._host:
            raise bad_request(f"Duplicated broker configure record, query by brokerIp : {address}")
        if broker_id in (_FROM_IP, BROKER_ID):
            raise bad_request(f"Duplicated broker configure record, query by brokerId : {BROKER_ID}")


def manage_status(parameters: Parameters) -> ManageStatus | None:
    """Return the status that a call names, if any.

    Raises:
        RefusedError: there is no such status.
    """
    text = parameters.text("manageStatus")
    try:
        return ManageStatus(text.lower()) if text else None
    except ValueError as error:
        what = f"unknown broker manage status name {text}"
        raise bad_request(f"Illegal manageStatus parameter value :{what}") from error


def _numbers(parameters: Parameters) -> dict[str, Any]:
    """Return the fields of BrokerRecord that a call names, having looked at the broker's own ports."""
    for own in ("brokerPort", "brokerWebPort"):
        parameters.optional_number(own, least=1)
    numbers = {
        "tls_port": parameters.optional_number("brokerTLSPort", least=1),
        "region_id": parameters.optional_number("regionId", least=0),
        "group_id": parameters.optional_number("groupId", least=0),
    }
    return {name: number for name, number in numbers.items() if number is not None}


def _access(parameters: Parameters, what: str) -> bool | None:
    """Return whether the broker shall accept something; TubeMQ's older releases call it isAccept..."""
    wish = parameters.optional_flag(f"accept{what}")
    return parameters.optional_flag(f"isAccept{what}") if wish is None else wish


def _valid(defaults: TopicSpec) -> TopicSpec:
    if (problem := defaults.problem()) is not None:
        raise ItemError(ItemCode.ILLEGAL_VALUE, problem)
    return defaults


def _check_status_change(old: ManageStatus, new: ManageStatus) -> None:
    """Refuse to go back to a draft, or from one to anything but online (isValidMngStatusChange)."""
    back = new is ManageStatus.DRAFT and old is not ManageStatus.DRAFT
    skips = old is ManageStatus.DRAFT and new not in (ManageStatus.DRAFT, ManageStatus.ONLINE)
    if back or skips:
        what = f"Illegal manage status, cannot reverse manageStatus from {old} to {new}"
        raise ItemError(ItemCode.ILLEGAL_VALUE, f"{what} for the broker(brokerId={BROKER_ID})!")
