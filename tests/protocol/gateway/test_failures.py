"""The error that a client of a gateway gets is the one that the gateway got."""

import base64
import itertools
from urllib.parse import quote

import grpc
import pytest
from hypothesis import given, strategies as st

from testkit.conditions import CLASSES, parameters_of
from tests import strategies as own
from tests.cases import in_one_test
from tubemq_spark.errors import (
    CONDITIONS,
    GatewayError,
    OptionError,
    ProduceError,
    RemoteProtocolError,
    TubeMQError,
)
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb
from tubemq_spark.protocol.gateway.failures import GrpcStatus, status_of

PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

values = (
    st.none()
    | st.booleans()
    | own.int64s
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
)


def there_and_back(error):
    return failures.parse_error(failures.to_proto(error).SerializeToString())


@st.composite
def any_error(draw, of_servers=False):
    """Return any error; those ``of_servers`` have a code."""
    condition = draw(st.sampled_from(sorted(CONDITIONS)))
    has_code = of_servers or draw(st.booleans())
    parameters = {name: draw(values) for name in [*parameters_of(condition), *["code"] * has_code]}
    if of_servers:
        parameters["code"] = draw(own.int64s)
    error = draw(st.sampled_from(CLASSES))(condition, **parameters)
    error.retriable = draw(st.booleans())
    error.about = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
    error.row = draw(st.none() | own.naturals)
    return error


@given(any_error())
def test_an_error_arrives_as_it_is(error):
    again = there_and_back(error)

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert (again.condition, again.parameters) == (error.condition, error.parameters)
    assert (again.retriable, again.about, again.row) == (error.retriable, error.about, error.row)


def test_a_number_that_is_too_long_arrives_as_text():
    for number in (own.INT64_MIN, own.INT64_MAX):
        again = there_and_back(TubeMQError("TUBEMQ_BAD_ADDRESS", address=number))
        assert again.parameters["address"] == number
    for number in (own.INT64_MIN - 1, own.INT64_MAX + 1):
        again = there_and_back(TubeMQError("TUBEMQ_BAD_ADDRESS", address=number))
        assert again.parameters["address"] == str(number)


def test_codes_are_told_apart_from_the_text_as_far_as_they_are_int32():
    for code, told in (
        (own.INT32_MIN, own.INT32_MIN),
        (own.INT32_MAX, own.INT32_MAX),
        (own.INT32_MIN - 1, 0),
        (own.INT32_MAX + 1, 0),
    ):
        assert failures.to_proto(TubeMQError("TUBEMQ_BAD_ADDRESS", address="x", code=code)).code == told


@pytest.mark.parametrize(
    "change",
    [{"condition": "TUBEMQ_OF_LATER"}, {"kind": "LaterError"}, {"kind": "CONDITIONS"}, {"kind": "Any"}],
    ids=str,
)
def test_an_error_of_a_later_release_keeps_its_text(change):
    message = failures.to_proto(TubeMQError("TUBEMQ_BAD_ADDRESS", address="x"))
    for name, value in change.items():
        setattr(message, name, value)

    again = failures.from_proto(message)

    assert type(again) is GatewayError
    assert message.text.rstrip(".") in str(again)


def test_a_trailer_that_is_none_is_refused():
    with pytest.raises(RemoteProtocolError, match="TUBEMQ_GATEWAY_ANSWER"):
        failures.parse_error(b"\xff\xff")


def test_a_message_that_may_be_stored_says_so_to_any_client():
    assert (
        failures.to_proto(ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic="a")).outcome
        == pb.TubeError.OUTCOME_NOT_STORED
    )
    unclear = ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic="a", unanswered=1)
    assert failures.to_proto(unclear).outcome == pb.TubeError.OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OptionError("TUBEMQ_BAD_MESSAGE", what="it has no topic"), pb.TubeError.OUTCOME_NOT_STORED),
        (failures.unexpected(KeyError("x")), pb.TubeError.OUTCOME_UNSPECIFIED),
        (
            GatewayError("TUBEMQ_GATEWAY_DEADLINE", method="PublishStream", waited_ms=1),
            pb.TubeError.OUTCOME_UNSPECIFIED,
        ),
        (GatewayError("TUBEMQ_GATEWAY_DRAINING", gateway="g"), pb.TubeError.OUTCOME_UNSPECIFIED),
    ],
    ids=lambda value: getattr(value, "condition", ""),
)
def test_an_error_that_does_not_tell_of_messages_says_nothing_of_them(error, outcome):
    assert failures.to_proto(error).outcome == outcome


