"""The numbers of methods and services fit together."""

from tests.protocol.vectors import VECTORS
from tubemq_spark.protocol.constants import METHODS_OF, Method, ServiceType


def test_every_method_is_served():
    served = frozenset().union(*METHODS_OF.values())
    assert set(Method) <= served
    assert METHODS_OF.keys() == set(ServiceType)


def test_sending_is_served_under_both_broker_services():
    """The Go client sends under the read service."""
    assert Method.SEND_MESSAGE in METHODS_OF[ServiceType.BROKER_READ]
    assert Method.SEND_MESSAGE in METHODS_OF[ServiceType.BROKER_WRITE]


def test_every_recorded_request_is_allowed():
    for vector in VECTORS:
        if vector["kind"] == "request":
            service = ServiceType(vector["requestHeader"]["serviceType"])
            assert Method(vector["requestBody"]["method"]) in METHODS_OF[service]
