"""What docs/gateway/gateway.md shows."""

import re

from testkit.git import ROOT
from tests.gateway.fleet import Fleet
from tests.gateway.running import gateway, tubemq


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
