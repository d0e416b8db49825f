"""Fixtures for pytest: a TubeMQ server, fresh topics, a gateway, and a Spark session for testing jobs.

pytest finds them if this package is installed (entry point ``pytest11``), as users expect of a package with
fixtures. This module imports only pytest, so that it does not slow down pytest; the fixtures import what they
need. ``-p no:tubemq_spark.testing`` disables them. See docs/testing/testing.md for tests that use them.
"""

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tubemq_spark.embedded.faults import Faults
    from tubemq_spark.embedded.server import EmbeddedTubeMQ
    from tubemq_spark.gateway.process import BackgroundGateway
    from tubemq_spark.testing.client import TopicClient

_MARKER: Final = "tubemq_topic"
_LONGEST_NAME: Final = 64
"""The maximum length of a topic's name."""
_GROUP: Final = "tests"
_BROKERS: Final = "tubemq_brokers"
_DELIVERY_TIMEOUT_MS: Final = 15_000
"""A message that fails is to fail its test, and not to let it wait for minutes."""
_topic_numbers: Final = itertools.count(1)
"""No name is used twice: clients of an earlier test may still know its topics."""


class TopicFactory(Protocol):
    """Creates topics; the type of the fixture ``tubemq_topic_factory``.

    For example:

        def test_clicks(tubemq_topic_factory: TopicFactory):
            topic = tubemq_topic_factory(stores=3)
    """

    def __call__(self, stores: int = 1, partitions: int = 1, brokers: Iterable[int] | None = None) -> str:
        """Create a topic with some stores, and partitions per store; return its name.

        ``brokers`` are the ids of its brokers; None: all.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting."""
    parser.addini(_BROKERS, "number of brokers of the server in the fixture tubemq", default="1")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(stores=1, partitions=1, brokers=None): the shape of the topic in tubemq_topic",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End what rules for faults a test has left: the next tests do not expect them."""
    server = getattr(item, "funcargs", {}).get("tubemq")
    if server is not None:
        server.faults.release()


@pytest.fixture(scope="session")
def tubemq(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> "Iterator[EmbeddedTubeMQ]":
    """A TubeMQ server in a temporary directory, for all tests; a fixture of the same name replaces it.

    The setting ``tubemq_brokers`` is the number of its brokers.
    """
    from tubemq_spark.embedded.server import EmbeddedTubeMQ

    with EmbeddedTubeMQ(tmp_path_factory.mktemp("tubemq"), brokers=_broker_count(pytestconfig)) as server:
        yield server


@pytest.fixture
def tubemq_topic_factory(tubemq: "EmbeddedTubeMQ", request: pytest.FixtureRequest) -> Iterator[TopicFactory]:
    """Creates empty topics that end with the test: ``tubemq_topic_factory(stores=3)`` returns a name."""
    test = re.sub(r"\W", "_", request.node.name, flags=re.ASCII)
    added: list[str] = []

    def add_topic(stores: int = 1, partitions: int = 1, brokers: Iterable[int] | None = None) -> str:
        topics = tubemq.topics()
        names = (f"t{number}_{test}"[:_LONGEST_NAME] for number in _topic_numbers)
        name = next(name for name in names if name not in topics)
        tubemq.add_topic(name, stores, partitions, brokers=brokers)
        added.append(name)
        return name

    yield add_topic
    topics = tubemq.topics()
    for name in added:
        if name in topics:  # The test may have removed it.
            tubemq.remove_topic(name)


def _broker_count(config: pytest.Config) -> int:
    text = config.getini(_BROKERS).strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise pytest.UsageError(f"{_BROKERS} is {text!r}; it must be a number of brokers, at least 1")
    return int(text)


@pytest.fixture
def tubemq_topic(tubemq_topic_factory: TopicFactory, request: pytest.FixtureRequest) -> str:
    """An empty topic for one test; the marker ``tubemq_topic(stores=3, partitions=1)`` sets its shape."""
    marker = request.node.get_closest_marker(_MARKER)
    if marker is None:
        return tubemq_topic_factory()
    try:
        inspect.signature(tubemq_topic_factory).bind(*marker.args, **marker.kwargs)
    except TypeError as error:
        raise pytest.UsageError(
            f"the marker {_MARKER} of {request.node.nodeid}: {error}; it takes stores, partitions and brokers"
        ) from None
    return tubemq_topic_factory(*marker.args, **marker.kwargs)


@pytest.fixture
def tubemq_options(tubemq: "EmbeddedTubeMQ") -> dict[str, str]:
    """The connection options: ``spark.read.format("tubemq").options(**tubemq_options)``."""
    return {"tubemq.master.servers": tubemq.master, "tubemq.group": _GROUP}


@pytest.fixture
def tubemq_client(tubemq: "EmbeddedTubeMQ") -> "Iterator[TopicClient]":
    """Sends messages to topics and reads topics, without Spark."""
    from tubemq_spark.testing.client import TopicClient

    with TopicClient(tubemq.master, _GROUP, tubemq.faults, _DELIVERY_TIMEOUT_MS) as client:
        yield client


@pytest.fixture
def tubemq_faults(tubemq: "EmbeddedTubeMQ") -> "Iterator[Faults]":
    """The faults of the server, which end with the test."""
    yield tubemq.faults
    tubemq.faults.clear()


@pytest.fixture(scope="session")
def tubemq_gateway(tubemq: "EmbeddedTubeMQ") -> "Iterator[BackgroundGateway]":
    """A gateway before the server, for all tests; ``tubemq_gateway.address`` is where clients reach it.

    Skips tests that use it if a package of the extra ``gateway`` is missing.
    """
    from tubemq_spark.gateway.settings import GatewaySettings
    from tubemq_spark.model import Endpoint

    try:
        from tubemq_spark.gateway.process import BackgroundGateway
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}: pip install 'tubemq_spark[gateway]'")
    settings = GatewaySettings(
        master_servers=(Endpoint.parse(tubemq.master),),
        master_web=(Endpoint.parse(tubemq.master_web),),
        listen=Endpoint("127.0.0.1", 0),
    )
    with BackgroundGateway(settings.validate()) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def tubemq_spark_session(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A Spark session on two cores, for all tests; skips tests that use it if Spark cannot run."""
    from tubemq_spark.spark.local import local_session, why_not

    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
