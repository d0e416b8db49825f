"""Settings: each source outdoes the one before, and what no setting expects is refused with what it is."""

import socket
import urllib.request

import pytest

from testkit.certificates import Authority
from tests.cases import in_one_test
from tests.gateway.running import PlainClient, gateway, refused, tubemq
from tubemq_spark.errors import GatewayError, OptionError
from tubemq_spark.gateway.settings import SETTINGS, GatewaySettings, load_settings
from tubemq_spark.model import Endpoint

MASTERS = {"master_servers": "m1,m2:9"}


def write(tmp_path, text):
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    return path


def test_defaults_then_the_file_then_the_environment_then_flags(tmp_path):
    file = write(
        tmp_path,
        'master_servers = ["m1:1", "m2:2"]\nlease_ms = 20000\nreads = 5\npublishes = 6\nsessions = 7\n',
    )
    environment = {"TUBEMQ_GATEWAY_READS": "50", "TUBEMQ_GATEWAY_PUBLISHES": "60", "HOME": "/root"}

    found = load_settings(file, environment, {"publishes": "600"})

    assert (found.sessions, found.reads, found.publishes) == (7, 50, 600)
    assert found.master_servers == (Endpoint("m1", 1), Endpoint("m2", 2))
    assert (found.lease_ms, found.heartbeat_ms) == (20_000, 10_000)


def test_addresses_to_listen_at_have_usual_ports_that_differ():
    settings = load_settings(flags={**MASTERS, "listen": "host", "metrics": "host"})
    assert (settings.listen.port, settings.metrics.port) == (11911, 9191)


def test_masters_have_the_usual_ports():
    found = load_settings(flags=MASTERS)
    assert found.client_config().masters == (Endpoint("m1", 8715), Endpoint("m2", 9))
    assert found.web_servers() == tuple(Endpoint(f"m{n}", port) for port in (8080, 8780) for n in (1, 2))
    over_tls = load_settings(flags={**MASTERS, "master_tls": "true", "master_web": "w:1"})
    assert over_tls.client_config().masters[0] == Endpoint("m1", 8716)
    assert over_tls.web_servers() == (Endpoint("w", 1),)


def test_a_gateway_without_a_name_gets_one_of_its_own():
    one, other = load_settings(flags=MASTERS), load_settings(flags=MASTERS)
    assert one.name != other.name
    assert load_settings(flags={**MASTERS, "node_name": "g1"}).name == "g1"


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        ({"flags": {"masters": "m"}}, "--masters"),
        ({"environment": {"TUBEMQ_GATEWAY_MASTERS": "m"}}, "TUBEMQ_GATEWAY_MASTERS"),
        ({"file": 'masters = "m"\n'}, "gateway.toml"),
        ({"file": "[limits]\nreads = 1\n"}, "limits"),
    ],
    ids=str,
)
def test_an_unknown_setting_is_refused_with_its_source(tmp_path, sources, named):
    if "file" in sources:
        sources = {"file": write(tmp_path, sources["file"])}
    with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_CONFIG_UNKNOWN") as refused:
        load_settings(**sources)
    assert named in str(refused.value)


