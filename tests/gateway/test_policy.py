"""The file with clients and their rights: what it says counts, and mistakes in it are refused."""

import asyncio
import hashlib
import itertools
import logging
import os
import re
import shutil

import pytest
from hypothesis import example, given, strategies as st

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.policy import RULES, Credential, Guard, Rights, load_policy
from tubemq_spark.gateway.settings import load_settings
from tubemq_spark.protocol.gateway.service import METHODS

TOKEN = "token"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()


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
        certificate = ["DNS:etl.example.com", "CN=etl"]
        read = ["click*", "orders"]
        write = "results"
        group = "etl*"

        [[clients]]
        name = "ops"
        certificate = "CN=ops"
        operator = true
        """,
    )
    assert made.tokens == {DIGEST: "etl"}
    assert made.client_of(Credential(certificate=("CN=nobody", "CN=etl"))) == "etl"
    assert made.client_of(Credential()) is None
    etl, ops = made.clients["etl"], made.clients["ops"]
    topics = ("clicks", "orders", "orders2", "CLICKS", "results")
    assert [etl.may("read", topic) for topic in topics] == [True, True, False, False, False]
    assert [etl.may("write", topic) for topic in ("results", "clicks")] == [True, False]
    assert etl.may("see", "results")
    assert etl.may("group", "etl_r00")
    assert not etl.may("group", "other")
    assert (etl.operator, ops.operator) == (False, True)
    assert not ops.may("see", "clicks")


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
        (
            '[[clients]]\nname = "a"\ncertificate = "CN=a"\nread = 7',
            "read of client 'a' is not a list of texts",
        ),
        ('[[clients]]\nname = "a"\ncertificate = "CN=a"\noperator = "no"', "neither true nor false"),
        ('[[clients]]\nname = "a"\ncertificate = "CN=a"\n' * 2, "there twice"),
        (
            '[[clients]]\nname = "a"\ncertificate = "CN=x"\n[[clients]]\nname = "b"\ncertificate = "CN=x"',
            "client 'b' has the same certificate as client 'a'",
        ),
        (
            '[[clients]]\nname = "a"\ncertificate = "a.example.com"',
            "'a.example.com' of client 'a' is none of CN=",
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


@given(st.text("a*?", max_size=5), st.text("a?", max_size=4))
@example("order?", "orders")
@example("[ab]x", "ax")
@example("a*a", "a")
@example("*ab*b", "ab")
def test_a_star_stands_for_any_text_and_every_other_character_for_itself(pattern, name):
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert Rights("any", read=(pattern,)).may("read", name) is expected


def test_names_of_a_certificate_are_of_a_kind(tmp_path):
    made = policy(tmp_path, '[[clients]]\nname = "a"\ncertificate = "CN=a.example.com"')
    guard = Guard("g1", str(tmp_path / "policy.toml"), certificates=True)
    assert made.certificates == {"CN=a.example.com": "a"}
    assert guard.caller((), {"x509_common_name": [b"a.example.com"]}).name == "a"
    with pytest.raises(GatewayError, match=r"names DNS:a\.example\.com"):
        guard.caller((), {"peer_dns": [b"a.example.com"]})


def test_a_certificate_that_no_client_can_show_is_refused(tmp_path):
    policy(tmp_path, '[[clients]]\nname = "a"\ncertificate = "CN=a"')
    config = tmp_path / "gateway.toml"
    config.write_text('master_servers = ["m"]\npolicy = "policy.toml"\ntls_cert = "cert.pem"\n')
    with pytest.raises(GatewayError, match=r"TUBEMQ_GATEWAY_POLICY.*'CN=a'.*tls_client_ca"):
        load_settings(config)


class Policed:
    """A guard of a policy with one client, which may read some topics."""

    def __init__(self, tmp_path):
        self.file = tmp_path / "policy.toml"
        self.write("a")
        self.guard = Guard("g1", str(self.file))
        self.caller = self.guard.caller([("authorization", f"Bearer {TOKEN}")], {})

    def write(self, read, name="client", digest=DIGEST):
        self.file.write_text(f'[[clients]]\nname = "{name}"\ntoken_sha256 = "{digest}"\nread = "{read}"\n')

    def look(self):
        return asyncio.run(self.guard.look())

    def may_read(self, topic):
        return self.guard.refused(self.caller, [("read", topic)]) is None


def test_rights_are_those_of_the_file_when_it_was_looked_at_last(tmp_path):
    policed = Policed(tmp_path)
    assert not policed.look()
    policed.write("b")
    assert (policed.may_read("a"), policed.may_read("b")) == (True, False)
    assert policed.look()
    assert (policed.may_read("a"), policed.may_read("b")) == (False, True)
    for changes in ({"name": "another"}, {"digest": "0" * 64}):
        policed.write("b")
        policed.look()
        assert policed.may_read("b")
        policed.write("b", **changes)
        policed.look()
        assert policed.guard.refused(policed.caller).condition == "TUBEMQ_GATEWAY_LOGIN"


def test_a_file_of_equal_size_and_time_is_seen(tmp_path):
    policed = Policed(tmp_path)
    before = policed.file.stat()
    other = tmp_path / "other.toml"
    other.write_text(policed.file.read_text().replace('read = "a"', 'read = "b"'))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.copy2(other, policed.file)
    assert policed.look()
    assert policed.may_read("b")


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_of_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tubemq_spark.gateway")
    policed, failures = Policed(tmp_path), itertools.count()
    policed.guard.on_failure = lambda: next(failures)
    for damage in (lambda: policed.file.write_text("[[clients"), policed.file.unlink):
        damage()
        assert not any(policed.look() for _ in range(3))
        assert policed.may_read("a")
    assert next(failures) == 2
    assert len([one for one in caplog.records if "used as it was before" in one.getMessage()]) == 2
    policed.write("b")
    assert policed.look()
