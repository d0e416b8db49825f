"""The HTTP administration API of a TubeMQ master and of a broker.

Works with any server that speaks this API: nothing here knows how the server was started.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode
from urllib.request import urlopen

INDEX_ENTRY_BYTES: Final = 28
"""What one message adds to an offset."""

PARTITIONS_PER_STORE: Final = 10_000
"""Partition ids count up to this within a store; the next store starts at its multiple."""

_NO_PARTITION: Final = 99_999_999
"""A partition id beyond every store."""

MAX_LIST_ITEMS: Final = 100
"""How many comma-separated values a server accepts in one parameter."""

Parameter: TypeAlias = str | int | bool


class AdminError(Exception):
    """A server refused an administration call, or an item in it."""

    def __init__(self, method: str, code: int, reason: str) -> None:
        super().__init__(f"{method} was refused with code {code}: {reason}")
        self.method = method
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TopicOnBroker:
    """A topic on one broker, as the master publishes it to clients at the moment."""

    stores: int
    partitions: int
    accepts_publish: bool
    accepts_subscribe: bool


@dataclass(frozen=True, slots=True)
class BrokerRunStatus:
    """What the master knows of a broker's life."""

    broker_id: int
    run_status: str
    """`unRegister`, `notRegister` or `running`."""

    sub_status: str
    """`idle`, or `processing_event` while a change of configuration is under way."""

    is_online: bool


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a broker holds for one partition: from `minimum` up to, not with, `maximum`."""

    minimum: int
    maximum: int

    @property
    def message_count(self) -> int:
        """How many messages the partition's *store* holds."""
        return (self.maximum - self.minimum) // INDEX_ENTRY_BYTES


class _HttpApi:
    """One server's `/webapi.htm`."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._url = f"http://{address}/webapi.htm"
        self._timeout_s = timeout_s

    def call(self, method: str, **parameters: Parameter) -> dict[str, Any]:
        """Make one call and return its whole answer.

        Raises:
            AdminError: the answer says the call failed.
            OSError: no usable answer came.
        """
        answer = self.ask(method=method, **parameters)
        if not answer.get("result"):
            raise AdminError(method, answer.get("errCode", -1), str(answer.get("errMsg")))
        return answer

    def ask(self, *, by_get: bool = False, **parameters: Parameter) -> dict[str, Any]:
        """Send any parameters and return the whole answer, a refusal too.

        Raises:
            OSError: no usable answer came.
        """
        method = parameters.get("method")
        form = urlencode({key: _text(value) for key, value in parameters.items()})
        url, body = (f"{self._url}?{form}", None) if by_get else (self._url, form.encode())
        try:
            with urlopen(url, body, self._timeout_s) as response:
                answer = json.loads(response.read())
        except (HTTPException, ValueError) as error:
            raise ConnectionError(f"{self._url} gave no JSON answer to {method}") from error
        if not isinstance(answer, dict):
            raise ConnectionError(f"{self._url} answered {method} with {answer!r}")
        return answer


class MasterAdmin(_HttpApi):
    """Administer a cluster through its master's web address."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "abc",
        user: str = "integration_tests",
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(address, timeout_s)
        self._token = token
        self._user = user

    def is_active(self) -> bool:
        """Say whether this master is up and leads its group."""
        try:
            nodes = self.group_nodes()
        except (OSError, AdminError):
            return False
        return any(status.upper() == "MASTER" for status in nodes.values())

    def group_nodes(self) -> dict[str, str]:
        """Return the role of each master of the group by its `host:port`."""
        return {
            f"{node['hostName']}:{node['port']}": node["statusInfo"]["nodeStatus"]
            for node in self.call("admin_query_master_group_info")["data"]
        }

    def add_broker(
        self, broker_id: int, host: str, port: int, web_port: int, **properties: Parameter
    ) -> None:
        """Make a broker known; `properties` are the defaults for topics on it."""
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
        """Let a broker serve; possible before it runs."""
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

    def add_topic(
        self,
        topics: str | Iterable[str],
        broker_ids: Iterable[int],
        *,
        stores: int = 1,
        partitions: int = 1,
        **properties: Parameter,
    ) -> None:
        """Create topics of one shape on brokers."""
        for names in _batches([topics] if isinstance(topics, str) else topics):
            self._modify(
                "admin_add_new_topic_record",
                topicName=names,
                brokerId=_listed(broker_ids),
                numTopicStores=stores,
                numPartitions=partitions,
                createUser=self._user,
                **properties,
            )

    def modify_topic(self, topic: str, broker_ids: Iterable[int], **properties: Parameter) -> None:
        """Change properties of a topic, such as `acceptPublish` or `numPartitions`."""
        self._modify(
            "admin_modify_topic_info",
            topicName=topic,
            brokerId=_listed(broker_ids),
            modifyUser=self._user,
            **properties,
        )

    def delete_topic(self, topic: str, broker_ids: Iterable[int]) -> None:
        """Close a topic and mark it deleted; its data stays until `remove_topic`."""
        broker_ids = tuple(broker_ids)
        self.modify_topic(topic, broker_ids, acceptPublish=False, acceptSubscribe=False)
        self._modify(
            "admin_delete_topic_info",
            topicName=topic,
            brokerId=_listed(broker_ids),
            modifyUser=self._user,
        )

    def remove_topic(self, topic: str, broker_ids: Iterable[int]) -> None:
        """Let the brokers drop a deleted topic's data.

        They do so in their own time; the topic is gone when `topic_brokers` is empty.
        """
        self._modify(
            "admin_remove_topic_info",
            topicName=topic,
            brokerId=_listed(broker_ids),
            modifyUser=self._user,
        )

    def topic_info(self, topic: str | None = None) -> list[dict[str, Any]]:
        """Return the master's own items about one topic or about all of them."""
        parameters = {} if topic is None else {"topicName": topic}
        items: list[dict[str, Any]] = self.call("admin_query_topic_info", **parameters)["data"]
        return items

    def topic_brokers(self, topic: str) -> set[int]:
        """Return the brokers that have the topic configured, published or not."""
        return {place["brokerId"] for item in self.topic_info(topic) for place in item["topicInfo"]}

    def accepts_publish(self, topic: str) -> bool:
        """Say whether producers are told of the topic."""
        return any(item.get("isSrvAcceptPublish") is True for item in self.topic_info(topic))

    def published_topics(self) -> dict[tuple[str, int], TopicOnBroker]:
        """Return what clients are told, by topic and broker id; unpublished ones are absent."""
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

    def _modify(self, method: str, **parameters: Parameter) -> None:
        """Make a changing call; the call succeeds only if every item of it did."""
        answer = self.call(method, confModAuthToken=self._token, **parameters)
        for item in answer.get("data", []):
            if not item.get("success", True):
                reason = f"{item.get('errInfo')} (item {item})"
                raise AdminError(method, item.get("errCode", -1), reason)


