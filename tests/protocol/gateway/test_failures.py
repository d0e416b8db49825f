"""The error that a client of a gateway gets is the one that the gateway got."""

import itertools

import pytest
from hypothesis import given, strategies as st

from testkit.conditions import CLASSES, parameters_of
from tests import strategies as own
from tubemq_spark.errors import CONDITIONS, GatewayError, ProduceError, RemoteProtocolError, TubeMQError
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb
from tubemq_spark.protocol.gateway.statuses import Status, status_of

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
def any_error(draw):
    condition = draw(st.sampled_from(sorted(CONDITIONS)))
    names = parameters_of(condition)
    parameters = {name: draw(values) for name in [*names, *draw(st.lists(st.just("code"), max_size=1))]}
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
    again = there_and_back(TubeMQError("TUBEMQ_BAD_ADDRESS", address=1 << 70))
    assert str(1 << 70) in str(again)


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


def test_every_error_has_a_status():
    for condition, kind in itertools.product(CONDITIONS, CLASSES):
        assert status_of(kind(condition, **{**parameters_of(condition), "code": 599})) in Status


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrCode.BAD_REQUEST, Status.INVALID_ARGUMENT),
        (ErrCode.PARTITION_OCCUPIED, Status.ABORTED),
        (ErrCode.CERTIFICATE_FAILURE, Status.UNAUTHENTICATED),
        (ErrCode.CONSUME_GROUP_FORBIDDEN, Status.PERMISSION_DENIED),
        (ErrCode.TOPIC_NOT_DEPLOYED, Status.NOT_FOUND),
        (ErrCode.SERVER_RECEIVE_OVERFLOW, Status.RESOURCE_EXHAUSTED),
        (ErrCode.SERVICE_UNAVAILABLE, Status.UNAVAILABLE),
        (ErrCode.INTERNAL_SERVER_ERROR, Status.INTERNAL),
        (ErrCode.UNSPECIFIED_ABNORMAL, Status.UNKNOWN),
        (777, Status.UNKNOWN),
    ],
)
def test_result_codes_have_the_status_of_their_meaning(code, status):
    assert status_of(rpc_error(code, "text", peer="broker", during="asking")) is status
