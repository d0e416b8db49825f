"""What a client asks of gateways: answers of several pages, and answers that make no sense."""

import pytest

from tests.client.remote.scripted_gateway import scripted
from tubemq_spark.client.remote.queries import Queries
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import StoreId
from tubemq_spark.net import loop
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


def test_topics_are_asked_for_until_their_last_page():
    pages = {
        "": pb.ListTopicsResponse(topics=["a"], next_page_token="second"),
        "second": pb.ListTopicsResponse(topics=["b"]),
    }
    with scripted({"ListTopics": lambda request: pages[request.page_token]}) as (_, gateways):
        assert loop.run(Queries(gateways).topics()) == {"a", "b"}


def test_bounds_of_other_stores_than_were_asked_for_make_no_sense():
    with (
        scripted({"QueryBounds": lambda _: pb.QueryBoundsResponse()}) as (_, gateways),
        pytest.raises(RemoteProtocolError, match="TUBEMQ_GATEWAY_ANSWER"),
    ):
        loop.run(Queries(gateways).bounds([StoreId("demo", 1, 0)]))