class BrokerAdmin(_HttpApi):
    """Ask one broker, through its web address, about what it stores."""

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        super().__init__(address, timeout_s)

    def is_up(self) -> bool:
        """Say whether the broker's web server answers."""
        try:
            self.pubinfo()
        except (OSError, AdminError):
            return False
        return True

    def pubinfo(self, topics: Iterable[str] = ()) -> dict[tuple[str, int], OffsetRange]:
        """Return the offsets by topic and partition id, of the stores that are open.

        A store opens with its first use, so a topic nobody used yet is absent.
        """
        parameters = {"topicName": ",".join(topics)} if topics else {}
        answer = self.call("admin_query_pubinfo", **parameters)
        return {
            (topic["topicName"], place["partitionId"]): OffsetRange(place["offsetMin"], place["offsetMax"])
            for topic in answer["dataSet"]
            for place in topic["offsetInfo"]
        }

    def knows_topic(self, topic: str) -> bool:
        """Say whether the master's configuration of the topic has reached this broker.

        Unlike `group_offset` on a partition that exists, asking this opens no store.
        """
        try:
            self.group_offset(topic, "nobody", _NO_PARTITION)
        except AdminError as error:
            return "topicName configure" not in error.reason
        return True

    def message_count(self, topic: str) -> int:
        """Return how many messages of a topic this broker holds, over all its stores."""
        # All partitions of a store tell the same range, so one of each store counts.
        by_store = {
            partition_id // PARTITIONS_PER_STORE: offsets
            for (_, partition_id), offsets in self.pubinfo([topic]).items()
        }
        return sum(offsets.message_count for offsets in by_store.values())

    def group_offset(
        self, topic: str, group: str, partition_id: int, *, real_offset: bool = False
    ) -> dict[str, Any]:
        """Return a partition's `minOffset` and `maxOffset`, opening its store if need be.

        With `real_offset` the answer has the group's committed offset as `zkOffset` too, but a
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
        answer = self.call("admin_query_offset", groupName=group)
        return {
            (topic["topicName"], place["partitionId"]): place["curOffset"]
            for item in answer["dataSet"]
            for topic in item["subInfo"]
            for place in topic["offsets"]
            if place["curOffset"] >= 0
        }


def _text(value: Parameter) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(values: Iterable[Parameter]) -> str:
    return ",".join(_text(value) for value in values)


def _batches(values: Iterable[str]) -> Iterable[str]:
    """Cut names into comma-separated lists no longer than a server accepts."""
    names = list(values)
    for start in range(0, len(names), MAX_LIST_ITEMS):
        yield ",".join(names[start : start + MAX_LIST_ITEMS])
