"""The options of TLS: what is off stays off loudly, and files are looked at when the options are read."""

import pickle

import pytest

from testkit.certificates import Authority
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig, TlsVersion
from tubemq_spark.options import OptionSet

READ = {"tubemq.master.servers": "m1,m2:8000", "subscribe": "demo"}
ON = {"tubemq.tls.enabled": "true"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


def client(**options):
    return OptionSet.parse({**READ, **options}).for_batch_read().cluster.client


def refused(**options):
    with pytest.raises(OptionError) as caught:
        OptionSet.parse({**READ, **options})
    return caught.value.condition, str(caught.value)


def test_tls_is_off_by_default():
    assert client().tls is None
    assert client().masters == (Endpoint("m1", 8715), Endpoint("m2", 8000))


def test_masters_with_tls_have_another_default_port():
    assert client(**ON).tls == TlsConfig()
    assert client(**ON).masters == (Endpoint("m1", 8716), Endpoint("m2", 8000))


def test_every_option_arrives_and_no_password_is_shown(authority):
    pair = authority.issue("client")
    given = {
        "tubemq.tls.ENABLED": "True",
        "tubemq.tls.cafile": str(authority.cert),
        "tubemq.tls.certFile": str(pair.cert),
        "tubemq.tls.keyFile": str(pair.encrypted_key("hush hush")),
        "tubemq.tls.keyPassword": "hush hush",
        "tubemq.tls.serverName": " tube.example ",
        "tubemq.tls.minVersion": "tlsv1.3",
    }
    config = client(**given)
    assert config.tls == TlsConfig(
        str(authority.cert),
        str(pair.cert),
        str(pair.key.with_suffix(".encrypted.pem")),
        "hush hush",
        "tube.example",
        TlsVersion.V1_3,
    )
    options = OptionSet.parse({**READ, **given})
    for thing in (options, options.for_batch_read(), options.for_stream_read()):
        assert "hush" not in repr(thing)
    assert pickle.loads(pickle.dumps(options.for_batch_read())) == options.for_batch_read()
    write = {name: text for name, text in given.items() if name != "subscribe"}
    assert OptionSet.parse({**READ, **write}).for_write().cluster.client.tls == config.tls


def test_tls_options_have_no_effect_with_tls_switched_off():
    assert client(**{"tubemq.tls.enabled": "false", "tubemq.tls.caFile": "/nowhere"}).tls is None


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"tubemq.tls.caFile": "ca.pem"}, "enabled"),
        ({"tubemq.tls.certFile": "me.pem"}, "enabled"),
        ({"tubemq.tls.serverName": "tube"}, "enabled"),
        ({"tubemq.tls.minVersion": "TLSv1.3"}, "enabled"),
        ({**ON, "tubemq.tls.keyFile": "me.pem"}, "certFile"),
        ({**ON, "tubemq.tls.keyPassword": "hush"}, "certFile"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(options, needed):
    condition, said = refused(**options)
    assert condition == "TUBEMQ_OPTION_NEEDED"
    assert f"'tubemq.tls.{needed}' must be specified" in said
    assert "hush" not in said


def test_a_tls_file_that_cannot_be_used_is_named_at_once(tmp_path):
    condition, said = refused(**{**ON, "tubemq.tls.caFile": str(tmp_path / "gone.pem")})
    assert condition == "TUBEMQ_TLS_FILE"
    assert f"tubemq.tls.caFile names {tmp_path / 'gone.pem'}, which cannot be used" in said


def test_an_option_that_would_trust_every_server_is_unknown():
    condition, said = refused(**{**ON, "tubemq.tls.insecure": "true"})
    assert condition == "TUBEMQ_OPTION_UNKNOWN"
    assert "tubemq.tls.insecure" in said