@in_one_test(
    ("name", "text"),
    [
        ("master_servers", ""),
        ("master_servers", "m:port"),
        ("listen", "host:99999"),
        ("lease_ms", "soon"),
        ("lease_ms", "²"),
        ("reads", "1000001"),
        ("max_message_bytes", "1"),
        ("master_tls", "yes"),
        ("node_name", " "),
        ("listen", "::1"),
        ("metrics", "[host]:1"),
        ("master_tls_server_name", "two names"),
        ("master_discovery_url", "http://"),
        ("master_discovery_url", "ftp://host/list"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_what_is_expected(name, text):
    with pytest.raises(GatewayError) as refused:
        load_settings(flags={**MASTERS, name: text})
    assert refused.value.parameters["setting"] == name
    assert refused.value.parameters["rule"] == SETTINGS[name].kind.expected
    assert f"--{name.replace('_', '-')}" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("lease_ms", 1, 86_400_000),
        ("reads", 1, 1_000_000),
        ("access_log_every", 0, 1_000_000),
        ("max_message_bytes", 64 << 10, 4 << 20),
        ("session_bytes", 64 << 10, 1 << 40),
    ],
)
def test_numbers_have_bounds(name, least, most):
    parse = SETTINGS[name].kind.parse
    assert [parse(str(number)) for number in (least - 1, least, most, most + 1)] == [None, least, most, None]


@pytest.mark.parametrize("text", ["h:65536", ":1", "h:", "h:-1", "[::1", "::1", "[h]:1"])
def test_an_address_to_listen_at_needs_a_host_and_a_port(text):
    parse = SETTINGS["listen"].kind.parse
    assert parse("h:65535") == Endpoint("h", 65_535)
    assert parse(text) is None


def test_limits_that_touch_each_other_fit():
    limits = {"heartbeat_ms": "29999", "session_bytes": "1073741824", "route_refresh_ms": "300000"}
    load_settings(flags={**MASTERS, **limits})


def test_what_follows_from_settings():
    usual = load_settings(flags=MASTERS)
    assert (usual.questions, usual.max_batch_bytes) == (64, 32 << 20)
    assert usual.most["max_in_flight"] == 100_000
    assert usual.most["max_in_flight_bytes"] == 64 << 20
    assert usual.most["register_attempts"] == 100
    assert usual.most["fetch_timeout_ms"] == 600_000
    small = load_settings(flags={**MASTERS, "reads": "1", "publishes": "1", "session_bytes": "5242880"})
    assert (small.questions, small.max_batch_bytes) == (8, 5 << 20)
    assert load_settings(flags={**MASTERS, "session_bytes": "65536"}).max_batch_bytes == 4 << 20


@in_one_test(
    "flags",
    [
        {"tls_key": "key.pem"},
        {"tls_client_ca": "ca.pem"},
        {"master_tls_ca": "ca.pem"},
        {"heartbeat_ms": "30000"},
        {"total_bytes": "100000"},
        {"route_refresh_ms": "400000"},
        {"master_tls": "true", "master_tls_key": "key.pem"},
        {"master_discovery_url": "http://host/list"},
    ],
)
def test_settings_that_do_not_fit_together_are_refused(flags):
    with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_CONFIG"):
        load_settings(flags={**MASTERS, **flags})


def test_masters_must_be_named():
    with pytest.raises(GatewayError, match="master_servers"):
        load_settings()


@pytest.mark.parametrize("text", ["lease_ms = \n", "lease_ms = 1.5\n", "reads = [1]\n"])
def test_a_file_that_is_malformed_is_refused(tmp_path, text):
    with pytest.raises(GatewayError, match=r"gateway\.toml"):
        load_settings(write(tmp_path, text))
    with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_CONFIG_FILE"):
        load_settings(tmp_path / "nowhere.toml")


def test_files_are_looked_for_beside_the_configuration(tmp_path, monkeypatch):
    pair = Authority(tmp_path).issue("gateway")
    monkeypatch.chdir("/")
    text = f'master_servers = "m"\ntls_cert = "{pair.cert.name}"\ntls_key = "{pair.key.name}"\n'
    assert load_settings(write(tmp_path, text)).server_tls().cert_file == str(pair.cert)
    with pytest.raises(OptionError):
        load_settings(write(tmp_path, text.replace(pair.cert.name, "other.pem")))


def test_secrets_are_not_shown():
    settings = GatewaySettings(
        master_servers=(Endpoint("m", 8716),),
        master_tls=True,
        master_tls_cert="c",
        master_tls_key_password="hush",
    )
    assert "hush" not in repr(settings)
    assert "hush" not in str(settings.shown())
    assert settings.shown()["master_tls_key_password"] == "********"


def test_shown_settings_can_be_loaded_again():
    settings = load_settings(flags={**MASTERS, "metrics": "127.0.0.1:0", "node_name": "g1"})
    assert load_settings(flags=settings.shown()) == settings


@pytest.mark.parametrize("text", ["[::1]:0", "127.0.0.1:0"])
def test_pages_are_served_at_addresses_of_both_versions_of_ip(text):
    with tubemq(demo=(1, 1)) as server:
        endpoint = load_settings(flags={**MASTERS, "metrics": text}).metrics
        with gateway(server, metrics=endpoint) as running:
            address = running.server.metrics_address
            assert address.startswith(text[:-1])
            with urllib.request.urlopen(f"http://{address}/health", timeout=10) as answer:
                assert answer.read() == b"serving\n"


def test_a_file_that_cannot_be_used_is_named_by_its_setting(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("gateway")
    good = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    master = {"master_tls": "true", "master_tls_cert": str(pair.cert)}
    cases = {
        "tls_cert": {"tls_cert": "/nowhere.pem"},
        "tls_key": {**good, "tls_key": str(authority.cert)},
        "tls_client_ca": {**good, "tls_client_ca": "/nowhere.pem"},
        "master_tls_ca": {"master_tls": "true", "master_tls_ca": "/nowhere.pem"},
        "master_tls_cert": {"master_tls": "true", "master_tls_cert": "/nowhere.pem"},
        "master_tls_key": {**master, "master_tls_key": str(authority.cert)},
    }
    for name, flags in cases.items():
        with pytest.raises(OptionError) as refused:
            load_settings(flags={**MASTERS, **flags})
        assert f"The setting {name} of the gateway names /" in str(refused.value)


def test_secrets_of_a_url_are_neither_shown_nor_in_errors():
    discovery = {"master_discovery": "http"}
    url = "https://host:8443/list?cluster=a&token=hush"
    settings = load_settings(flags={**MASTERS, **discovery, "master_discovery_url": url})
    assert settings.master_discovery_url == url
    assert settings.shown()["master_discovery_url"] == "https://host:8443/list?********"
    assert "hush" not in repr(settings)
    for wrong in (url.replace("https", "ftp"), url.replace("//", "//user:hush@"), "http://[x?hush"):
        with pytest.raises(GatewayError) as refused:
            load_settings(flags={**MASTERS, **discovery, "master_discovery_url": wrong})
        assert "hush" not in str(refused.value)
    with pytest.raises(GatewayError) as refused:
        load_settings(flags={**MASTERS, "master_discovery_url": url})
    assert "hush" not in str(refused.value)


def test_an_administration_api_that_is_elsewhere_is_told_with_the_setting_for_it():
    with tubemq(demo=(1, 1)) as server, socket.create_server(("127.0.0.1", 0)) as elsewhere:
        port = elsewhere.getsockname()[1]
        elsewhere.close()
        with (
            gateway(server, master_web=(Endpoint("127.0.0.1", port),)) as running,
            PlainClient(running.address) as client,
        ):
            client.open()
            for name in ("ListTopics", "ListGroups"):
                refusal = refused(client, name)
                assert "its operator sets master_web" in str(refusal.error)
