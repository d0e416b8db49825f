"""The settings of a client as one URL."""

import contextlib
import dataclasses
import pickle
import re
import urllib.parse

import pytest
from hypothesis import given, strategies as st

from testkit.certificates import Authority
from tests.cases import in_one_test
from tubemq_spark.client import urls
from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig
from tubemq_spark.client.consumer_config import BoundStart, ConsumePosition, ConsumerConfig, Node
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.client.urls import UrlSettings, parse_url
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import OptionError, RpcError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import ServerTls, TlsConfig, TlsVersion
from tubemq_spark.settings.fields import settings_of

MASTERS = (Endpoint("m1", 8715), Endpoint("m2", 9000))
SECRET = "sq&uib=a%d+vozz"
QUOTED = urllib.parse.quote(SECRET, safe="")


def url(query="", masters="m1:8715,m2:9000"):
    return f"tubemq://{masters}?{query}"


def test_masters_alone_are_a_client_with_the_usual_settings():
    usual = UrlSettings(ClientConfig(MASTERS, "tubemq_spark"))
    for text in (
        "tubemq://m1:8715,m2:9000",
        "m1:8715,m2:9000",
        " tubemq://m1,m2:9000/ ",
        "tubemq://m1,m2:9000?",
    ):
        assert parse_url(text) == usual


def test_masters_keep_their_order_and_may_share_a_host():
    """The C++ client keeps one of them, and sorts what is left."""
    found = parse_url("tubemq://m2:8715,m1:8715,m2:8725").config.masters
    assert found == (Endpoint("m2", 8715), Endpoint("m1", 8715), Endpoint("m2", 8725))


def test_a_url_says_the_group_the_topics_and_the_message_types():
    found = parse_url(url("group=etl&topics=t1,t2&message_types=a,b&message_types.t2=c"))
    assert found.config.group == "etl"
    assert found.config.message_types == ("a", "b")
    assert found.subscription.message_types == {"t1": {"a", "b"}, "t2": {"c"}}
    assert found.subscription.start is None
    assert found.node is None


def test_a_bound_start():
    found = parse_url(url("topics=t1&session_key=run-7&source_count=3&select_big=false"))
    assert found.subscription.start == BoundStart("run-7", 3, select_big=False)
    assert parse_url(url("topics=t1&session_key=run-7&source_count=3")).subscription.start.select_big is True


def test_a_url_numbers_one_of_several_assigned_consumers():
    assert parse_url(url("topics=t1&source_count=3&node_id=2")).node == Node(3, 2)


# Gateways.


def test_a_url_of_gateways_has_the_settings_of_every_other_and_a_token():
    settings = parse_url("gateway://g1,g2:7000?group=etl&topics=t1&tls=true&gateway_token=" + QUOTED)
    gateways = (Endpoint("g1", 11911), Endpoint("g2", 7000))
    assert (settings.gateways, settings.config.masters) == (gateways, gateways)
    assert (settings.config.group, settings.subscription.topics) == ("etl", ("t1",))
    assert settings.gateway_token == SECRET
    assert SECRET not in repr(settings)


def test_a_token_without_gateways_is_not_known():
    assert refusal(url("gateway_token=x")).condition == "TUBEMQ_URL_KEY"


def test_what_may_belong_to_a_token_is_not_shown():
    error = refusal("gateway://g1?gateway_token=abc&vozz=1")
    assert error.condition == "TUBEMQ_URL_KEY"
    assert "vozz" not in str(error)


@pytest.mark.parametrize(
    ("text", "told"), [("gateway://?group=etl", "no gateway"), ("gateway://me@g1", "among the gateways")]
)
def test_a_malformed_url_of_gateways_is_refused(text, told):
    assert told in str(refusal(text))


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("gateway_token=x", "tubemq.tls.enabled"),
        ("username=me&password=x", "tubemq.tls.enabled"),
        ("tls_min_version=TLSv1.3", "tubemq.tls.minVersion"),
    ],
)
def test_what_makes_no_sense_through_gateways_is_refused(query, told):
    with pytest.raises(OptionError, match=re.escape(told)):
        TubeMQClient.from_url(f"gateway://g1?{query}")


