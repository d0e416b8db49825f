"""A power failure at any moment loses at most what was not flushed, and leaves only valid files."""

import contextlib
import itertools
import os

import pytest

from tests.embedded.log.power_loss import Disk, gone, there, zeros
from tests.embedded.store_model import ENTRY_BYTES, SMALL_FILES, kill, read_all, record
from tubemq_spark.embedded.files import replace_text
from tubemq_spark.embedded.log.reading import ReadLimits, read_batch
from tubemq_spark.embedded.log.store import Store, StoreSettings

FATES = [
    pytest.param(
        {".tube": data, ".index": index, "": there}, id=f"data {data.__name__}, index {index.__name__}"
    )
    for data, index in itertools.product((gone, zeros, there), repeat=2)
]


BATCHES = 14


def payload(number):
    return b"%d" % number * (1 + number * 3)


def work(store):
    """Fill some files of both logs, flush sometimes, lose and expire something."""
    for number in range(BATCHES):
        store.append([record(payload(number)), record(payload(number + 1))])
        if number % 4 == 3:
            store.flush()
        if number == 9:
            store.expire(0)


@pytest.mark.parametrize("fates", FATES)
def test_at_any_moment(tmp_path, monkeypatch, fates):
    sent = [payload(number + more) for number in range(BATCHES) for more in (0, 1)]
    directory = tmp_path / "disk" / "demo-0"
    directory.parent.mkdir()
    promised, moments, store = 0, {}, None

    def look():
        nonlocal promised
        if store is not None:
            promised = store._flushed.index
        # Many steps do not change what would be left; the last of them has acknowledged most.
        moments[tuple(sorted(disk.left(fates)))] = promised

    with monkeypatch.context() as patch:
        disk = Disk(directory.parent, patch, look)
        store = Store(directory, SMALL_FILES)
        work(store)
    kill(store)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    for number, (left, least) in enumerate(moments.items()):
        restored = tmp_path / str(number)
        for path, content in left:
            (restored / path).parent.mkdir(parents=True, exist_ok=True)
            (restored / path).write_bytes(content)
        with contextlib.closing(Store(restored / "demo-0", SMALL_FILES)) as found:
            bounds = found.bounds
            assert bounds.latest >= least, f"flushed messages are gone after step {number}"
            kept = slice(bounds.earliest // ENTRY_BYTES, bounds.latest // ENTRY_BYTES)
            assert read_all(found)[0] == sent[kept], f"after step {number}"
    assert promised >= 24 * ENTRY_BYTES


def test_a_file_that_is_replaced_has_its_new_content_and_name_on_the_disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path, monkeypatch, lambda: None)

    replace_text(tmp_path / "topics.json", "new")

    left = {str(path): content for path, content in disk.left({".json": gone, ".new": gone})}
    assert left["topics.json"] == b"new"


def test_an_index_entry_never_points_to_what_is_not_there(tmp_path, monkeypatch):
    """A read during an append or a cut finds a record for every index entry."""
    store = Store(tmp_path / "demo-0", StoreSettings())
    seen = []

    def read_all_entries():
        everything = ReadLimits(store._index.end, max_bytes=1 << 20, max_entries=1000)
        batch = read_batch(store._index, store._data, 0, store._index.start, everything)
        entries = 0 if batch is None else batch.next_offset // ENTRY_BYTES
        assert entries == (0 if batch is None else len(batch.records))
        seen.append(entries)

    with monkeypatch.context() as patch, contextlib.closing(store):
        Disk(tmp_path, patch, read_all_entries)
        for number in range(5):
            store.append([record(payload(number)), record(payload(number))])
        store.lose_from(3 * ENTRY_BYTES)
    assert {0, 2, 8, 3} <= set(seen)
