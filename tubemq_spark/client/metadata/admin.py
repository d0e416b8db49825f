"""The administration API of a TubeMQ master and of a broker, over HTTP.

Every server has one page, ``/webapi.htm``, that takes a ``method`` and its parameters as a form and answers
with JSON (TubeMQ's ``WebServer`` and ``BrokerAdminServlet``). Calls that change the cluster need its token
(``confModAuthToken``); queries do not.
"""

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, TypeAlias

from tubemq_spark.client.names.guesses import AnsweringType, answers_guesses
from tubemq_spark.errors import AdminError, OptionError, TubeMQConnectionError
from tubemq_spark.model import PARTITIONS_PER_STORE, Endpoint, OffsetBounds, rows_between
from tubemq_spark.net import http_client

_NO_PARTITION: Final = 99_999_999
"""A partition id beyond every store."""
UNCHANGED: Final = 403
"""The code with which a master answers to a change that changes nothing."""
_NOT_DELETED: Final = 0
"""A topic's state on a broker, ``TopicStatus.STATUS_TOPIC_OK``."""
_MOST_LIST_ITEMS: Final = 100
"""How many comma-separated values a server accepts in one parameter."""
_WRONG_TOKEN: Final = "unauthorized request"  # noqa: S105
"""In the words of TubeMQ's masters, whose code for it is that of any bad request."""
_MOST_BYTES: Final = 128 << 20
"""Of an answer; that about 100,000 pairs of a topic and a broker is as long."""

Parameter: TypeAlias = str | int | bool


@dataclasses.dataclass(frozen=True, slots=True)
class TopicOnBroker:
    """A topic on one broker, as the master publishes it to clients at the moment."""

    stores: int
    partitions: int
    accepts_publish: bool
    accepts_subscribe: bool


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerRunStatus:
    """How a master sees a broker."""

    broker_id: int
    run_status: str
    """``unRegister``, ``notRegister`` or ``running``."""

    sub_status: str
    """``idle``, or ``processing_event`` while a change of configuration is under way."""

    is_online: bool