def test_what_connect_is_given_counts_more_than_the_url():
    with TubeMQClient.connect("gateway://g1?group=etl&rpc_timeout_ms=777", group="other") as client:
        assert client._settings.config.group == "other"
        assert client._settings.config.reader_groups[0] == "other_r00"
        assert client._settings.config.rpc_timeout_ms == 777


CLIENT_VALUES = {
    "username": ("me", "me"),
    "password": (QUOTED, SECRET),
    "reader_groups": ("a1,b2", ("a1", "b2")),
    "partitioner": ("sticky", BuiltInPartitioner.STICKY),
    "message_types": ("a, b", ("a", "b")),
    "retry_ambiguous": ("false", False),
    "keep_order": ("true", True),
    "stamp_message_time": ("false", False),
    "message_time_zone": ("Asia/Shanghai", "Asia/Shanghai"),
    "checksums": ("true", True),
}
CONSUMER_VALUES = {
    "consume_position": ("alwaysLatest", ConsumePosition.ALWAYS_LATEST),
    "rollback": ("false", False),
    "confirm_locally": ("true", True),
}
NOT_IN_URLS = {"masters", "tls", "consumer"}
"""What the URL says in its own way."""


@in_one_test("key", [field.name for field in dataclasses.fields(ConsumerConfig)])
def test_every_setting_of_a_consumer_can_be_given(key):
    text, value = CONSUMER_VALUES.get(key, ("7", 7))
    assert parse_url(url(f"{key}={text}")).config.consumer == ConsumerConfig(**{key: value})


@in_one_test(
    "key", [field.name for field in dataclasses.fields(ClientConfig) if field.name not in NOT_IN_URLS]
)
def test_every_setting_of_a_client_can_be_given(key):
    text, value = CLIENT_VALUES.get(key, ("777", 777))
    if key == "group":
        text = value = "etl"
    login = {"username": "password=x", "password": "username=x"}.get(key, "")
    found = parse_url(url(f"{key}={text}&{login}" if login else f"{key}={text}")).config
    assert getattr(found, key) == value


def test_every_setting_of_tls_can_be_given(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("client")
    given_ = {
        "ca_file": str(authority.cert),
        "cert_file": str(pair.cert),
        "key_file": str(pair.encrypted_key(SECRET)),
        "key_password": SECRET,
        "server_name": "cluster",
        "min_version": "TLSv1.3",
    }

    found = parse_url(
        url(encoded({f"tls_{name}": value for name, value in given_.items()}), "m1,m2:9000")
    ).config

    assert found.tls == TlsConfig(**{**given_, "min_version": TlsVersion.V1_3})
    assert given_.keys() == {field.name for field in dataclasses.fields(TlsConfig)}
    assert found.masters == (Endpoint("m1", 8716), Endpoint("m2", 9000))


def encoded(values):
    return urllib.parse.urlencode(values, quote_via=urllib.parse.quote)


def test_a_url_reaches_a_cluster_that_wants_certificates_and_a_login(tmp_path):
    authority = Authority(tmp_path)
    server_pair, pair = authority.issue("server", "tube.example"), authority.issue("client")
    tls = ServerTls(str(server_pair.cert), str(server_pair.key), client_ca_file=str(authority.cert))
    settings = EmbeddedSettings(
        tls=tls, authenticate_producers=True, authenticate_consumers=True, users={"me": SECRET}
    )
    query = {
        "tls_ca_file": authority.cert,
        "tls_cert_file": pair.cert,
        "tls_key_file": pair.encrypted_key(SECRET),
        "tls_key_password": SECRET,
        "tls_server_name": "tube.example",
        "username": "me",
        "password": SECRET,
    }
    with EmbeddedTubeMQ(topics={"letters": (1, 1)}, brokers=2, settings=settings) as server:
        with TubeMQClient.from_url(f"{server.master}?{encoded(query)}") as client:
            with client.producer() as producer:
                producer.send("letters", b"home")
            assert [record.value for record in client.read("letters")] == [b"home"]
        del query["username"], query["password"]
        with TubeMQClient.from_url(f"{server.master}?{encoded(query)}") as client:
            with pytest.raises(RpcError) as caught:
                client.layout("letters")
            assert caught.value.condition == "TUBEMQ_NOT_AUTHENTICATED.NO_CREDENTIALS"


def test_tls_is_on_when_a_parameter_says_so():
    assert parse_url(url("tls=true")).config.tls == TlsConfig()
    assert parse_url(url("tls=false")).config.tls is None
    assert parse_url(url("tls=false&tls_ca_file=absent.pem")).config.tls is None
    with pytest.raises(OptionError, match=r"absent\.pem, which cannot be used"):
        parse_url(url("tls_ca_file=absent.pem"))


def refusal(text):
    with pytest.raises(OptionError) as caught:
        parse_url(text)
    return caught.value


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("topcis", "did you mean 'topics'?"),
        ("consume_postion", "did you mean 'consume_position'?"),
        ("Group", "did you mean 'group'?"),
        ("tls_ca", "did you mean 'tls_ca_file'?"),
        ("zzz", "these are: checksums, "),
    ],
)
def test_a_key_that_is_not_known_is_told_the_nearest(key, told):
    error = refusal(url(f"{key}=1"))
    assert error.condition == "TUBEMQ_URL_KEY"
    assert f"the key '{key}', which is not known; {told}" in str(error)


