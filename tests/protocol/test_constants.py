"""The numbers of methods and services fit together."""

from tests.protocol.vectors import VECTORS
from tubemq_spark.protocol.constants import METHODS_OF, Method, OpType, ReadStatus, ServiceType, Status


def test_numbers_are_those_of_the_java_code():
    """Of TBaseConstants, RpcConstants and PbEnDecoder."""
    numbers = {kind: list(map(int, kind)) for kind in (ServiceType, Method, OpType, ReadStatus, Status)}
    assert numbers == {
        ServiceType: [1, 2, 3],
        Method: [*range(1, 10), 13, *range(15, 19), 20, 21, 22],
        OpType: [31, 32],
        ReadStatus: [0, 1, 2],
        Status: [0, 1, 2],
    }
    assert {service: sorted(methods) for service, methods in METHODS_OF.items()} == {
        ServiceType.MASTER: [*range(1, 10), 20, 21, 22],
        ServiceType.BROKER_READ: [11, 12, 13, *range(15, 20)],
        ServiceType.BROKER_WRITE: [11, 12, 13, 14],
    }


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
