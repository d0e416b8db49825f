"""The master's web calls that configure brokers (WebBrokerConfHandler).

The server configures its brokers itself, as online. An operator may add each one once, as scripts do that
create a cluster, and change it from then on. No call creates a broker that does not exist.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.items import ItemCode, ItemError, outcome_of, success
from tubemq_spark.embedded.admin.parameters import (
    Author,
    Call,
    GuardedCall,
    Parameters,
    author_of,
    bad_request,
)
from tubemq_spark.embedded.admin.topic_properties import read_properties
from tubemq_spark.embedded.config.broker_config import BrokerRecord, ManageStatus
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.stamps import SYSTEM_USER
from tubemq_spark.embedded.master.brokers import KnownBroker
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.errors import OptionError

Release = Callable[[int], None]
"""Resumes a broker that was stopped by I/O errors; raises OptionError if there is no such broker."""

_FROM_IP: Final = 0
"""As an id: take the broker with the address."""
_NO_IP: Final = ""
_NULL_IP: Final = "null"
"""What TubeMQ's answers to deletions have as the address."""


class BrokerSetup:
    """The calls that change the configuration of brokers; all but the first take a list of ids."""

    def __init__(self, state: MasterState, token: str, release: Release) -> None:
        """Calls must carry ``token``."""
        self._state = state
        self._brokers = state.brokers
        self._release = release
        # Each call reads the record before it changes it.
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
        """Configure a broker as if it were new; its address stays, whatever the call says."""
        who = author_of(parameters, adding=True)
        fields = read_properties(parameters)
        numbers = _numbers(parameters)
        status = manage_status(parameters) or ManageStatus.DRAFT
        address = parameters.required("brokerIp")
        broker_id = parameters.number("brokerId", _FROM_IP, least=0)
        with self._changing:
            broker = self._addressed(broker_id, address)
            self._refuse_second(broker, address)

            def add() -> None:
                if broker is None:
                    known = ", ".join(str(known.id) for known in self._brokers)
                    what = f"the embedded TubeMQ has no broker {broker_id}; the broker ids are: {known}"
                    raise ItemError(ItemCode.ILLEGAL_VALUE, what)
                cluster = self._state.controls.cluster
                record = BrokerRecord(
                    status,
                    _valid(dataclasses.replace(cluster.properties, **fields)),
                    **{"tls_port": cluster.broker_tls_port, **numbers},
                )
                _replace(broker, record, who, anew=True)

            shown = broker_id if broker is None else broker.id
            return success([{"brokerId": shown, "brokerIp": address, **outcome_of(add)}])

    def update(self, parameters: Parameters) -> dict[str, Any]:
        """Change the defaults for topics, or the status."""
        fields = read_properties(parameters)
        numbers = _numbers(parameters)
        status = manage_status(parameters)

        def update(broker: KnownBroker, record: BrokerRecord, who: Author) -> str:
            new = dataclasses.replace(
                record,
                defaults=_valid(dataclasses.replace(record.defaults, **fields)),
                status=status or record.status,
                **numbers,
            )
            if new == record:
                raise ItemError(ItemCode.UNCHANGED, "Broker configure not changed!")
            _check_status_change(broker.id, record.status, new.status)
            _replace(broker, new, who)
            return broker.endpoint.host

        return self._each(parameters, update)

    def online(self, parameters: Parameters) -> dict[str, Any]:
        """Let brokers serve."""
        return self._each(parameters, self._to(ManageStatus.ONLINE))

    def offline(self, parameters: Parameters) -> dict[str, Any]:
        """Let brokers serve nobody."""
        return self._each(parameters, self._to(ManageStatus.OFFLINE))

    def set_access(self, parameters: Parameters) -> dict[str, Any]:
        """Open or close brokers for producers, for consumers, or for both."""
        publish, subscribe = _access(parameters, "Publish"), _access(parameters, "Subscribe")
        if publish is None and subscribe is None:
            author_of(parameters, adding=False)
            parameters.required_numbers("brokerId")
            raise bad_request("Fields acceptPublish or acceptSubscribe must exist at this method!")

        def change(broker: KnownBroker, record: BrokerRecord, who: Author) -> str:
            if record.status is ManageStatus.DRAFT:
                what = "The broker configure under draft status, please online first!"
                raise ItemError(ItemCode.CONDITION_LACKING, what)
            status = record.status.changed(publish, subscribe)
            if status is record.status:
                return broker.endpoint.host
            return self._to(status)(broker, record, who)

        return self._each(parameters, change, missing="The broker configure not exist!")

    def reload(self, parameters: Parameters) -> dict[str, Any]:
        """Check the status, and do nothing: brokers always use their present configuration."""

        def reload(broker: KnownBroker, record: BrokerRecord, _who: Author) -> str:
            if not record.status.serves:
                what = f"The broker manage status by brokerId={broker.id} is not in online status"
                raise ItemError(ItemCode.ILLEGAL_STATUS, f"{what}, can't reload this configure! ")
            return broker.endpoint.host

        return self._each(parameters, reload, missing="The broker configure not exist!")

    def delete(self, parameters: Parameters) -> dict[str, Any]:
        """Delete the configuration of brokers; they serve nobody until they are added again."""
        author_of(parameters, adding=False)
        parameters.optional_flag("isReservedData")

        def delete(broker_id: int) -> None:
            broker = self._brokers.get(broker_id)
            if broker is None or (record := broker.config.record) is None:
                return
            if record.status.serves:
                what = "Broker manage status is online, please offline first!"
                raise ItemError(ItemCode.ILLEGAL_STATUS, what)
            if broker.catalog.all():
                what = (
                    f"Illegal operate conditions, the broker({broker_id})'s topic deploy configure uncleaned"
                )
                raise ItemError(ItemCode.NOT_CLEAN, f"{what}, please delete them first!")
            broker.config.delete()
            broker.catalog.touch()

        items = []
        for broker_id in parameters.required_numbers("brokerId"):
            with self._changing:
                done = "Ok!" if self._record(broker_id) is not None else "Success"
                outcome = outcome_of(delete, broker_id, done=done)
            items.append({"brokerId": broker_id, "brokerIp": _NULL_IP, **outcome})
        return success(items)

    def release(self, parameters: Parameters) -> dict[str, Any]:
        """Resume reads and writes of brokers that were stopped by I/O errors."""
        author_of(parameters, adding=False)
        for broker_id in parameters.required_numbers("brokerId"):
            # A broker that does not exist or does not run has nothing to release.
            with contextlib.suppress(OptionError):
                self._release(broker_id)
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": []}

    def _to(self, status: ManageStatus) -> "_Change":
        def change(broker: KnownBroker, record: BrokerRecord, who: Author) -> str:
            if record.status is status:
                raise ItemError(ItemCode.UNCHANGED, f"Unchanged  manageStatus({status})!")
            _check_status_change(broker.id, record.status, status)
            _replace(broker, dataclasses.replace(record, status=status), who)
            return _NO_IP

        return change

    def _each(
        self,
        parameters: Parameters,
        change: "_Change",
        missing: str = "Not found broker configure for brokerId({})!",
    ) -> dict[str, Any]:
        """Apply a change to each broker of a call."""
        who = author_of(parameters, adding=False)

        def do(broker_id: int, item: dict[str, Any]) -> None:
            broker = self._brokers.get(broker_id)
            if broker is None or (record := broker.config.record) is None:
                raise ItemError(ItemCode.NOT_FOUND, missing.format(broker_id))
            item["brokerIp"] = change(broker, record, who)

        items = []
        for broker_id in parameters.required_numbers("brokerId"):
            item = {"brokerId": broker_id, "brokerIp": _NO_IP}
            with self._changing:
                outcome = outcome_of(do, broker_id, item)
            items.append({**item, **outcome})
        return success(items)

    def _record(self, broker_id: int) -> BrokerRecord | None:
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.config.record

    def _addressed(self, broker_id: int, address: str) -> KnownBroker | None:
        """Return the broker of a call: by id, or without one by address, or else the first."""
        if broker_id != _FROM_IP:
            return self._brokers.get(broker_id)
        everyone = list(self._brokers)
        return next((broker for broker in everyone if broker.endpoint.host == address), everyone[0])

    def _refuse_second(self, addressed: KnownBroker | None, address: str) -> None:
        """Refuse to add a broker that an operator has already added (getBrokerIpAndIdParamValue).

        Raises:
            RefusedError: an operator has added it.
        """
        for broker in self._brokers:
            record = broker.config.record
            if record is None or record.stamp.create_user == SYSTEM_USER:
                continue
            if address == broker.endpoint.host:
                raise bad_request(f"Duplicated broker configure record, query by brokerIp : {address}")
            if broker is addressed:
                raise bad_request(f"Duplicated broker configure record, query by brokerId : {broker.id}")


