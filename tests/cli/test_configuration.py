"""Settings of the connection in the environment and in a file; which of several counts."""

import pytest

from testkit.certificates import Authority
from tubemq_spark.cli import main as cli
from tubemq_spark.cli.connection import cluster_config
from tubemq_spark.errors import OptionError


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return what a command makes of arguments, a file's text and variables."""

    def make(*arguments, file=None, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if file is not None:
            path = tmp_path / "tubemq.toml"
            path.write_text(file)
            arguments = (*arguments, "--config", str(path))
        return cluster_config(cli.build_parser().parse_args(["consume", "clicks", *arguments]))

    return make


def masters(config):
    return [str(endpoint) for endpoint in config.client.masters]


def test_an_argument_counts_before_the_environment_and_that_before_the_file(config):
    file = 'master = "f"\nweb = "f:1"\ngroup = "in_file"\ntimeout = 7\n'
    assert masters(config(file=file)) == ["f:8715"]
    settings = config(file=file, TUBEMQ_MASTER="e:1", TUBEMQ_GROUP="in_environment")
    assert (masters(settings), str(settings.web[0]), settings.client.group) == (
        ["e:1"],
        "f:1",
        "in_environment",
    )
    assert settings.client.lease_wait_ms == 7_000
    settings = config("--master", "a:1", "--group", "in_argument", "--timeout", "3", file=file)
    assert (masters(settings), settings.client.group) == (["a:1"], "in_argument")
    assert settings.client.lease_wait_ms == 3_000


def test_without_any_the_defaults_count(config):
    settings = config("--master", "m")
    assert (settings.client.group, settings.client.lease_wait_ms) == ("tubemq_spark_consume", 60_000)
    assert [str(server) for server in settings.web_servers] == ["m:8080", "m:8780"]


def test_the_file_is_where_the_environment_says_or_in_the_usual_folder(config, monkeypatch, tmp_path):
    usual = tmp_path / "tubemq-spark.toml"
    usual.write_text('master = "usual"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert masters(config()) == ["usual:8715"]
    monkeypatch.delenv("XDG_CONFIG_HOME")
    (tmp_path / ".config").mkdir()
    usual.rename(tmp_path / ".config" / usual.name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert masters(config()) == ["usual:8715"]
    other = tmp_path / "other.toml"
    other.write_text('master = ["a", "b:2"]\n')
    assert masters(config(TUBEMQ_CONFIG=str(other))) == ["a:8715", "b:2"]
    assert masters(config(file='master = "named"', TUBEMQ_CONFIG=str(other))) == ["named:8715"]


def test_tls_and_files_of_it_and_the_password(config, tmp_path):
    (tmp_path / "secret").write_text("of the file\n")
    Authority(tmp_path)
    file = 'master = "m"\ntls = true\ntls-ca = "ca.pem"\nusername = "anna"\npassword-file = "secret"\n'
    settings = config(file=file)
    assert (masters(settings), settings.client.tls.ca_file) == (["m:8716"], str(tmp_path / "ca.pem"))
    assert settings.client.password == "of the file"
    other = tmp_path / "other"
    other.write_text("of the argument")
    assert config(file=file, TUBEMQ_PASSWORD="of the environment").client.password == "of the environment"
    assert config("--password-file", str(other), file=file).client.password == "of the argument"
    with pytest.raises(OptionError, match="'--tls' must be specified, since '--tls-ca' needs it"):
        config("--no-tls", file=file)
    assert config(file='master = "m"', TUBEMQ_TLS="true").client.tls is not None


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ('mastre = "m"', r"it has 'mastre', which is not known \(did you mean 'master'\?\)"),
        ("xyzzy = 1", r"it has 'xyzzy', which is not known \(it may have master, web, "),
        ('password = "x1y2"', r"it has 'password', and secrets may not stand in it \(use password-file\)"),
        ('token = "x1y2"', r"secrets may not stand in it \(use token-file\)"),
        ('tls-key-password = "x1y2"', r"\(use the variable TUBEMQ_TLS_KEY_PASSWORD\)"),
        ("timeout = 0", r"The key 'timeout' in the configuration file .*: '0' is not a number of seconds"),
        ('tls = "yes"', "'yes' is not true or false"),
        ("master = {}", "'master' is neither a text nor a number, true or false"),
        ("master", r"The configuration file .*tubemq\.toml cannot be used: .*"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_path(config, tmp_path, file, complaint):
    with pytest.raises(OptionError, match=complaint) as refused:
        config("--master", "m", file=file)
    assert refused.value.condition == "TUBEMQ_COMMAND_SETTING"
    assert str(tmp_path / "tubemq.toml") in str(refused.value)
    assert "x1y2" not in str(refused.value)


def test_a_file_that_is_named_and_a_variable_must_be_sound(config, tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        config("--config", str(tmp_path / "nowhere.toml"))
    with pytest.raises(OptionError, match="TUBEMQ_TIMEOUT cannot be used: 'soon' is not a number of"):
        config("--master", "m", TUBEMQ_TIMEOUT="soon")
