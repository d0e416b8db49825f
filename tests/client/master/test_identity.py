import ipaddress
import os
import re
import socket

from tubemq_spark import __version__
from tubemq_spark.client.master import identity


def test_ids_have_javas_form():
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


def test_a_host_without_network_has_the_loopback_address(monkeypatch):
    class Offline(socket.socket):
        def connect(self, address):
            raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", Offline)

    assert identity.local_ipv4() == "127.0.0.1"
