"""Signatures are those Java computes."""

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.protocol.vectors import DOCUMENT, build, named
from tubemq_spark.protocol import auth
from tubemq_spark.protocol.pb import common_pb2

each_signature = pytest.mark.parametrize("entry", DOCUMENT["authSignature"], ids=lambda entry: entry["user"])


def parts(entry) -> tuple[str, str, int, int]:
    return entry["user"], entry["password"], entry["timestamp"], entry["nonce"]


@each_signature
def test_signatures(entry):
    assert auth.sign(*parts(entry)) == entry["signature"]


@each_signature
def test_broker_tokens(entry):
    assert auth.broker_token(*parts(entry)) == entry["brokerToken"]


def test_authenticate_info_is_the_recorded_one():
    fields = named("producer_register_auth_req")["fields"]["authInfo"]["authInfo"]
    expected = build(common_pb2.AuthenticateInfo(), fields)
    assert auth.authenticate_info("alice", "secret", fields["timestamp"], fields["nonce"]) == expected


@given(
    st.text(max_size=20).filter(lambda text: text.isprintable()),
    st.text(max_size=20),
    own.int64s,
    own.naturals,
)
def test_signatures_hold_no_character_that_needs_escaping(user, password, timestamp_ms, nonce):
    signature = auth.sign(user, password, timestamp_ms, nonce)
    assert signature.replace("%", "").isalnum()
    assert auth.authenticate_info(user, password, timestamp_ms, nonce).IsInitialized()
