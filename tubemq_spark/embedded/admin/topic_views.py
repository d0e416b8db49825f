"""The master's web calls that query topics: how they are configured, and what clients are told."""

from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.controls import show_consume
from tubemq_spark.embedded.admin.items import success
from tubemq_spark.embedded.admin.parameters import Call, Parameters, bad_request
from tubemq_spark.embedded.admin.topic_properties import has_properties, read_properties, show_properties
from tubemq_spark.embedded.config.broker_config import BrokerRecord
from tubemq_spark.embedded.config.catalog import TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import ConsumeControl
from tubemq_spark.embedded.config.stamps import SYSTEM_USER, Stamp, dates, shown
from tubemq_spark.embedded.master.brokers import KnownBroker
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.protocol.constants import UNDEFINED

_MIB: Final = 1 << 20
_NOT_PUBLISHED: Final = "-"
_MUST_FILTER: Final = 2

Deployments = list[tuple[KnownBroker, TopicSpec]]
"""The brokers of a topic, and its specification on each."""


class TopicViews:
    """The queries of WebTopicDeployHandler, and the topic overview of WebMasterInfoHandler."""

    def __init__(self, state: MasterState) -> None:
        """Take what the master's handlers share."""
        self._state = state
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
        """Return topics with their properties and what clients are told, in the older shape."""
        return success(
            [
                {
                    "topicName": name,
                    "maxMsgSizeInMB": _max_message_mib(deployed),
                    "topicInfo": [self._with_run_info(name, *item) for item in deployed],
                    **_totals(deployed),
                    "authData": self._authorization(name),
                }
                for name, deployed in self._matching(parameters).items()
            ]
        )

    def query_deployments(self, parameters: Parameters) -> dict[str, Any]:
        """Return topics with their properties and what clients are told, in the newer shape."""
        with_groups = parameters.flag("withGroupAuthInfo", default=False)
        return success(
            [
                {
                    "topicName": name,
                    "topicNameId": UNDEFINED,
                    "enableAuthControl": self._state.controls.topic(name).authorize,
                    "maxMsgSizeInMB": _max_message_mib(deployed),
                    "dataVersionId": UNDEFINED,
                    **shown(self._control_stamp(name, deployed)),
                    "deployInfo": [self._with_run_info(name, *item) for item in deployed],
                    **_totals(deployed),
                    **(self._groups(name) if with_groups else {}),
                }
                for name, deployed in self._matching(parameters).items()
            ]
        )

    def query_configuration(self, parameters: Parameters) -> dict[str, Any]:
        """Return topics with their properties only."""
        return success(
            [
                self.record(broker, name, spec)
                for name, deployed in self._matching(parameters).items()
                for broker, spec in deployed
            ]
        )

    def query_by_topic(self, parameters: Parameters) -> dict[str, Any]:
        """Count brokers, stores and partitions of each topic."""
        return success([self._counts(name, found) for name, found in self._selected(parameters).items()])

    def query_by_broker(self, parameters: Parameters) -> dict[str, Any]:
        """Count topics, stores and partitions of each broker."""
        wanted = parameters.numbers("brokerId")
        names = parameters.items("topicName")
        return success(
            [
                _broker_counts(broker, record, names)
                for broker in self._state.brokers
                if (record := broker.config.record) is not None and (not wanted or broker.id in wanted)
            ]
        )

    def query_overview(self, parameters: Parameters) -> dict[str, Any]:
        """Return the size of each topic in the cluster."""
        return success(
            [
                {
                    "topicName": name,
                    "totalCfgBrokerCnt": len(deployed),
                    "totalCfgNumStore": sum(_stores(spec) for _, spec in deployed),
                    "totalRunNumStore": sum(_stores(spec) for broker, spec in deployed if broker.registered),
                    "totalCfgNumPart": sum(_partitions(spec) for _, spec in deployed),
                    "totalRunNumPartCount": _running_partitions(deployed),
                    "isSrvAcceptPublish": _published(deployed),
                    "isSrvAcceptSubscribe": _subscribed(deployed),
                    "enableAuthControl": self._state.controls.topic(name).authorize,
                }
                for name, deployed in self._selected(parameters).items()
            ]
        )

    def query_names(self, parameters: Parameters) -> dict[str, Any]:
        """Return the names of the topics of each broker; an unknown broker has none."""
        names = {broker.id: list(broker.catalog.all()) for broker in self._state.brokers}
        topics = [(number, names.get(number, [])) for number in parameters.numbers("brokerId") or names]
        return success(
            [
                {"brokerId": number, "topicName": listed, "topicCount": len(listed)}
                for number, listed in topics
            ]
        )

    def query_brokers(self, parameters: Parameters) -> dict[str, Any]:
        """Return the brokers of each topic; an unknown topic has none."""
        with_ip = parameters.flag("withIp", default=False)
        names = parameters.items("topicName") or self._state.brokers.topics()
        items = []
        for name in names:
            brokers: list[Any] = [
                {"brokerId": broker.id, "brokerIp": broker.endpoint.host} if with_ip else broker.id
                for broker in self._state.brokers
                if name in broker.catalog.all()
            ]
            items.append({"topicName": name, "brokerInfo": brokers, "brokerCnt": len(brokers)})
        return success(items)

    def record(self, broker: KnownBroker, name: str, spec: TopicSpec) -> dict[str, Any]:
        """Return the configuration of a topic on a broker (TopicDeployEntity.toWebJsonStr)."""
        where = broker_fields(broker)
        return {
            "topicName": name,
            "brokerId": where["brokerId"],
            "topicNameId": UNDEFINED,
            "brokerIp": where["brokerIp"],
            "brokerPort": where["brokerPort"],
            "topicStatusId": int(spec.status),
            **show_properties(spec),
            "dataVersionId": UNDEFINED,
            **shown(broker.catalog.stamp(name)),
        }

    def _selected(self, parameters: Parameters) -> dict[str, Deployments]:
        """Return the topics that match the names and brokers of a call."""
        names, brokers = parameters.items("topicName"), parameters.numbers("brokerId")
        found: dict[str, Deployments] = {}
        for broker in self._state.brokers:
            if brokers and broker.id not in brokers:
                continue
            for name, spec in broker.catalog.all().items():
                if not names or name in names:
                    found.setdefault(name, []).append((broker, spec))
        return dict(sorted(found.items()))

    def _matching(self, parameters: Parameters) -> dict[str, Deployments]:
        """Return the topics that match a call in every respect, on the brokers where they do."""
        fields = read_properties(parameters)
        status = topic_status(parameters)
        creator, modifier = parameters.text("createUser"), parameters.text("modifyUser")
        port = parameters.optional_number("brokerPort", least=1)
        addresses = parameters.items("brokerIp")

        def matches(name: str, broker: KnownBroker, spec: TopicSpec) -> bool:
            stamp = broker.catalog.stamp(name)
            return (
                port in (None, broker.endpoint.port)
                and (not addresses or broker.endpoint.host in addresses)
                and has_properties(spec, fields)
                and status in (None, spec.status)
                and creator in ("", stamp.create_user)
                and modifier in ("", stamp.modify_user)
            )

        selected = {
            name: [item for item in deployed if matches(name, *item)]
            for name, deployed in self._selected(parameters).items()
        }
        return {name: deployed for name, deployed in selected.items() if deployed}

    def _with_run_info(self, name: str, broker: KnownBroker, spec: TopicSpec) -> dict[str, Any]:
        """Return a topic's record with what clients are told about it."""
        record = broker.config.record
        if record is None or not broker.registered:
            names = ("acceptPublish", "acceptSubscribe", "numPartitions", "brokerManageStatus")
            run_info: dict[str, Any] = dict.fromkeys(names, _NOT_PUBLISHED)
        else:
            run_info = {
                "acceptPublish": broker.publishes(spec),
                "acceptSubscribe": broker.subscribes(spec),
                "numPartitions": spec.partitions,
                "numTopicStores": spec.stores,
                "brokerManageStatus": record.status,
            }
        return {**self.record(broker, name, spec), "runInfo": run_info}

    def _counts(self, name: str, deployed: Deployments) -> dict[str, Any]:
        """Count a topic's brokers, stores and partitions: all, and those that clients may use."""
        open_to = {
            "Cfg": [spec for _, spec in deployed],
            "Run": [spec for broker, spec in deployed if broker.publishes(spec) or broker.subscribes(spec)],
            "AccPub": [spec for broker, spec in deployed if broker.publishes(spec)],
            "AccSub": [spec for broker, spec in deployed if broker.subscribes(spec)],
        }
        counts: dict[str, Any] = {"topicName": name}
        for which in (("Cfg", "Run"), ("AccPub", "AccSub")):
            for what, count in (("broker", _one), ("store", _stores), ("part", _partitions)):
                for case in which:
                    key = f"{what}Total{case}Cnt" if which[0] == "Cfg" else f"{what}{case}TotalCnt"
                    counts[key] = sum(map(count, open_to[case]))
        return {
            **counts,
            "topicSrvAccPubStatus": _published(deployed),
            "topicSrvAccSubStatus": _subscribed(deployed),
            "enableAuthControl": self._state.controls.topic(name).authorize,
        }

    def _authorization(self, topic: str) -> dict[str, Any]:
        """Return which groups may read a restricted topic."""
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
        """Return the consume controls of a topic."""
        controls = self._consume_controls(topic).items()
        items = [show_consume(group, topic, control) for group, control in controls]
        return {"groupAuthInfo": items, "groupAuthCount": len(items)}

    def _consume_controls(self, topic: str) -> dict[str, ConsumeControl]:
        controls = self._state.controls.consumes().items()
        return {group: control for (group, name), control in controls if name == topic}

    def _control_stamp(self, topic: str, deployed: Deployments) -> Stamp:
        """Return the stamp of a topic's control; by default the server creates it with the topic."""
        own = deployed[0][0].catalog.stamp(topic)
        stamp = self._state.controls.topic(topic).stamp
        if stamp.modify_user:
            return stamp
        return Stamp(own.serial_id, SYSTEM_USER, own.create_date, SYSTEM_USER, own.create_date)


