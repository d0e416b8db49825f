"""gRPC's view of its own connections, where it is wanted; where there is a policy, for operators only."""

import sys

import grpc
import pytest

from testkit.certificates import Authority
from tests.gateway.operating.secured import TOKENS, SecuredClient, policy_text
from tests.gateway.running import PlainClient, RefusedError, gateway, settings, tubemq
from tubemq_spark.errors import OptionError
from tubemq_spark.gateway.background import BackgroundGateway


@pytest.fixture(scope="module")
def server(nothing_left_behind_by_the_module):
    with tubemq(demo=(1, 1)) as running:
        yield running


def servers(client, **metadata):
    channelz = pytest.importorskip("grpc_channelz.v1.channelz_pb2")
    stub = pytest.importorskip("grpc_channelz.v1.channelz_pb2_grpc").ChannelzStub(client.channel)
    try:
        return stub.GetServers(channelz.GetServersRequest(), timeout=10, **metadata).server
    except grpc.RpcError as error:
        raise RefusedError(error) from None


def test_channelz_tells_of_calls_and_sockets(server):
    pytest.importorskip("grpc_channelz")
    with gateway(server, channelz=True) as running, PlainClient(running.address) as client:
        client.open()
        assert max(one.data.calls_started for one in servers(client)) >= 1


def test_channelz_is_not_served_by_default(server):
    pytest.importorskip("grpc_channelz")
    with gateway(server) as running, PlainClient(running.address) as client:
        with pytest.raises(RefusedError) as caught:
            servers(client)
        assert caught.value.status == "UNIMPLEMENTED"


def test_with_a_policy_only_operators_see_channelz(server, tmp_path):
    pytest.importorskip("grpc_channelz")
    authority = Authority(tmp_path)
    pair, policy = authority.issue("gateway"), tmp_path / "policy.toml"
    policy.write_text(policy_text())
    changes = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "policy": str(policy)}
    with (
        gateway(server, channelz=True, **changes) as running,
        SecuredClient(running.address, authority) as client,
    ):
        for shown, condition in (
            ((), "TUBEMQ_GATEWAY_LOGIN"),
            ((("authorization", f"Bearer {TOKENS['reader']}"),), "TUBEMQ_GATEWAY_FORBIDDEN"),
        ):
            with pytest.raises(RefusedError) as caught:
                servers(client, metadata=shown)
            assert caught.value.condition == condition
        assert servers(client, metadata=(("authorization", f"Bearer {TOKENS['operator']}"),))


def test_a_missing_package_is_named(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc_channelz.v1", None)
    with pytest.raises(OptionError, match=r"gateway-channelz"):
        BackgroundGateway(settings(server, channelz=True)).start()
