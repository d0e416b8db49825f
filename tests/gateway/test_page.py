"""docs/gateway/gateway.md names every setting, and docs/gateway/metrics.md every metric, as they are."""

import importlib.util
import re

import pytest

from testkit.git import ROOT
from tests.gateway.fleet import Fleet
from tests.gateway.running import gateway, tubemq


@pytest.mark.parametrize("name", ["gen_gateway_docs", "gen_gateway_metrics_docs"])
def test_the_page_is_up_to_date(name):
    """Run ``make docs`` when this fails."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page()


def test_the_example_of_a_client_reads_what_there_is_and_ends(capsys):
    page = (ROOT / "docs" / "gateway" / "gateway.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import array\n.*?)```", page, re.DOTALL)
    with tubemq(clicks=(1, 1)) as server, gateway(server) as served:
        fleet = Fleet(server, served)
        for broker_id in (1, 2, 3):
            fleet.publish("clicks", b"one", b"two", broker_id=broker_id)
        exec(compile(example.replace("gateway1:11911", served.address), "gateway.md", "exec"), {})
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(["b'one'", "b'two'"] * 3)
        fleet.close()