@in_one_test(("key", "ours"), urls.GO_KEYS.items())
def test_keys_of_the_go_sdk_are_told_ours(key, ours):
    assert f"the key '{key}', which is not known; did you mean '{ours}'?" in str(refusal(url(f"{key}=1")))
    assert ours in urls._KINDS


@pytest.mark.parametrize(
    "query", ["group=a1&group=b2", "topics=a1&tls=true&topics=a1", "gr%6Fup=a1&group=b2"]
)
def test_a_key_is_given_once(query):
    error = refusal(url(query))
    assert error.condition == "TUBEMQ_URL_KEY_REPEATED"


@in_one_test(
    ("text", "told"),
    [
        ("", "names no master"),
        ("tubemq://?group=etl", "names no master"),
        (url("group"), "parameter 1 is not key=value"),
        (url("group=etl&"), "parameter 2 is not key=value"),
        (url("=etl"), "parameter 1 is not key=value"),
        (url("group=50%&topics=a"), "parameter 1 is not percent-encoded"),
        (url("group=%ff"), "parameter 1 is not percent-encoded"),
        ("tubemq://m1:8715&group=etl", "there are settings, or a user, among the masters"),
    ],
)
def test_a_malformed_url_is_refused(text, told):
    error = refusal(text)
    assert error.condition == "TUBEMQ_URL_MALFORMED"
    assert told in str(error)


@pytest.mark.parametrize("masters", ["m1:", "m1:0", "m1:99999", "m1:8715,", ",m1", "m1 m2", "http://m1:8715"])
def test_masters_that_are_no_addresses_are_refused(masters):
    assert refusal(f"tubemq://{masters}?group=etl").condition == "TUBEMQ_BAD_ADDRESS"


