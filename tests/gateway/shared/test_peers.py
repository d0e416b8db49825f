"""Gateways that announce themselves find each other, and are forgotten when they stop."""

from tests.gateway.fleet import Fleet
from tests.gateway.running import gateway
from tests.waiting import wait_until


def test_gateways_know_each_other_until_they_stop(server, tmp_path):
    how = {"announce_dir": str(tmp_path), "housekeeping_ms": 20}
    with gateway(server, node_name="one", **how) as one:
        fleet = Fleet(server, one)
        client = fleet.client()

        def peers():
            return [(peer.name, peer.address) for peer in client("DescribeGateway").peers]

        with gateway(server, node_name="two", advertise="two:1", **how):
            wait_until(lambda: peers() == [("one", one.address), ("two", "two:1")])
        wait_until(lambda: peers() == [("one", one.address)])
        fleet.close()
    assert list(tmp_path.iterdir()) == []


def test_a_gateway_serves_without_its_directory(server, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with gateway(server, announce_dir=str(tmp_path / "file")) as served:
        fleet = Fleet(server, served)
        assert not fleet.client()("DescribeGateway").peers
        fleet.close()
    assert "the directory of gateways cannot be used" in caplog.text
