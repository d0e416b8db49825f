"""Settings of TLS: their files are read before anything is connected, and what is wrong with one is said."""

import os
import pickle
import shutil
import ssl

import pytest

from testkit.certificates import Authority
from tubemq_spark.errors import OptionError
from tubemq_spark.net import tls_contexts
from tubemq_spark.net.tls import ServerTls, TlsConfig, TlsVersion


@pytest.fixture(scope="module")
def pair(authority):
    return authority.issue("client")


def client(authority, **changes):
    return TlsConfig(**{"ca_file": str(authority.cert), **changes})


def fault(config):
    with pytest.raises(OptionError) as caught:
        config.validate()
    assert caught.value.condition == "TUBEMQ_TLS_FILE"
    return str(caught.value)


def test_verification_is_on(authority):
    for config in (TlsConfig(), client(authority), client(authority, server_name="tube")):
        context = config.context()
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


@pytest.mark.parametrize("version", list(TlsVersion))
def test_old_versions_are_not_spoken(version):
    assert TlsConfig(min_version=version).context().minimum_version.name.endswith(version.name[1:])


def test_the_systems_authorities_are_the_default(authority):
    assert not client(authority).context().get_ca_certs()[1:]
    assert client(authority).context().get_ca_certs() != TlsConfig().context().get_ca_certs()


def test_a_server_that_names_authorities_wants_certificates_of_them(authority, pair):
    one_way = ServerTls(str(pair.cert), str(pair.key))
    mutual = ServerTls(str(pair.cert), str(pair.key), client_ca_file=str(authority.cert))
    assert one_way.context().verify_mode is ssl.CERT_NONE
    assert mutual.context().verify_mode is ssl.CERT_REQUIRED


def test_a_pair_may_be_in_one_file_and_a_key_encrypted(authority, pair):
    client(authority, cert_file=str(pair.both)).validate()
    key = pair.encrypted_key("hush")
    client(authority, cert_file=str(pair.cert), key_file=str(key), key_password="hush").validate()


def test_a_missing_file_is_named(authority, pair, tmp_path):
    gone = str(tmp_path / "gone.pem")
    said = "which cannot be used: No such file or directory; name a PEM file that exists on every node."
    assert fault(client(authority, ca_file=gone)) == (
        f"[TUBEMQ_TLS_FILE] tubemq.tls.caFile names {gone}, {said}"
    )
    assert f"tubemq.tls.certFile names {gone}, {said}" in fault(client(authority, cert_file=gone))
    config = client(authority, cert_file=str(pair.cert), key_file=gone)
    assert f"tubemq.tls.keyFile names {gone}, {said}" in fault(config)


def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(authority, pair, tmp_path):
    """Among them are Java's stores, files that are cut, and those of the other kind or of another pair."""
    cut = tmp_path / "cut.pem"
    cut.write_bytes(authority.cert.read_bytes()[:200])
    key, cert, other = str(pair.key), str(pair.cert), str(authority.issue("other").key)
    store = str(authority.trust_store())
    for changes, words in (
        ({"ca_file": str(tmp_path)}, f"{tmp_path}, which cannot be used: Is a directory"),
        ({"ca_file": "a\0b"}, "null byte"),
        ({"ca_file": store}, f"{store}, which cannot be used: it is not a PEM file"),
        ({"cert_file": str(pair.key_store())}, "it is not a PEM file"),
        ({"cert_file": str(pair.key_store())}, "certFile"),
        ({"ca_file": str(cut)}, "it holds no certificate that can be read"),
        ({"ca_file": key}, "it holds no certificate that can be read"),
        ({"cert_file": cert}, f"{cert}, which cannot be used: it holds no private key"),
        ({"cert_file": key, "key_file": key}, f"{key}, which cannot be used: it holds no certificate"),
        (
            {"cert_file": cert, "key_file": other},
            f"{other}, which cannot be used: its key does not belong to the certificate in {cert}",
        ),
    ):
        assert words in fault(client(authority, **changes))


@pytest.mark.parametrize("password", [None, "guessed"])
def test_an_encrypted_key_needs_its_password_and_no_prompt_appears(authority, pair, password):
    """OpenSSL by itself would wait for somebody to type it."""
    key = pair.encrypted_key("hush")
    said = fault(client(authority, cert_file=str(pair.cert), key_file=str(key), key_password=password))
    assert (
        f"{key}, which cannot be used: its key is encrypted and tubemq.tls.keyPassword does not open it"
        in said
    )
    assert "guessed" not in said


def test_a_file_of_a_server_is_named_as_such(pair, tmp_path):
    with pytest.raises(OptionError, match=r"\] ServerTls.client_ca_file names .*gone, which cannot be used"):
        ServerTls(str(pair.cert), str(pair.key), client_ca_file=str(tmp_path / "gone")).context()


def test_passwords_are_not_shown(authority, pair):
    config = client(authority, cert_file=str(pair.cert), key_password="hush")
    assert "hush" not in repr(config)
    assert "hush" not in repr(ServerTls(str(pair.cert), key_password="hush"))
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_renewed_file_is_used_from_the_next_connection_on(authority, pair, tmp_path):
    file = tmp_path / "ca.pem"
    shutil.copy(authority.cert, file)
    config = TlsConfig(str(file))
    before = config.context()
    assert config.context() is before
    newer = Authority(tmp_path, "newer")
    shutil.copy(newer.cert, file)
    assert config.context() is not before
    assert config.context().get_ca_certs() == TlsConfig(str(newer.cert)).context().get_ca_certs()


def test_a_renewed_file_of_equal_size_and_time_is_seen(authority, tmp_path):
    file, newer = tmp_path / "ca.pem", tmp_path / "renewed.pem"
    contents = authority.cert.read_bytes(), Authority(tmp_path, "newer").cert.read_bytes()
    for path, content in zip((file, newer), contents, strict=True):
        path.write_bytes(content.ljust(max(map(len, contents)), b"\n"))
    config = TlsConfig(str(file))
    before = config.context()
    status = file.stat()
    os.utime(newer, ns=(status.st_atime_ns, status.st_mtime_ns))
    shutil.copy2(newer, file)
    assert config.context() is not before


def test_files_that_do_not_fit_together_are_not_used(authority, pair, tmp_path, caplog):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(pair.cert, cert)
    shutil.copy(pair.key, key)
    config = client(authority, cert_file=str(cert), key_file=str(key))
    before = config.context()
    newer = authority.issue("newer")
    shutil.copy(newer.cert, cert)
    assert config.context() is before
    assert "not used yet" in caplog.text
    shutil.copy(newer.key, key)
    assert config.context() is not before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_was_forked_at_a_bad_moment_makes_its_contexts(authority):
    with tls_contexts.client_contexts._lock:
        child = os.fork()
        if child == 0:
            client(authority).context()
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
