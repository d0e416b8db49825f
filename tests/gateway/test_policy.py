"""The file with clients and their rights: what it says counts, and mistakes in it are refused."""

import hashlib

import pytest

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.loading import load_settings
from tubemq_spark.gateway.policy import load_policy
from tubemq_spark.gateway.session.guard import RULES
from tubemq_spark.protocol.gateway.methods import METHODS

DIGEST = hashlib.sha256(b"token").hexdigest()


def policy(tmp_path, text):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    return load_policy(file)


def test_names_may_be_patterns_and_what_is_not_allowed_is_forbidden(tmp_path):
    made = policy(
        tmp_path,
        f"""
        [[clients]]
        name = "etl"
        token_sha256 = "{DIGEST}"
        certificate = ["etl.example.com", "etl"]
        read = ["click*", "orders"]
        write = "results"
        group = "etl*"

        [[clients]]
        name = "ops"
        certificate = "ops"
        operator = true
        """,
    )
    assert (made.of_token("token"), made.of_token("other"), made.of_token("")) == ("etl", None, None)
    assert made.of_certificate(["nobody", "etl"]) == "etl"
    assert made.of_certificate([]) is None
    etl, ops = made.clients["etl"], made.clients["ops"]
    topics = ("clicks", "orders", "orders2", "CLICKS", "results")
    assert [etl.may_read(topic) for topic in topics] == [True, True, False, False, False]
    assert [etl.may_write(topic) for topic in ("results", "clicks")] == [True, False]
    assert etl.may_see("results")
    assert etl.may_use("etl_r00")
    assert not etl.may_use("other")
    assert (etl.operator, ops.operator) == (False, True)
    assert not ops.may_see("clicks")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a list of [[clients]]"),
        ("clients = 1", "a list of [[clients]]"),
        ("clients = [1]", "client 1 is not a table"),
        ("[[clients]]\n", "client 1 has no name"),
        ('[[clients]]\nname = "a"', "neither token_sha256 nor certificate"),
        ('[[clients]]\nname = "a"\ntoken = "hush"', "'token', which is none of"),
        ('[[clients]]\nname = "a"\ntoken_sha256 = "hush"', "not 64 digits"),
        ('[[clients]]\nname = "a"\ncertificate = "a"\nread = 7', "read of client 'a' is not a list of texts"),
        ('[[clients]]\nname = "a"\ncertificate = "a"\noperator = "no"', "neither true nor false"),
        ('[[clients]]\nname = "a"\ncertificate = "a"\n' * 2, "there twice"),
        (
            '[[clients]]\nname = "a"\ncertificate = "x"\n[[clients]]\nname = "b"\ncertificate = "x"',
            "client 'b' has the same certificate as client 'a'",
        ),
        ("[[clients", "Expected"),
    ],
)
def test_a_mistake_is_refused_with_its_place_and_without_secrets(tmp_path, text, problem):
    with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_POLICY") as caught:
        policy(tmp_path, text)
    assert problem in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_policy_needs_tls_and_a_login_needs_a_policy(tmp_path):
    policy(tmp_path, f'[[clients]]\nname = "a"\ntoken_sha256 = "{DIGEST}"')
    config = tmp_path / "gateway.toml"
    config.write_text('master_servers = ["m"]\npolicy = "policy.toml"\n')
    with pytest.raises(GatewayError, match="given together with tls_cert"):
        load_settings(config)
    login = {"TUBEMQ_GATEWAY_MASTER_USERNAME": "u", "TUBEMQ_GATEWAY_MASTER_PASSWORD": "hush"}
    with pytest.raises(GatewayError, match="given together with policy") as caught:
        load_settings(None, login, {"master_servers": "m"})
    assert "hush" not in str(caught.value)
    with pytest.raises(GatewayError, match="given together with master_password"):
        load_settings(None, {}, {"master_servers": "m", "master_username": "u"})


def test_each_method_has_a_rule():
    assert METHODS.keys() <= RULES.keys()