@answers_guesses
class _WebApi(metaclass=AnsweringType):
    """One server's ``/webapi.htm``."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._server = Endpoint.parse(address)
        self._timeout_s = timeout_s
        self.url = page_of(self._server)
        """The one page that answers all calls."""

    def call(self, /, method: str, **parameters: Parameter) -> dict[str, Any]:
        """Make one call and return its whole answer.

        Args:
            method: the method's name, such as ``admin_query_topic_info``.
            parameters: its parameters; ``True`` and ``False`` are written in lower case.

        Raises:
            AdminError: the server refused the call.
            TubeMQConnectionError: no usable answer came.
        """
        answer = self.ask(method=method, **parameters)
        if not answer.get("result"):
            raise self._refusal(method, answer.get("errCode"), answer.get("errMsg"))
        return answer

    def ask(self, /, **parameters: Parameter) -> dict[str, Any]:
        """Send parameters as they are and return the whole answer, including a refusal.

        They go in the body of the request: servers and proxies log URLs.

        Args:
            parameters: ``method`` and its parameters.

        Raises:
            TubeMQConnectionError: no usable answer came.
        """
        form = {key: _text(value) for key, value in parameters.items()}
        try:
            answer = json.loads(http_client.fetch(self.url, self._timeout_s, _MOST_BYTES, form))
        except (OSError, ValueError, RecursionError) as error:
            raise self._no_answer(str(error)) from error
        if not isinstance(answer, dict):
            raise self._no_answer("its answer is not a JSON object")
        return answer

    def _refusal(self, method: str, code: object, reason: object) -> AdminError:
        condition = "TUBEMQ_ADMIN_TOKEN" if _WRONG_TOKEN in str(reason) else "TUBEMQ_ADMIN_REFUSED"
        return AdminError(condition, server=self._server, method=method, code=code, reason=str(reason))

    def _no_answer(self, cause: str) -> TubeMQConnectionError:
        return TubeMQConnectionError("TUBEMQ_ADMIN_NO_ANSWER", server=self._server, cause=cause)


@answers_guesses
class MasterAdmin(_WebApi):
    """Administers a cluster through the web address of its active master.

    For example:

        master = MasterAdmin("10.1.2.3:8080", token="abc")  # or client.admin(token="abc")
        master.add_broker(1, "10.1.2.5", 8123, 8081)
        master.online_broker(1)
        master.add_topic("clicks", broker_ids=[1], stores=1, partitions=3)
        master.modify_topic("clicks", [1], numPartitions=4)
        master.delete_topic("clicks", [1])
        master.remove_topic("clicks", [1])

        master.is_active()
        master.group_nodes()
        master.broker_run_status()
        master.broker_web_servers()
        master.topics()
        master.topic_info("clicks")
        master.topic_brokers("clicks")
        master.published_topics()
        master.accepts_publish("clicks")
        master.online_groups("clicks")
        master.consumer_group("etl")
        master.group_control("etl")
        master.consume_controls("etl")
        master.call("admin_query_topic_info", topicName="clicks")
        master.ask(method="admin_query_topic_info")  # as call, which raises what this returns of a refusal
    """

    def __init__(
        self, address: str, *, token: str | None = None, user: str = "tubemq_spark", timeout_s: float = 10.0
    ) -> None:
        """Ask no server.

        Args:
            address: host and port of the master's web server (port 8080 as shipped).
            token: the cluster's ``confModAuthToken``; queries do not need it.
            user: who the cluster's records name as the author of changes.
            timeout_s: how long an answer may take, in seconds.

        Raises:
            OptionError: the address is not one.
        """
        super().__init__(address, timeout_s)
        self._token = token
        self._user = user

    def is_active(self) -> bool:
        """Say whether this master is up and leads its group."""
        try:
            nodes = self.group_nodes()
        except (TubeMQConnectionError, AdminError):
            return False
        return any(status.upper() == "MASTER" for status in nodes.values())

    def group_nodes(self) -> dict[str, str]:
        """Return the role of each master of the group by its ``host:port``."""
        return {
            f"{node['hostName']}:{node['port']}": node["statusInfo"]["nodeStatus"]
            for node in self.call("admin_query_master_group_info")["data"]
        }

    def add_broker(
        self, /, broker_id: int, host: str, port: int, web_port: int, **properties: Parameter
    ) -> None:
        """Make a broker known; ``properties`` are the defaults for topics on it."""
        self._modify(
            "admin_add_broker_configure",
            brokerId=broker_id,
            brokerIp=host,
            brokerPort=port,
            brokerWebPort=web_port,
            createUser=self._user,
            **properties,
        )

    def online_broker(self, broker_id: int) -> None:
        """Set a broker online, so that it serves; possible before it runs."""
        self._modify("admin_online_broker_configure", brokerId=broker_id, modifyUser=self._user)

    def broker_run_status(self) -> dict[int, BrokerRunStatus]:
        """Return the state of every configured broker."""
        items = self.call("admin_query_broker_run_status", withDetail=True)["data"]
        return {
            item["brokerId"]: BrokerRunStatus(
                broker_id=item["brokerId"],
                run_status=item["runStatus"],
                sub_status=item["subStatus"],
                is_online=item.get("isBrokerOnline") == "true",
            )
            for item in items
        }

    def broker_web_servers(self) -> dict[int, Endpoint]:
        """Return where each configured broker serves its administration API, by broker id."""
        return {
            item["brokerId"]: Endpoint(item["brokerIp"], item["brokerWebPort"])
            for item in self.call("admin_query_broker_configure")["data"]
        }

    def add_topic(
        self,
        /,
        topics: str | Iterable[str],
        broker_ids: Iterable[int],
        *,
        stores: int = 1,
        partitions: int = 1,
        **properties: Parameter,
    ) -> None:
        """Create topics of one shape on brokers."""
        brokers = _listed(broker_ids)
        for names in _batches([topics] if isinstance(topics, str) else topics):
            self._modify(
                "admin_add_new_topic_record",
                topicName=names,
                brokerId=brokers,
                numTopicStores=stores,
                numPartitions=partitions,
                createUser=self._user,
                **properties,
            )

    def modify_topic(self, /, topic: str, broker_ids: Iterable[int], **properties: Parameter) -> None:
        """Change properties of a topic, such as ``acceptPublish`` or ``numPartitions``."""
        self._modify(
            "admin_modify_topic_info",
            topicName=topic,
            brokerId=_listed(broker_ids),
            modifyUser=self._user,
            **properties,
        )

    def delete_topic(self, topic: str, broker_ids: Iterable[int]) -> None:
        """Take a topic out of use on brokers: the first of two steps, which keeps the data.

        It is closed for producers and consumers if it is open, and marked deleted. ``remove_topic`` is the
        second step, which drops the data.

        Raises:
            AdminError: the master refuses: a broker does not have the topic, or has it deleted already.
            OptionError: this has no token.
            TubeMQConnectionError: no usable answer came.
        """
        broker_ids = tuple(broker_ids)
        for broker_id in broker_ids:
            try:
                self.modify_topic(topic, [broker_id], acceptPublish=False, acceptSubscribe=False)
            except AdminError as error:
                if error.code != UNCHANGED:
                    raise
        self._modify(
            "admin_delete_topic_info", topicName=topic, brokerId=_listed(broker_ids), modifyUser=self._user
        )

    def remove_topic(self, topic: str, broker_ids: Iterable[int]) -> None:
        """Drop the data of a topic that ``delete_topic`` has marked: the second of two steps, for good.

        Brokers do so in their own time; the topic is gone when ``topic_brokers`` is empty.

        Raises:
            AdminError: the master refuses: a broker does not have the topic, or ``delete_topic`` was not
                called before.
            OptionError: this has no token.
            TubeMQConnectionError: no usable answer came.
        """
        self._modify(
            "admin_remove_topic_info", topicName=topic, brokerId=_listed(broker_ids), modifyUser=self._user
        )

    def topic_info(self, topic: str | None = None) -> list[dict[str, Any]]:
        """Return the master's own items about one topic or about all of them."""
        parameters = {} if topic is None else {"topicName": topic}
        items: list[dict[str, Any]] = self.call("admin_query_topic_info", **parameters)["data"]
        return items

    def topics(self) -> set[str]:
        """Return the topics that are configured on a broker and not deleted there."""
        return {
            item["topicName"]
            for item in self.topic_info()
            if any(place["topicStatusId"] == _NOT_DELETED for place in item["topicInfo"])
        }

    def topic_brokers(self, topic: str, *, deleted: bool = True) -> set[int]:
        """Return the brokers that have the topic configured, published or not.

        Args:
            topic: its name.
            deleted: those, too, where it is deleted and not removed yet.
        """
        return {
            place["brokerId"]
            for item in self.topic_info(topic)
            for place in item["topicInfo"]
            if deleted or place["topicStatusId"] == _NOT_DELETED
        }

    def accepts_publish(self, topic: str) -> bool:
        """Say whether producers are told of the topic."""
        return any(item.get("isSrvAcceptPublish") is True for item in self.topic_info(topic))

    def published_topics(self) -> dict[tuple[str, int], TopicOnBroker]:
        """Return the deployments that clients see, by topic and broker id; unpublished topics are absent."""
        return {
            (item["topicName"], place["brokerId"]): TopicOnBroker(
                stores=place["runInfo"]["numTopicStores"],
                partitions=place["runInfo"]["numPartitions"],
                accepts_publish=place["runInfo"]["acceptPublish"],
                accepts_subscribe=place["runInfo"]["acceptSubscribe"],
            )
            for item in self.topic_info()
            for place in item["topicInfo"]
            # The values are the text "-" as long as the topic is not published.
            if isinstance(place["runInfo"].get("numTopicStores"), int)
        }

    def consumer_group(self, group: str) -> dict[str, Any]:
        """Return the members of an online consumer group and what they hold."""
        return self.call("admin_query_consume_group_detail", groupName=group)

    def group_control(self, group: str) -> dict[str, Any] | None:
        """Return the master's record of what a group may use; None: there is none."""
        records = self.call("admin_query_group_resctrl_info", groupName=group)["data"]
        return next((item for item in records if item["groupName"] == group), None)

    def consume_controls(self, group: str) -> list[dict[str, Any]]:
        """Return the master's records of which topics a group may consume."""
        records = self.call("admin_query_group_csmctrl_info", groupName=group)["data"]
        return [item for item in records if item["groupName"] == group]

    def online_groups(self, topic: str | None = None) -> list[dict[str, Any]]:
        """Return the groups that have members, each with its topics and the number of its members.

        Args:
            topic: only those that read it.
        """
        parameters = {} if topic is None else {"topicName": topic}
        items: list[dict[str, Any]] = self.call("admin_query_sub_info", **parameters)["data"]
        return items

    def _modify(self, method: str, **parameters: Parameter) -> None:
        """Make a changing call; it succeeds only if every item of it did."""
        if self._token is None:
            raise OptionError("TUBEMQ_ADMIN_NO_TOKEN", method=method)
        answer = self.call(method, confModAuthToken=self._token, **parameters)
        for item in answer.get("data", []):
            if not item.get("success", True):
                raise self._refusal(method, item.get("errCode"), f"{item.get('errInfo')} (item {item})")


