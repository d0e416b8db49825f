"""Every method has its two messages, and every answer a result code."""

from tests.cases import in_one_test
from tests.protocol.vectors import VECTORS
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.messages import MESSAGES


def test_every_method_is_there():
    assert set(MESSAGES) == set(Method)


@in_one_test("method", MESSAGES)
def test_every_answer_has_a_code_and_a_text(method):
    assert {"errCode", "errMsg"} <= set(MESSAGES[method].response.DESCRIPTOR.fields_by_name)


def test_the_recorded_requests_are_those_of_their_methods():
    for vector in VECTORS:
        if vector["kind"] == "request":
            method = Method(vector["requestBody"]["method"])
            assert MESSAGES[method].request.DESCRIPTOR.name == vector["message"]