def broker_fields(broker: KnownBroker) -> dict[str, Any]:
    """Return a broker's id and address in the form of answers."""
    return {"brokerId": broker.id, "brokerIp": broker.endpoint.host, "brokerPort": broker.endpoint.port}


def topic_status(parameters: Parameters) -> TopicStatus | None:
    """Return the status in a query, if any.

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


def _max_message_mib(deployed: Deployments) -> int:
    return -(-min(spec.max_message_bytes for _, spec in deployed) // _MIB)


def _running_partitions(deployed: Deployments) -> int:
    return sum(_partitions(spec) for broker, spec in deployed if broker.registered)


def _published(deployed: Deployments) -> bool:
    return any(broker.publishes(spec) for broker, spec in deployed)


def _subscribed(deployed: Deployments) -> bool:
    return any(broker.subscribes(spec) for broker, spec in deployed)


def _totals(deployed: Deployments) -> dict[str, Any]:
    return {
        "infoCount": len(deployed),
        "totalCfgNumPart": sum(_partitions(spec) for _, spec in deployed),
        "isSrvAcceptPublish": _published(deployed),
        "isSrvAcceptSubscribe": _subscribed(deployed),
        "totalRunNumPartCount": _running_partitions(deployed),
    }


def _broker_counts(broker: KnownBroker, record: BrokerRecord, names: list[str]) -> dict[str, Any]:
    """Count a broker's topics, stores and partitions: all, and those that clients may use."""
    topics = [spec for name, spec in broker.catalog.all().items() if not names or name in names]
    published = [spec for spec in topics if broker.accept_publish and spec.accept_publish]
    subscribed = [spec for spec in topics if broker.accept_subscribe and spec.accept_subscribe]
    item = {
        **broker_fields(broker),
        "manageStatus": record.status,
        "acceptPublish": broker.accept_publish,
        "acceptSubscribe": broker.accept_subscribe,
        "nodeRunInfo": "running" if broker.registered else _NOT_PUBLISHED,
    }
    counts = {"topic": _one, "store": _stores, "part": _partitions}
    for what, count in counts.items():
        item[f"{what}TotalCfgCnt"] = sum(map(count, topics))
    for what, count in counts.items():
        item[f"{what}AccPubTotalCnt"] = sum(map(count, published))
        item[f"{what}AccSubTotalCnt"] = sum(map(count, subscribed))
    return item
