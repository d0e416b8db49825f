"""The package as it is installed: one command brings all that a client without Spark needs."""

import pytest

from integration_tests.wheel.environment import Environment, run
from tools.build_dist import build

PROGRAM = """
import importlib, pkgutil
import tubemq_spark
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

for part in ("protocol", "net", "client", "embedded", "cli"):
    package = importlib.import_module(f"tubemq_spark.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith("tubemq_spark.cli.demo."):  # it runs in Spark
            importlib.import_module(module.name)

with EmbeddedTubeMQ(topics={"demo": (2, 1)}, brokers=3) as server:
    with TubeMQClient.connect(server.master, group="etl") as client:
        with client.producer() as producer:
            for number in range(100):
                producer.send("demo", b"%d" % number, attributes={"n": str(number)})
        read = {record.value for record in client.read("demo")}
        assert read == {b"%d" % number for number in range(100)}, read

print("installed at", tubemq_spark.__path__[0])
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_wheel_brings_all_that_a_client_needs(tmp_path):
    build(tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    environment = Environment.create(tmp_path / "fresh", wheel)
    shown = run([environment.python, "-c", PROGRAM], directory=tmp_path)
    assert shown.startswith(f"installed at {environment.path}")