@in_one_test(
    ("query", "setting"),
    [
        ("group=", "group"),
        ("group=a:b", "group"),
        ("username=", "username"),
        ("username=me", "username"),
        ("password=x", "username"),
        ("rpc_timeout_ms=10s", "rpc_timeout_ms"),
        ("rpc_timeout_ms=0", "rpc_timeout_ms"),
        ("rollback=yes", "rollback"),
        ("consume_position=-1", "consume_position"),
        ("partitioner=random", "partitioner"),
        ("tls=1", "tls"),
        ("tls_min_version=1.2", "tls_min_version"),
        ("topics=", "topics"),
        ("topics=a1,b:2", "topics"),
        ("topics=t1&message_types.t2=a", "message_types"),
        ("topics=t1&message_types=a%23b", "message_types"),
        ("message_types=" + ",".join(f"t{n}" for n in range(501)), "message_types"),
        ("topics=t1&message_types.t1=" + "x" * 257, "message_types"),
        ("message_types.t1=a", "topics"),
        ("session_key=k1&source_count=2", "topics"),
        ("topics=t1&session_key=k1", "source_count"),
        ("topics=t1&session_key=k1&source_count=0", "source_count"),
        ("topics=t1&session_key=k:1&source_count=2", "session_key"),
        ("topics=t1&session_key=k1&source_count=2&select_big=1", "select_big"),
        ("topics=t1&session_key=k1&source_count=2&node_id=0", "node_id"),
        ("topics=t1&select_big=true", "session_key"),
        ("topics=t1&source_count=2", "source_count"),
        ("topics=t1&node_id=0", "source_count"),
        ("topics=t1&source_count=2&node_id=2", "node_id"),
        ("topics=t1&source_count=0&node_id=0", "source_count"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(query, setting):
    error = refusal(url(query))
    assert error.condition == "TUBEMQ_BAD_SETTING"
    assert error.parameters["name"] == setting


@in_one_test(
    "text",
    [
        f"tubemq://me:{SECRET}@m1:8715",
        f"tubemq://m1:8715&password={SECRET}",
        f"m1:8715/password={QUOTED}",
        url(f"username=me&password={SECRET}"),
        url(f"username=me&password={QUOTED}%"),
        url(f"password={QUOTED}"),
        url(f"username=me&password={QUOTED}&password={QUOTED}"),
        url(f"username=me&password={QUOTED}&rpc_timeout_ms=0"),
        url(f"username=me&password={QUOTED}&topcis=a"),
        url(f"username=me&password={QUOTED}&tls_key_password={QUOTED}&tls_cert_file=absent.pem"),
    ],
)
def test_no_error_shows_a_password(text):
    error = refusal(text)
    shown = f"{error} {error!r} {error.parameters} {error.__cause__} {error.__context__}"
    for part in (SECRET, QUOTED, "sq&", "uib", "a%d", "vozz"):
        assert part not in shown


def test_a_parsed_url_shows_no_password():
    found = parse_url(url(f"username=me&password={QUOTED}&tls_key_password={QUOTED}"))
    assert found.config.password == SECRET
    assert found.config.tls.key_password == SECRET
    assert not re.search(f"{re.escape(SECRET)}|vozz", repr(found))
    assert pickle.loads(pickle.dumps(found.config)) == found.config


@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_password_can_be_written(password):
    found = parse_url(url(f"username=me&password={urllib.parse.quote(password, safe='')}"))
    assert found.config.password == password


consumers = st.builds(
    ConsumerConfig,
    consume_position=st.sampled_from(ConsumePosition),
    rollback=st.booleans(),
    confirm_locally=st.booleans(),
    **{
        name: st.integers(*map(int, re.findall(r"-?\d+", each.kind.expected)))
        for name, each in settings_of(ConsumerConfig).items()
        if "whole number" in each.kind.expected
    },
)


@given(consumers)
def test_any_settings_can_be_written(consumer):
    values = {
        name: str(getattr(value, "value", value)).replace("True", "true").replace("False", "false")
        for name, value in dataclasses.asdict(consumer).items()
    }
    assert parse_url(url(encoded(values))).config.consumer == consumer


@given(st.text(max_size=60))
def test_any_text_is_settings_or_refused_in_a_sentence(text):
    with contextlib.suppress(OptionError):
        assert parse_url(text).config.masters


def test_a_client_is_made_from_a_url():
    with EmbeddedTubeMQ(topics={"letters": (1, 1)}, brokers=3) as server:
        text = (
            f"{server.master}?group=readers&topics=letters&source_count=2&node_id=1&delivery_timeout_ms=9000"
        )
        with TubeMQClient.from_url(f"tubemq://{text.removeprefix('tubemq://')}") as client:
            assert client.subscription.topics == ("letters",)
            assert client.node == Node(2, 1)
            with client.producer() as producer:
                producer.send("letters", b"home")
            assert [record.value for record in client.read(*client.subscription.topics)] == [b"home"]