@answers_guesses
class BrokerAdmin(_WebApi):
    """Ask one broker, through its web address, about what it stores.

    For example:

        broker = BrokerAdmin("10.1.2.5:8081")
        broker.is_up()
        broker.knows_topic("clicks")
        broker.message_count("clicks")
        broker.pubinfo(["clicks"])
        broker.whole_stores(["clicks"])
        broker.booked_groups()
        broker.committed_offsets("etl")
        broker.group_offset("clicks", "etl", 0)
        list(broker.group_places(["etl"], ["clicks"]))
        broker.holders()
        broker.call("admin_query_pubinfo", topicName="clicks")
        broker.ask(method="admin_query_pubinfo")
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        """Ask no server; see ``MasterAdmin``. Brokers listen for it on port 8081 as shipped."""
        super().__init__(address, timeout_s)

    def is_up(self) -> bool:
        """Say whether the broker's web server answers."""
        try:
            self.pubinfo()
        except (TubeMQConnectionError, AdminError):
            return False
        return True

    def pubinfo(self, topics: Iterable[str] = ()) -> dict[tuple[str, int], OffsetBounds]:
        """Return where stores begin and end by topic and partition id, of the stores that are open.

        A store opens with its first use, so a topic without any use is absent.
        """
        return {place: bounds for place, bounds, _ in self._open_stores(topics)}

    def whole_stores(self, topics: Iterable[str]) -> dict[tuple[str, int], OffsetBounds]:
        """Return what ``pubinfo`` does, of the stores from which no data was ever removed."""
        return {place: bounds for place, bounds, data_min in self._open_stores(topics) if data_min == 0}

    def knows_topic(self, topic: str) -> bool:
        """Say whether the master's configuration of the topic has reached this broker.

        Unlike ``group_offset`` on a partition that exists, asking this opens no store.
        """
        try:
            self.group_offset(topic, "none", _NO_PARTITION)
        except AdminError as error:
            return "topicName configure" not in error.reason
        return True

    def message_count(self, topic: str) -> int:
        """Return how many messages of a topic this broker holds, over all its stores."""
        # All partitions of a store tell the same bounds, so one of each store counts.
        by_store = {
            partition_id // PARTITIONS_PER_STORE: bounds
            for (_, partition_id), bounds in self.pubinfo([topic]).items()
        }
        return sum(rows_between(*bounds) for bounds in by_store.values())

    def group_offset(
        self, topic: str, group: str, partition_id: int, *, real_offset: bool = False
    ) -> dict[str, Any]:
        """Return a partition's ``minOffset`` and ``maxOffset``, opening its store if need be.

        With ``real_offset`` the answer has the group's committed offset as ``zkOffset`` too, but a
        group without a record then *gets* one at offset 0.
        """
        return self.call(
            "admin_query_group_offset",
            topicName=topic,
            groupName=group,
            partitionId=partition_id,
            requireRealOffset=real_offset,
        )

    def committed_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return a group's committed offsets by topic and partition id, where it has one.

        The broker books them to its storage with a delay; younger ones are absent.
        """
        return {
            (topic, place["partitionId"]): place["curOffset"]
            for _, topic, place in self.group_places([group])
        }

    def group_places(
        self, groups: Collection[str] = (), topics: Collection[str] = ()
    ) -> Iterator[tuple[str, str, dict[str, int]]]:
        """Yield groups, topics and the API's items about partitions where the group has an offset.

        An item has ``partitionId``, ``curOffset``, ``flightOffset`` and ``offsetMax`` (-2: the store is not
        open) among others. See ``committed_offsets`` for the delay.

        Args:
            groups: the only groups to ask for; by default all of them.
            topics: the only topics to ask for; by default all of them, which takes a broker with many of both
                seconds.

        Raises:
            AdminError: a Java broker refuses the whole question when it asks for a group of which only this
                API has spoken since the broker started (``group_offset`` with ``real_offset``): its
                ``queryGroupOffset`` misses what a consumer's registration makes.
        """
        for of_groups, of_topics in itertools.product(
            _lists("groupName", groups), _lists("topicName", topics)
        ):
            for item in self.call("admin_query_offset", **of_groups, **of_topics)["dataSet"]:
                for topic in item["subInfo"]:
                    for place in topic["offsets"]:
                        if place["curOffset"] >= 0:
                            yield item["groupName"], topic["topicName"], place

    def booked_groups(self) -> list[str]:
        """Return the names of all groups of which this broker has offsets."""
        kinds = self.call("admin_query_group")["dataSet"]
        return next(kind["groupName"] for kind in kinds if kind["type"] == "all")

    def holders(self) -> dict[tuple[str, str, int], str]:
        """Return which consumer holds which partition now, by group, topic and partition id."""
        items = self.call("admin_get_partition_reginfo")["dataSet"]
        keys = [item["Partition"].split(":") for item in items]
        return {
            (group, topic, int(partition_id)): item["Consumer"]
            for (group, topic, partition_id), item in zip(keys, items, strict=True)
        }

    def _open_stores(self, topics: Iterable[str]) -> Iterator[tuple[tuple[str, int], OffsetBounds, int]]:
        """Yield topic and partition id, bounds, and the first byte of the data, of each open partition."""
        for of_topics in _lists("topicName", topics):
            for topic in self.call("admin_query_pubinfo", **of_topics)["dataSet"]:
                for place in topic["offsetInfo"]:
                    bounds = OffsetBounds(place["offsetMin"], place["offsetMax"])
                    yield (topic["topicName"], place["partitionId"]), bounds, place["dataMin"]


def page_of(server: Endpoint) -> str:
    """Return the page of a server that answers all calls."""
    return f"http://{server}/webapi.htm"


def _text(value: Parameter) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(values: Iterable[Parameter]) -> str:
    return ",".join(_text(value) for value in values)


def _batches(values: Iterable[str]) -> Iterable[str]:
    """Cut names into comma-separated lists no longer than a server accepts."""
    names = list(values)
    for start in range(0, len(names), _MOST_LIST_ITEMS):
        yield ",".join(names[start : start + _MOST_LIST_ITEMS])


def _lists(name: str, values: Iterable[str]) -> list[dict[str, str]]:
    """Return a parameter for each list of values; without values one call without it, which asks for all."""
    return [{name: values} for values in _batches(values)] or [{}]
