"""A directory that gateways share: who is there, as long as its number grows."""

import json

import pytest

from tubemq_spark.gateway.session.directory import Directory

LEASE_S = 30.0


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "gateways"


def made(folder, clock, name, cluster="c"):
    found = Directory(folder, LEASE_S, clock)
    found.join(name, f"{name}:11911", cluster)
    found.renew()
    return found


def names(directory, cluster="c"):
    return [peer.name for peer in directory.peers(cluster)]


def test_gateways_find_each_other_with_their_addresses(folder, clock):
    one, two = made(folder, clock, "one"), made(folder, clock, "two")
    one.renew()
    assert names(one) == names(two) == ["one", "two"]
    assert [(peer.name, peer.address, peer.cluster) for peer in one.peers("c")] == [
        ("one", "one:11911", "c"),
        ("two", "two:11911", "c"),
    ]


def test_gateways_of_other_clusters_are_left_out(folder, clock):
    one = made(folder, clock, "one")
    made(folder, clock, "two", "other")
    one.renew()
    assert (names(one), names(one, "other")) == (["one"], ["two"])


def test_two_gateways_of_one_name_are_told_apart(folder, clock):
    one, twin = made(folder, clock, "same"), made(folder, clock, "same")
    one.renew()
    assert names(one) == ["same", "same"]
    assert len({peer.id for peer in one.peers("c")}) == 2
    twin.leave()
    one.renew()
    assert names(one) == ["same"]


def test_a_killed_gateway_is_forgotten_and_its_file_removed(folder, clock):
    one = made(folder, clock, "one")
    made(folder, clock, "killed")
    one.renew()
    clock.now += LEASE_S
    one.renew()
    assert names(one) == ["killed", "one"]
    clock.now += 1
    assert names(one) == ["one"]
    clock.now += LEASE_S
    one.renew()
    assert len(list(folder.iterdir())) == 1


def test_a_gateway_that_comes_back_to_life_is_there_again(folder, clock):
    one, slow = made(folder, clock, "one"), made(folder, clock, "slow")
    one.renew()
    clock.now += 3 * LEASE_S
    one.renew()
    assert names(one) == ["one"]
    slow.renew()
    one.renew()
    assert names(one) == ["one", "slow"]


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"number": "x"}), json.dumps({"number": 1})])
def test_files_that_make_no_sense_are_passed_over(folder, clock, text):
    one = made(folder, clock, "one")
    (folder / "odd.gateway.json").write_text(text)
    one.renew()
    assert names(one) == ["one"]


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path, clock):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        made(tmp_path / "file", clock, "one")
