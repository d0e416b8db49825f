"""Settings: each source outdoes the one before, and what no setting expects is refused with what it is."""

import pytest

from testkit.certificates import Authority
from tubemq_spark.errors import GatewayError, OptionError
from tubemq_spark.gateway.loading import load_settings
from tubemq_spark.gateway.settings import SETTINGS, GatewaySettings
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


def test_masters_have_the_usual_ports():
    found = load_settings(flags=MASTERS)
    assert found.client_config().masters == (Endpoint("m1", 8715), Endpoint("m2", 9))
    assert found.web_servers() == (Endpoint("m1", 8080), Endpoint("m2", 8080))
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


@pytest.mark.parametrize(
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
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_what_is_expected(name, text):
    with pytest.raises(GatewayError) as refused:
        load_settings(flags={**MASTERS, name: text})
    assert refused.value.parameters["setting"] == name
    assert refused.value.parameters["rule"] == SETTINGS[name].kind.expected
    assert f"--{name.replace('_', '-')}" in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        {"tls_key": "key.pem"},
        {"tls_client_ca": "ca.pem"},
        {"master_tls_ca": "ca.pem"},
        {"heartbeat_ms": "30000"},
        {"total_bytes": "100000"},
        {"route_refresh_ms": "400000"},
    ],
    ids=str,
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
