import ipaddress
import itertools
import os
import re
import socket
import time

import pytest

from tubemq_spark import __version__
from tubemq_spark.client.master import identity


def test_ids_have_javas_form():
    assert re.match(r"\d+\.\d+\.\d+", __version__)
    unique = rf"[\d.]+-{os.getpid()}-\d+-\d+"

    assert re.fullmatch(rf"{unique}-Python-{re.escape(__version__)}", identity.producer_id())
    assert re.fullmatch(
        rf"my_group_{unique}-Balance-{re.escape(__version__)}", identity.consumer_id("my_group")
    )


def test_no_two_are_alike():
    assert len({identity.consumer_id("g") for _ in range(1000)}) == 1000


def test_brokers_find_host_and_process_behind_the_last_underscore():
    host, process, *_ = identity.consumer_id("my_group").rpartition("_")[2].split("-")

    assert host == identity.local_ipv4()
    assert process == str(os.getpid())


def test_ids_hold_no_separator_of_packed_strings():
    assert not set(identity.consumer_id("group") + identity.producer_id()) & set(":#@,=")


def test_the_own_address_is_an_ipv4_address():
    assert ipaddress.ip_address(identity.local_ipv4()).version == 4


@pytest.fixture
def forgotten():
    """No address is remembered before the test and after it."""
    identity._local_ipv4.cache_clear()
    yield
    identity._local_ipv4.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_a_host_without_network_has_the_loopback_address(monkeypatch):
    class Offline(socket.socket):
        def connect(self, address):
            raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", Offline)

    assert identity.local_ipv4() == "127.0.0.1"


@pytest.mark.usefixtures("forgotten")
def test_the_system_is_asked_for_the_own_address_once_a_minute(monkeypatch):
    opened, now = [], itertools.count(start=0, step=20_000_000_000)

    class Counted(socket.socket):
        def __init__(self, *of):
            opened.append(of)
            super().__init__(*of)

    monkeypatch.setattr(socket, "socket", Counted)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(now))

    for _ in range(3):
        identity.local_ipv4()
    assert len(opened) == 1
    identity.local_ipv4()
    assert len(opened) == 2
