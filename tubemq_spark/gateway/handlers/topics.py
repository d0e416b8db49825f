"""Creating topics, where the operator of the gateway lets clients do so.

TubeMQ creates topics by its masters' administration API, with a token of the cluster's administrators
(``confModAuthToken``). Clients never see that token: the gateway has it, or creates nothing, and its policy
says who may create what. What a topic is made of is decided here and nowhere else. No topic is ever changed.
"""

from collections.abc import Sequence
from typing import Final

from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.metadata.any_master import ask_a_master
from tubemq_spark.errors import AdminError, GatewayError, RemoteProtocolError
from tubemq_spark.gateway.admission import Turns
from tubemq_spark.gateway.session.calls import Call
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.names import TOPIC_NAME, TOPIC_NAME_RULE

_MOST_PARTS: Final = 1_000
"""Of a topic on one broker: stores, or partitions of one store."""


class Topics:
    """Serves ``CreateTopic``; used in the event loop."""

    def __init__(self, settings: GatewaySettings, workers: Turns) -> None:
        self._gateway = settings.name
        self._web = settings.web_servers
        self._token = settings.master_admin_token
        self._workers = workers

    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.CreateTopicResponse:
        """Create a topic on brokers, by default on all that are online; leave one that exists as it is.

        Raises:
            GatewayError: this gateway creates no topics, the request makes no sense, or no broker is online.
            AdminError: the master refuses.
            RemoteProtocolError: it refuses for some of the brokers only.
            TubeMQConnectionError: no master answers.
        """
        if self._token is None:
            raise GatewayError(
                "TUBEMQ_GATEWAY_CREATES_NONE", gateway=self._gateway, topic=request.topic or "any"
            )
        _check(request)
        timeout_s = call.owner().access.config.rpc_timeout_ms / 1000

        def ask(admin: MasterAdmin) -> pb.CreateTopicResponse:
            return _create(admin, request)

        return await self._workers.run(
            lambda: ask_a_master(self._web(), timeout_s, ask, "TUBEMQ_TOPICS_NOT_LISTED", self._token)
        )


def _check(request: pb.CreateTopicRequest) -> None:
    if not TOPIC_NAME.fullmatch(request.topic):
        raise _bad(f"the topic is to be named {request.topic!r}, but needs {TOPIC_NAME_RULE}")
    for what, count in (("stores", request.stores), ("partitions", request.partitions)):
        if count > _MOST_PARTS:
            raise _bad(f"the topic is to have {count} {what}, but may have {_MOST_PARTS}")


def _create(admin: MasterAdmin, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
    if there := admin.topic_brokers(request.topic, deleted=False):
        return pb.CreateTopicResponse(created=False, broker_ids=sorted(there))
    brokers = _brokers(admin, request.broker_ids)
    try:
        admin.add_topic(
            request.topic, brokers, stores=request.stores or 1, partitions=request.partitions or 1
        )
    except AdminError as error:
        # The master answers for each broker by itself.
        there = admin.topic_brokers(request.topic, deleted=False)
        if missing := sorted(set(brokers) - there):
            if not there:
                raise
            raise RemoteProtocolError(
                "TUBEMQ_TOPIC_PARTLY_CREATED", topic=request.topic, brokers=sorted(there), missing=missing
            ) from error
        # Another client was quicker.
        return pb.CreateTopicResponse(created=False, broker_ids=sorted(there))
    return pb.CreateTopicResponse(created=True, broker_ids=brokers)


def _brokers(admin: MasterAdmin, broker_ids: Sequence[int]) -> list[int]:
    statuses = admin.broker_run_status()
    if unknown := sorted(set(broker_ids) - statuses.keys()):
        raise _bad(f"the cluster has no broker {unknown[0]}, but {sorted(statuses)}")
    chosen = sorted(set(broker_ids)) or sorted(
        broker_id for broker_id, status in statuses.items() if status.is_online
    )
    if not chosen:
        raise _bad("no broker of the cluster is online")
    return chosen


def _bad(what: str) -> GatewayError:
    return GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)
