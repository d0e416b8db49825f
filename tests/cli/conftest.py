"""Commands of tests read no configuration file of whoever runs them."""

import pytest


@pytest.fixture(autouse=True)
def no_configuration_file(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
    for name in ("TUBEMQ_CONFIG", "TUBEMQ_MASTER", "TUBEMQ_WEB"):
        monkeypatch.delenv(name, raising=False)