_Change = Callable[[KnownBroker, BrokerRecord, Author], str]
"""Changes a broker's record and returns the address for its item in the answer."""


def _replace(broker: KnownBroker, record: BrokerRecord, who: Author, *, anew: bool = False) -> None:
    """Store a record, and raise the version of the broker's configuration."""
    broker.config.replace(record, who.user, who.date, anew=anew)
    broker.catalog.touch()


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
    """Return the fields of BrokerRecord in a call, and validate the ports, which are not in the record."""
    for own in ("brokerPort", "brokerWebPort"):
        parameters.optional_number(own, least=1)
    numbers = {
        "tls_port": parameters.optional_number("brokerTLSPort", least=1),
        "region_id": parameters.optional_number("regionId", least=0),
        "group_id": parameters.optional_number("groupId", least=0),
    }
    return {name: number for name, number in numbers.items() if number is not None}


def _access(parameters: Parameters, what: str) -> bool | None:
    """Return whether the call lets the broker accept something; older releases name it isAccept..."""
    asked = parameters.optional_flag(f"accept{what}")
    return parameters.optional_flag(f"isAccept{what}") if asked is None else asked


def _valid(defaults: TopicSpec) -> TopicSpec:
    if (problem := defaults.problem()) is not None:
        raise ItemError(ItemCode.ILLEGAL_VALUE, problem)
    return defaults


def _check_status_change(broker_id: int, old: ManageStatus, new: ManageStatus) -> None:
    """Refuse to go back to a draft, or from one to anything but online (isValidMngStatusChange)."""
    back = new is ManageStatus.DRAFT and old is not ManageStatus.DRAFT
    skips = old is ManageStatus.DRAFT and new not in (ManageStatus.DRAFT, ManageStatus.ONLINE)
    if back or skips:
        what = f"Illegal manage status, cannot reverse manageStatus from {old} to {new}"
        raise ItemError(ItemCode.ILLEGAL_VALUE, f"{what} for the broker(brokerId={broker_id})!")
