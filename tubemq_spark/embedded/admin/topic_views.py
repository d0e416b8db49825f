"""The master's web calls that tell of topics: how they are configured, and what clients are told."""

from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.cluster import Addresses
from tubemq_spark.embedded.admin.controls import show_consume
from tubemq_spark.embedded.admin.items import success
from tubemq_spark.embedded.admin.parameters import Call, Parameters, bad_request
from tubemq_spark.embedded.admin.topic_properties import has_properties, read_properties, show_properties
from tubemq_spark.embedded.config.broker_config import ManageStatus
from tubemq_spark.embedded.config.catalog import TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import ConsumeControl
from tubemq_spark.embedded.config.settings import BROKER_ID
from tubemq_spark.embedded.config.stamps import SYSTEM_USER, Stamp, dates, shown
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.protocol.constants import UNDEFINED

_MIB: Final = 1 << 20
_NOT_PUBLISHED: Final = "-"
_MUST_FILTER: Final = 2


class TopicViews:
    """The queries of WebTopicDeployHandler, and the topics' overview of WebMasterInfoHandler."""

    def __init__(self, state: MasterState, addresses: Addresses) -> None:
        """Take what the master's handlers share, and where the broker listens."""
        self._state = state
        self._addresses = addresses
        self.calls: Mapping[str, Call] = {
            "admin_query_topic_info": self.query_topics,
            "admin_query_topic_deploy_info": self.query_deployments,
            "admin_query_topic_deploy_configure": self.query_configuration,
            "admin_query_topic_broker_config_info": self.query_by_topic,
            "admin_query_broker_topic_config_info": self.query_by_broker,
            "admin_query_cluster_topic_view": self.query_overview,
            "admin_query_deployed_topics": self.query_names,
            "admin_query_deployed_broker_ids": self.query_brokers,
        }

    def query_topics(self, parameters: Parameters) -> dict[str, Any]:
        """Return topics with their properties, and what clients are told of them: the old shape."""
        return success(
            [
                {
                    "topicName": name,
                    "maxMsgSizeInMB": _max_message_mib(spec),
                    "topicInfo": [self._with_run_info(name, spec)],
                    **self._totals(spec),
                    "authData": self._authorization(name),
                }
                for name, spec in self._matching(parameters).items()
            ]
        )

    def query_deployments(self, parameters: Parameters) -> dict[str, Any]:
        """Return topics with their properties, and what clients are told of them: the new shape."""
        with_groups = parameters.flag("withGroupAuthInfo", default=False)
        return success(
            [
                {
                    "topicName": name,
                    "topicNameId": UNDEFINED,
                    "enableAuthControl": self._state.controls.topic(name).authorize,
                    "maxMsgSizeInMB": _max_message_mib(spec),
                    "dataVersionId": UNDEFINED,
                    **shown(self._control_stamp(name)),
                    "deployInfo": [self._with_run_info(name, spec)],
                    **self._totals(spec),
                    **(self._groups(name) if with_groups else {}),
                }
                for name, spec in self._matching(parameters).items()
            ]
        )

    def query_configuration(self, parameters: Parameters) -> dict[str, Any]:
        """Return topics with their properties only."""
        return success([self.record(name, spec) for name, spec in self._matching(parameters).items()])

    def query_by_topic(self, parameters: Parameters) -> dict[str, Any]:
        """Count brokers, stores and partitions of each topic."""
        return success([self._counts(name, spec) for name, spec in self._selected(parameters).items()])

    def query_by_broker(self, parameters: Parameters) -> dict[str, Any]:
        """Count topics, stores and partitions of the broker."""
        wanted = parameters.numbers("brokerId")
        names = parameters.items("topicName")
        record = self._state.broker_config.record
        if record is None or (wanted and BROKER_ID not in wanted):
            return success([])
        topics = [spec for name, spec in self._state.catalog.all().items() if not names or name in names]
        config = self._state.broker_config
        published = [spec for spec in topics if config.accept_publish and spec.accept_publish]
        subscribed = [spec for spec in topics if config.accept_subscribe and spec.accept_subscribe]
        item = {
            **self._place(),
            "manageStatus": record.status,
            "acceptPublish": config.accept_publish,
            "acceptSubscribe": config.accept_subscribe,
            "nodeRunInfo": "running" if self._registered else _NOT_PUBLISHED,
        }
        counts = {"topic": _one, "store": _stores, "part": _partitions}
        for what, count in counts.items():
            item[f"{what}TotalCfgCnt"] = sum(map(count, topics))
        for what, count in counts.items():
            item[f"{what}AccPubTotalCnt"] = sum(map(count, published))
            item[f"{what}AccSubTotalCnt"] = sum(map(count, subscribed))
        return success([item])

    def query_overview(self, parameters: Parameters) -> dict[str, Any]:
        """Return the size of each topic in the cluster."""
        return success(
            [
                {
                    "topicName": name,
                    "totalCfgBrokerCnt": 1,
                    "totalCfgNumStore": spec.stores,
                    "totalRunNumStore": spec.stores if self._registered else 0,
                    "totalCfgNumPart": _partitions(spec),
                    "totalRunNumPartCount": _partitions(spec) if self._registered else 0,
                    "isSrvAcceptPublish": self._published(spec),
                    "isSrvAcceptSubscribe": self._subscribed(spec),
                    "enableAuthControl": self._state.controls.topic(name).authorize,
                }
                for name, spec in self._selected(parameters).items()
            ]
        )

    def query_names(self, parameters: Parameters) -> dict[str, Any]:
        """Return the names of the topics of each broker; one that is not known has none."""
        brokers = parameters.numbers("brokerId") or [BROKER_ID]
        names = {BROKER_ID: list(self._state.catalog.all())}
        topics = [(number, names.get(number, [])) for number in brokers]
        return success(
            [
                {"brokerId": number, "topicName": listed, "topicCount": len(listed)}
                for number, listed in topics
            ]
        )

    def query_brokers(self, parameters: Parameters) -> dict[str, Any]:
        """Return the brokers of each topic; a topic that is not known has none."""
        known = self._state.catalog.all()
        with_ip = parameters.flag("withIp", default=False)
        broker: Any = (
            {"brokerId": BROKER_ID, "brokerIp": self._addresses.broker.host} if with_ip else BROKER_ID
        )
        topics = [
            (name, [broker] if name in known else []) for name in parameters.items("topicName") or known
        ]
        return success(
            [
                {"topicName": name, "brokerInfo": brokers, "brokerCnt": len(brokers)}
                for name, brokers in topics
            ]
        )

    def record(self, name: str, spec: TopicSpec) -> dict[str, Any]:
        """Return a topic on the broker as it is configured (TopicDeployEntity.toWebJsonStr)."""
        place = self._place()
        return {
            "topicName": name,
            "brokerId": place["brokerId"],
            "topicNameId": UNDEFINED,
            "brokerIp": place["brokerIp"],
            "brokerPort": place["brokerPort"],
            "topicStatusId": int(spec.status),
            **show_properties(spec),
            "dataVersionId": UNDEFINED,
            **shown(self._state.catalog.stamp(name)),
        }

    def _selected(self, parameters: Parameters) -> dict[str, TopicSpec]:
        """Return the topics that a call wants by their names and their broker."""
        names, brokers = parameters.items("topicName"), parameters.numbers("brokerId")
        if brokers and BROKER_ID not in brokers:
            return {}
        topics = self._state.catalog.all()
        return {name: spec for name, spec in topics.items() if not names or name in names}

    def _matching(self, parameters: Parameters) -> dict[str, TopicSpec]:
        """Return the topics that are as a call wants them in every respect."""
        fields = read_properties(parameters)
        status = topic_status(parameters)
        creator, modifier = parameters.text("createUser"), parameters.text("modifyUser")
        port = parameters.optional_number("brokerPort", least=1)
        addresses = parameters.items("brokerIp")
        here = self._addresses.broker
        if port not in (None, here.port) or (addresses and here.host not in addresses):
            return {}

        def matches(name: str, spec: TopicSpec) -> bool:
            stamp = self._state.catalog.stamp(name)
            return (
                has_properties(spec, fields)
                and status in (None, spec.status)
                and creator in ("", stamp.create_user)
                and modifier in ("", stamp.modify_user)
            )

        return {name: spec for name, spec in self._selected(parameters).items() if matches(name, spec)}

    def _with_run_info(self, name: str, spec: TopicSpec) -> dict[str, Any]:
        """Return a topic's record with what clients are told of it."""
        record = self._state.broker_config.record
        if record is None or not self._registered:
            names = ("acceptPublish", "acceptSubscribe", "numPartitions", "brokerManageStatus")
            run_info: dict[str, Any] = dict.fromkeys(names, _NOT_PUBLISHED)
        else:
            run_info = {
                "acceptPublish": self._published(spec),
                "acceptSubscribe": self._subscribed(spec),
                "numPartitions": spec.partitions,
                "numTopicStores": spec.stores,
                "brokerManageStatus": record.status,
            }
        return {**self.record(name, spec), "runInfo": run_info}

    def _totals(self, spec: TopicSpec) -> dict[str, Any]:
        return {
            "infoCount": 1,
            "totalCfgNumPart": _partitions(spec),
            "isSrvAcceptPublish": self._published(spec),
            "isSrvAcceptSubscribe": self._subscribed(spec),
            "totalRunNumPartCount": _partitions(spec) if self._registered else 0,
        }

    def _counts(self, name: str, spec: TopicSpec) -> dict[str, Any]:
        published, subscribed = self._published(spec), self._subscribed(spec)
        counted = {"Cfg": True, "Run": published or subscribed, "AccPub": published, "AccSub": subscribed}
        counts: dict[str, Any] = {"topicName": name}
        for which in (("Cfg", "Run"), ("AccPub", "AccSub")):
            for what, count in (("broker", _one), ("store", _stores), ("part", _partitions)):
                for case in which:
                    key = f"{what}Total{case}Cnt" if which[0] == "Cfg" else f"{what}{case}TotalCnt"
                    counts[key] = count(spec) if counted[case] else 0
        return {
            **counts,
            "topicSrvAccPubStatus": published,
            "topicSrvAccSubStatus": subscribed,
            "enableAuthControl": self._state.controls.topic(name).authorize,
        }

    def _authorization(self, topic: str) -> dict[str, Any]:
        """Return which groups may have a topic that is not for all."""
        control = self._state.controls.topic(topic)
        if not control.authorize:
            return {}
        controls = self._consume_controls(topic)
        groups = [{"groupName": group, **dates(control.stamp)} for group, control in controls.items()]
        filters = [
            {
                "groupName": group,
                "condStatus": _MUST_FILTER if control.filter else 0,
                "filterConds": show_consume(group, topic, control)["filterConds"] if control.filter else "",
                **{key: text for key, text in dates(control.stamp).items() if key != "createUser"},
            }
            for group, control in controls.items()
        ]
        return {
            "enableAuthControl": True,
            "createUser": control.stamp.modify_user,
            "createDate": control.stamp.modify_date,
            "authConsumeGroup": groups,
            "groupCount": len(groups),
            "authFilterCondSet": filters,
            "filterCount": len(filters),
        }

    def _groups(self, topic: str) -> dict[str, Any]:
        """Return what is said of groups and a topic."""
        controls = self._consume_controls(topic).items()
        items = [show_consume(group, topic, control) for group, control in controls]
        return {"groupAuthInfo": items, "groupAuthCount": len(items)}

    def _consume_controls(self, topic: str) -> dict[str, ConsumeControl]:
        controls = self._state.controls.consumes().items()
        return {group: control for (group, name), control in controls if name == topic}

    def _control_stamp(self, topic: str) -> Stamp:
        """Return who made the record of a topic's rules: the server does, with the topic itself."""
        own = self._state.catalog.stamp(topic)
        stamp = self._state.controls.topic(topic).stamp
        if stamp.modify_user:
            return stamp
        return Stamp(own.serial_id, SYSTEM_USER, own.create_date, SYSTEM_USER, own.create_date)

    def _place(self) -> dict[str, Any]:
        broker = self._addresses.broker
        return {"brokerId": BROKER_ID, "brokerIp": broker.host, "brokerPort": broker.port}

    @property
    def _registered(self) -> bool:
        """Whether the master lets the broker take part."""
        record = self._state.broker_config.record
        return record is not None and record.status is not ManageStatus.DRAFT

    def _published(self, spec: TopicSpec) -> bool:
        return self._state.broker_config.accept_publish and spec.publishable

    def _subscribed(self, spec: TopicSpec) -> bool:
        return self._state.broker_config.accept_subscribe and spec.subscribable


def topic_status(parameters: Parameters) -> TopicStatus | None:
    """Return the status that a query names, if any.

    Raises:
        RefusedError: there is no such status.
    """
    number = parameters.number("topicStatusId", UNDEFINED, least=UNDEFINED)
    try:
        return None if number == UNDEFINED else TopicStatus(number)
    except ValueError as error:
        what = f"invalid:unknown topic status code {number}"
        raise bad_request(f"The value of field topicStatusId {what}") from error


def _one(_spec: TopicSpec) -> int:
    return 1


def _stores(spec: TopicSpec) -> int:
    return spec.stores


def _partitions(spec: TopicSpec) -> int:
    return spec.stores * spec.partitions


def _max_message_mib(spec: TopicSpec) -> int:
    return -(-spec.max_message_bytes // _MIB)
