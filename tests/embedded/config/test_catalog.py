"""Topics, their file, and the lock of a data directory."""

import json
import os

import pytest

from tests.cases import in_one_test
from tubemq_spark.embedded.config.catalog import SYSTEM_USER, Catalog, Stamp, TopicSpec, TopicStatus
from tubemq_spark.errors import OptionError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "topics.json"


def test_topics_come_back(path):
    catalog = Catalog(path)
    catalog.add("demo", TopicSpec(stores=2, partitions=3, retention_ms=1000))
    catalog.add("another", TopicSpec(accept_publish=False, status=TopicStatus.SOFT_DELETED))
    again = Catalog(path)
    assert again.all() == catalog.all()
    assert list(again.all()) == ["another", "demo"]
    assert again.get("demo") == TopicSpec(stores=2, partitions=3, retention_ms=1000)
    assert again.get("nosuch") is None


def test_who_made_a_topic_and_who_changed_it(path):
    now = [1000]
    catalog = Catalog(path, lambda: now[0])
    catalog.add("demo", TopicSpec(), "maker", "20200101000000")
    now[0] = 5000
    catalog.add("demo", TopicSpec(stores=2), "changer", "20200202000000")
    catalog.add("other", TopicSpec())
    expected = Stamp(5000, "maker", "20200101000000", "changer", "20200202000000")
    assert Catalog(path).stamp("demo") == catalog.stamp("demo") == expected
    assert catalog.stamp("other").create_user == SYSTEM_USER
    assert catalog.stamp("nosuch").modify_user == SYSTEM_USER
    catalog.remove("demo")
    catalog.add("demo", TopicSpec(), "another")
    assert catalog.stamp("demo").create_user == "another"


def test_a_file_of_an_older_release_has_no_stamps(path):
    path.write_text('{"version": 1, "topics": {"demo": {"stores": 2, "status": 1}}}')
    catalog = Catalog(path)
    assert catalog.all() == {"demo": TopicSpec(stores=2, status=TopicStatus.SOFT_DELETED)}
    assert catalog.stamp("demo").create_user == SYSTEM_USER


def test_the_version_changes_with_every_change_and_only_then(path):
    now = [1000]
    catalog = Catalog(path, lambda: now[0])
    versions = [catalog.version]
    catalog.add("demo", TopicSpec())
    versions.append(catalog.version)
    catalog.add("demo", TopicSpec())
    assert catalog.version == versions[-1]
    now[0] = 5000
    catalog.add("demo", TopicSpec(stores=2))
    versions.append(catalog.version)
    catalog.remove("demo")
    versions.append(catalog.version)
    catalog.remove("demo")
    assert catalog.version == versions[-1]
    assert versions == [1000, 1001, 5000, 5001]
    catalog.touch()
    assert catalog.version == 5002


@pytest.mark.parametrize("name", ["ab", "a_", "A1", "a" * 64])
def test_good_names_are_taken(path, name):
    Catalog(path).add(name, TopicSpec())


@in_one_test("name", ["", "a", "1a", "_a", "a-b", "a.b", "a b", "a" * 65, "té", "../x", "ab\n"])
def test_bad_names(path, name):
    with pytest.raises(OptionError, match=r"^\[TUBEMQ_BAD_TOPIC_NAME\]"):
        Catalog(path).add(name, TopicSpec())
    assert not path.exists()


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("stores", (1, 1000), (0, -1, 1001)),
        ("partitions", (1, 10_000), (0, 10_001)),
        ("retention_ms", (1, 168 * 3_600_000), (0, 168 * 3_600_000 + 1)),
        ("max_message_bytes", (1, 20 << 20), (0, (20 << 20) + 1)),
        ("flush_messages", (0,), (-1,)),
        ("flush_interval_ms", (1,), (0,)),
        ("flush_bytes", (0,), (-1,)),
        ("cache_mib", (2, 2048), (1, 2049)),
        ("cache_k_messages", (1,), (0,)),
        ("cache_flush_ms", (4000,), (3999,)),
    ],
)
def test_numbers_at_their_borders(path, field, good, bad):
    for number, value in enumerate(good):
        Catalog(path).add(f"good{number}", TopicSpec(**{field: value}))
    for value in bad:
        with pytest.raises(OptionError, match=rf"^\[TUBEMQ_BAD_TOPIC_SHAPE\].*{field} is {value}"):
            Catalog(path).add("bad", TopicSpec(**{field: value}))


@pytest.mark.parametrize("spec", [TopicSpec(1, 3), TopicSpec(2, 2)])
def test_topics_do_not_shrink(path, spec):
    catalog = Catalog(path)
    catalog.add("demo", TopicSpec(2, 3))
    with pytest.raises(OptionError, match="it has 2 stores of 3 partitions and can only grow"):
        catalog.add("demo", spec)
    catalog.add("demo", TopicSpec(3, 4))
    assert catalog.get("demo") == TopicSpec(3, 4)


def test_the_file_is_replaced_at_once(path, monkeypatch):
    """A kill during the write leaves the old file."""
    catalog = Catalog(path)
    catalog.add("demo", TopicSpec())
    before = path.read_text()

    def killed(_fd):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            catalog.add("other", TopicSpec())
    assert path.read_text() == before
    assert set(json.loads(before)["topics"]) == {"demo"}
