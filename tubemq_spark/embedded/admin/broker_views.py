"""The master's web calls that query the configuration and status of brokers (WebBrokerConfHandler)."""

from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.brokers import manage_status
from tubemq_spark.embedded.admin.items import success
from tubemq_spark.embedded.admin.parameters import Call, Parameters
from tubemq_spark.embedded.admin.topic_properties import has_properties, read_properties, show_properties
from tubemq_spark.embedded.admin.topic_views import TopicViews, broker_fields, topic_status
from tubemq_spark.embedded.config.broker_config import BrokerRecord
from tubemq_spark.embedded.config.stamps import shown
from tubemq_spark.embedded.master.brokers import KnownBroker
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.protocol.constants import UNDEFINED

_UNKNOWN: Final = "-"
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


class BrokerViews:
    """The queries of WebBrokerConfHandler."""

    def __init__(self, state: MasterState, topics: TopicViews) -> None:
        """Take what the master's handlers share, and the queries of topics."""
        self._state = state
        self._topics = topics
        self.calls: Mapping[str, Call] = {
            "admin_query_broker_configure": self.query_setup,
            "admin_query_broker_run_status": self.query_run_status,
        }

    def query_setup(self, parameters: Parameters) -> dict[str, Any]:
        """Return the configuration of the brokers that match the call, with their topics if asked for."""
        with_topics = parameters.flag("withTopic", default=False)
        # All brokers are compared, so that an invalid parameter is refused in any case.
        matching = {
            broker.id
            for broker in self._state.brokers
            if _matches(broker, broker.config.record or BrokerRecord(), parameters)
        }
        return success(
            [
                self._setup(broker, record, with_topics=with_topics)
                for broker, record in self._selected(parameters)
                if broker.id in matching
            ]
        )

    def query_run_status(self, parameters: Parameters) -> dict[str, Any]:
        """Return the status of brokers, which are never abnormal and have no TLS."""
        with_detail = parameters.flag("withDetail", default=False)
        only = ("onlyAbnormal", "onlyAutoForbidden", "onlyEnableTLS")
        never = [name for name in only if parameters.flag(name, default=False)]
        selected = self._selected(parameters)
        if never:
            return success([])
        return success([self._run_status(*found, with_detail=with_detail) for found in selected])

    def _setup(self, broker: KnownBroker, record: BrokerRecord, *, with_topics: bool) -> dict[str, Any]:
        item = {
            **broker_fields(broker),
            "brokerTLSPort": record.tls_port,
            "brokerWebPort": broker.web_port,
            "manageStatus": record.status,
            "isConfChanged": False,
            "isConfLoaded": broker.registered,
            "regionId": record.region_id,
            "groupId": record.group_id,
            **show_properties(record.defaults),
            "dataVersionId": UNDEFINED,
            **shown(record.stamp),
        }
        if with_topics:
            topics = broker.catalog.all().items()
            item["topicSet"] = [self._topics.record(broker, name, spec) for name, spec in topics]
        return item

    def _run_status(self, broker: KnownBroker, record: BrokerRecord, *, with_detail: bool) -> dict[str, Any]:
        item = {
            **broker_fields(broker),
            "brokerWebPort": broker.web_port,
            "manageStatus": record.status,
            "brokerTLSPort": record.tls_port,
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
            if with_detail:
                item["BrokerRunStatusInfo"] = self._detail(broker)
        return item

    def _selected(self, parameters: Parameters) -> list[tuple[KnownBroker, BrokerRecord]]:
        """Return the brokers that match the ids and addresses of the call."""
        ids, addresses = parameters.numbers("brokerId"), parameters.items("brokerIp")
        return [
            (broker, record)
            for broker in self._state.brokers
            if (not ids or broker.id in ids) and (not addresses or broker.endpoint.host in addresses)
            if (record := broker.config.record) is not None
        ]

    def _detail(self, broker: KnownBroker) -> dict[str, Any]:
        """Return the state machine of an idle broker (BrokerRunStatusInfo.toJsonString)."""
        version = broker.catalog.version
        return {
            "type": "BrokerRunStatusInfo",
            "brokerInfo": str(broker),
            "createId": str(self._state.brokers.list_id),
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


def _matches(broker: KnownBroker, record: BrokerRecord, parameters: Parameters) -> bool:
    """Whether a broker, its configuration and its topics match a query."""
    numbers = {
        "brokerPort": (1, broker.endpoint.port),
        "brokerTLSPort": (1, record.tls_port),
        "brokerWebPort": (1, broker.web_port),
        "regionId": (0, record.region_id),
        "groupId": (0, record.group_id),
    }
    wanted_values = {
        name: parameters.optional_number(name, least=least) for name, (least, _) in numbers.items()
    }
    return (
        all(asked in (None, numbers[name][1]) for name, asked in wanted_values.items())
        and has_properties(record.defaults, read_properties(parameters))
        and manage_status(parameters) in (None, record.status)
        and parameters.text("createUser") in ("", record.stamp.create_user)
        and parameters.text("modifyUser") in ("", record.stamp.modify_user)
        and _has_topics(broker, parameters)
    )


def _has_topics(broker: KnownBroker, parameters: Parameters) -> bool:
    names, status = set(parameters.items("topicName")), topic_status(parameters)
    topics = broker.catalog.all()
    if names and bool(names & set(topics)) != parameters.flag("isInclude", default=True):
        return False
    return status is None or any(spec.status is status for spec in topics.values())