def on_the_wire(error):
    """What status and trailers of an error take in HTTP/2, each with 32 bytes, as clients count them."""
    status, text, trailers = failures.status_with_trailers(error)
    fields = [("grpc-status", str(int(status))), ("grpc-message", quote(text, safe=PRINTABLE))]
    fields += [(key, base64.b64encode(value).decode()) for key, value in trailers]
    return sum(len(key) + len(value) + 32 for key, value in fields)


@pytest.mark.sampled
@pytest.mark.parametrize("character", ["x", "ü", "\U0001f600", "\n", "%", "\udcff"], ids=ascii)
@pytest.mark.parametrize("length", [100, 300_000])
@pytest.mark.parametrize("condition", ["TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_FORBIDDEN"])
def test_an_error_with_long_texts_fits_every_client_and_keeps_its_condition(condition, length, character):
    names = dict.fromkeys(parameters_of(condition), character * length)
    error = GatewayError(condition, **{**names, "retry_after_ms": 70})
    error.about = character * length
    assert on_the_wire(error) < 8 << 10
    _, text, trailers = failures.status_with_trailers(error)
    again = failures.parse_error(dict(trailers)[failures.ERROR_TRAILER])
    assert (type(again), again.condition) == (GatewayError, condition)
    details = pb.RpcStatus.FromString(dict(trailers)[failures.STATUS_TRAILER])
    assert (details.code, details.message) == (status_of(error), text)
    assert pb.RpcErrorInfo.FromString(details.details[0].value).reason == condition


@given(any_error(of_servers=True))
def test_any_error_is_a_status_of_google_rpc_too(error):
    status, text, trailers = failures.status_with_trailers(error)
    details = pb.RpcStatus.FromString(dict(trailers)["grpc-status-details-bin"])
    assert (details.code, details.message) == (status, text)
    assert details.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    info = pb.RpcErrorInfo.FromString(details.details[0].value)
    assert (info.reason, info.domain) == (error.condition, "tubemq_spark")
    assert info.metadata.keys() == error.parameters.keys()


def test_when_to_try_again_is_told_in_the_form_that_tools_know():
    error = GatewayError("TUBEMQ_GATEWAY_BUSY", gateway="g", what="it is full", retry_after_ms=1_500)
    details = pb.RpcStatus.FromString(dict(failures.status_with_trailers(error)[2])[failures.STATUS_TRAILER])
    assert details.details[1].type_url == "type.googleapis.com/google.rpc.RetryInfo"
    delay = pb.RpcRetryInfo.FromString(details.details[1].value).retry_delay
    assert (delay.seconds, delay.nanos) == (1, 500_000_000)


def test_status_codes_are_those_of_grpc():
    codes = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {status.name: status.value for status in GrpcStatus}.items() <= codes.items()


def test_every_error_has_a_status():
    for condition, kind in itertools.product(CONDITIONS, CLASSES):
        assert status_of(kind(condition, **{**parameters_of(condition), "code": 599})) in GrpcStatus


@in_one_test(
    ("code", "status"),
    [
        (ErrCode.BAD_REQUEST, GrpcStatus.INVALID_ARGUMENT),
        (ErrCode.PARTITION_OCCUPIED, GrpcStatus.ABORTED),
        (ErrCode.CERTIFICATE_FAILURE, GrpcStatus.UNAUTHENTICATED),
        (ErrCode.CONSUME_GROUP_FORBIDDEN, GrpcStatus.PERMISSION_DENIED),
        (ErrCode.TOPIC_NOT_DEPLOYED, GrpcStatus.NOT_FOUND),
        (ErrCode.SERVER_RECEIVE_OVERFLOW, GrpcStatus.RESOURCE_EXHAUSTED),
        (ErrCode.SERVICE_UNAVAILABLE, GrpcStatus.UNAVAILABLE),
        (ErrCode.INTERNAL_SERVER_ERROR, GrpcStatus.INTERNAL),
        (ErrCode.UNSPECIFIED_ABNORMAL, GrpcStatus.UNKNOWN),
        (777, GrpcStatus.UNKNOWN),
    ],
)
def test_result_codes_have_the_status_of_their_meaning(code, status):
    assert status_of(rpc_error(code, "text", peer="broker", during="asking")) is status
