"""An authority, and what clients and servers need of it: what the tests of TLS share."""

import pytest

from testkit.certificates import Authority
from tubemq_spark.net.tls import ServerTls, TlsConfig


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def client_tls(authority):
    return TlsConfig(str(authority.cert))


@pytest.fixture(scope="module")
def pair(authority):
    return authority.issue("server")


@pytest.fixture(scope="module")
def server_tls(pair):
    return ServerTls(str(pair.cert), str(pair.key))
