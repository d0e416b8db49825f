"""What OpenSSL says, in words that say what to do, and whether it may pass."""

import ssl

import pytest

from tubemq_spark.errors import TlsError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.net.tls_errors import handshake_error, refusal

SERVER = Endpoint("tube", 8716)


def said_by_openssl(reason):
    error = ssl.SSLError(1, f"[SSL: {reason}] something (_ssl.c:1)")
    error.reason = reason
    return error


def unverified(code, text="the verifier's words"):
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.reason, error.verify_code, error.verify_message = "CERTIFICATE_VERIFY_FAILED", code, text
    return error


@pytest.mark.parametrize(
    ("reason", "condition", "words"),
    [
        ("WRONG_VERSION_NUMBER", "TUBEMQ_TLS_NOT_SPOKEN", "its answer is not TLS"),
        ("UNSUPPORTED_PROTOCOL", "TUBEMQ_TLS_REFUSED", "no version of TLS that is allowed here; compare"),
        (
            "TLSV1_ALERT_PROTOCOL_VERSION",
            "TUBEMQ_TLS_REFUSED",
            "'protocol version'; compare tubemq.tls.minVersion",
        ),
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "TUBEMQ_TLS_REFUSED",
            "'certificate required'; set tubemq.tls.certFile",
        ),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "TUBEMQ_TLS_REFUSED", "'bad certificate'; set tubemq.tls.certFile"),
        (
            "SSLV3_ALERT_HANDSHAKE_FAILURE",
            "TUBEMQ_TLS_REFUSED",
            "'handshake failure'; set tubemq.tls.certFile",
        ),
        ("TLSV1_UNRECOGNIZED_NAME", "TUBEMQ_TLS_REFUSED", "'unrecognized name'; look at the server's log"),
        ("DH_KEY_TOO_SMALL", "TUBEMQ_TLS_REFUSED", "the handshake failed ('dh key too small')"),
        (None, "TUBEMQ_TLS_REFUSED", "the handshake failed"),
    ],
)
def test_a_handshake_that_would_fail_again(reason, condition, words):
    error = handshake_error(said_by_openssl(reason), SERVER, TlsConfig())
    assert isinstance(error, TlsError)
    assert error.condition == condition
    assert words in str(error)
    assert "tube:8716" in str(error)


@pytest.mark.parametrize(
    "reason",
    [
        "TLSV1_ALERT_INTERNAL_ERROR",
        "TLSV1_ALERT_USER_CANCELLED",
        "SSLV3_ALERT_BAD_RECORD_MAC",
        "SSLV3_ALERT_UNEXPECTED_MESSAGE",
        "TLSV1_ALERT_DECODE_ERROR",
        "DECRYPTION_FAILED_OR_BAD_RECORD_MAC",
    ],
)
def test_what_may_pass_is_a_failed_connection(reason):
    error = handshake_error(said_by_openssl(reason), SERVER, TlsConfig())
    assert error.condition == "TUBEMQ_CONNECT_FAILED"
    assert error.retriable
    assert refusal(said_by_openssl(reason), SERVER, TlsConfig()) is None


def test_a_client_that_shows_a_certificate_is_told_to_look_at_it():
    error = refusal(said_by_openssl("TLSV1_ALERT_UNKNOWN_CA"), SERVER, TlsConfig(cert_file="me.pem"))
    assert "check that the certificate in me.pem is valid and that the server trusts its CA" in str(error)


def test_bytes_that_were_changed_on_the_way_are_no_refusal():
    error = said_by_openssl("DECRYPTION_FAILED_OR_BAD_RECORD_MAC")
    assert refusal(error, SERVER, TlsConfig()) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "it is not valid yet, or its CA's is not; compare the clocks"),
        (10, "it has expired, or its CA's has; renew it"),
        (18, "its issuer is not trusted (the verifier's words); set tubemq.tls.caFile"),
        (19, "its issuer is not trusted (the verifier's words); set tubemq.tls.caFile"),
        (20, "its issuer is not trusted (the verifier's words); set tubemq.tls.caFile"),
        (21, "its issuer is not trusted (the verifier's words); set tubemq.tls.caFile"),
        (62, "it does not name 'other'; address the server by"),
        (64, "it does not name 'other'; address the server by"),
        (23, "the verifier's words; look at it with: openssl s_client"),
    ],
)
def test_what_is_wrong_with_a_certificate(code, words):
    error = handshake_error(unverified(code), SERVER, TlsConfig(server_name="other"))
    assert isinstance(error, TlsError)
    assert f"[TUBEMQ_TLS_CERTIFICATE] The certificate of tube:8716 is not accepted: {words}" in str(error)
