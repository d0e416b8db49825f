"""The master's web calls that tell of the broker: how it is set up, and how it is (WebBrokerConfHandler)."""

from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.brokers import manage_status
from tubemq_spark.embedded.admin.cluster import Addresses
from tubemq_spark.embedded.admin.items import success
from tubemq_spark.embedded.admin.parameters import Call, Parameters
from tubemq_spark.embedded.admin.topic_properties import has_properties, read_properties, show_properties
from tubemq_spark.embedded.admin.topic_views import TopicViews, topic_status
from tubemq_spark.embedded.config.broker_config import BrokerRecord, ManageStatus
from tubemq_spark.embedded.config.settings import BROKER_ID
from tubemq_spark.embedded.config.stamps import shown
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

    def __init__(self, state: MasterState, addresses: Addresses, topics: TopicViews) -> None:
        """Take what the master's handlers share, where everything listens, and how topics are shown."""
        self._state = state
        self._addresses = addresses
        self._topics = topics
        self.calls: Mapping[str, Call] = {
            "admin_query_broker_configure": self.query_setup,
            "admin_query_broker_run_status": self.query_run_status,
        }

    def query_setup(self, parameters: Parameters) -> dict[str, Any]:
        """Return how the broker is set up, if it is as the call wants it; with its topics if wished."""
        with_topics = parameters.flag("withTopic", default=False)
        wanted = self._matches(parameters)
        record = self._selected(parameters)
        if record is None or not wanted:
            return success([])
        item = {
            **self._place(),
            "brokerTLSPort": record.tls_port,
            "brokerWebPort": self._addresses.broker_web_port,
            "manageStatus": record.status,
            "isConfChanged": False,
            "isConfLoaded": self._registered(record),
            "regionId": record.region_id,
            "groupId": record.group_id,
            **show_properties(record.defaults),
            "dataVersionId": UNDEFINED,
            **shown(record.stamp),
        }
        if with_topics:
            topics = self._state.catalog.all().items()
            item["topicSet"] = [self._topics.record(name, spec) for name, spec in topics]
        return success([item])

    def query_run_status(self, parameters: Parameters) -> dict[str, Any]:
        """Return how the broker is; it always runs, is never abnormal, and has no TLS."""
        with_detail = parameters.flag("withDetail", default=False)
        only = ("onlyAbnormal", "onlyAutoForbidden", "onlyEnableTLS")
        never = [name for name in only if parameters.flag(name, default=False)]
        record = self._selected(parameters)
        if record is None or never:
            return success([])
        registered = self._registered(record)
        item = {
            **self._place(),
            "brokerWebPort": self._addresses.broker_web_port,
            "manageStatus": record.status,
            "brokerTLSPort": record.tls_port,
            "enableTLS": False if registered else _UNKNOWN,
            "isRepAbnormal": False,
            "isAutoForbidden": False,
            **dict.fromkeys(_RUN_FIELDS, _UNKNOWN),
        }
        if registered:
            item.update(
                runStatus="running",
                subStatus="idle",
                # These are texts in TubeMQ's answers.
                isConfChanged="false",
                isConfLoaded="true",
                isBrokerOnline="true",
                acceptPublish=str(record.status.accept_publish).lower(),
                acceptSubscribe=str(record.status.accept_subscribe).lower(),
            )
            if with_detail:
                item["BrokerRunStatusInfo"] = self._detail()
        return success([item])

    def _selected(self, parameters: Parameters) -> BrokerRecord | None:
        """Return the broker if the call wants it by its id and address."""
        ids, addresses = parameters.numbers("brokerId"), parameters.items("brokerIp")
        is_wanted = (not ids or BROKER_ID in ids) and (
            not addresses or self._addresses.broker.host in addresses
        )
        return self._state.broker_config.record if is_wanted else None

    def _matches(self, parameters: Parameters) -> bool:
        """Say whether the broker is as a query wants it, and has topics as it wants them."""
        record = self._state.broker_config.record or BrokerRecord()
        numbers = {
            "brokerPort": (1, self._addresses.broker.port),
            "brokerTLSPort": (1, record.tls_port),
            "brokerWebPort": (1, self._addresses.broker_web_port),
            "regionId": (0, record.region_id),
            "groupId": (0, record.group_id),
        }
        wishes = {name: parameters.optional_number(name, least=least) for name, (least, _) in numbers.items()}
        return (
            all(wish in (None, numbers[name][1]) for name, wish in wishes.items())
            and has_properties(record.defaults, read_properties(parameters))
            and manage_status(parameters) in (None, record.status)
            and parameters.text("createUser") in ("", record.stamp.create_user)
            and parameters.text("modifyUser") in ("", record.stamp.modify_user)
            and self._has_topics(parameters)
        )

    def _has_topics(self, parameters: Parameters) -> bool:
        names, status = set(parameters.items("topicName")), topic_status(parameters)
        topics = self._state.catalog.all()
        if names and bool(names & set(topics)) != parameters.flag("isInclude", default=True):
            return False
        return status is None or any(spec.status is status for spec in topics.values())

    def _registered(self, record: BrokerRecord) -> bool:
        return record.status is not ManageStatus.DRAFT

    def _detail(self) -> dict[str, Any]:
        """Return the state machine of a broker that has nothing to do (BrokerRunStatusInfo.toJsonString)."""
        version = self._state.catalog.version
        return {
            "type": "BrokerRunStatusInfo",
            "brokerInfo": f"{BROKER_ID}:{self._addresses.broker}",
            "createId": str(self._state.broker_config_id),
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

    def _place(self) -> dict[str, Any]:
        broker = self._addresses.broker
        return {"brokerId": BROKER_ID, "brokerIp": broker.host, "brokerPort": broker.port}
