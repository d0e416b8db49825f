"""Files of a folder are written whole, once, and by the first writer."""

import concurrent.futures
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import fs

from tubemq_spark.errors import FolderError, OptionError
from tubemq_spark.files import text_files
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.files.text_files import TextFiles


def files(folder, wait=lambda _: None):
    return TextFiles(FolderUri.parse(str(folder)), "lossLedger", ".txt", wait)


def everything(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read_in_the_order_of_names(tmp_path):
    for name, text in (("b", "two"), ("a", "one\n")):
        files(tmp_path).write(name, text)

    assert list(files(f"file://{tmp_path}").read()) == [("a.txt", "one\n"), ("b.txt", "two")]


def test_a_file_that_is_there_stays_as_it_is(tmp_path):
    files(tmp_path).write("a", "first")
    files(tmp_path).write("a", "second")

    assert list(files(tmp_path).read()) == [("a.txt", "first")]
    assert everything(tmp_path) == ["a.txt"]


def test_a_file_is_there_or_not_but_a_folder_must_be(tmp_path):
    """Without it the file might or might not be there."""
    files(tmp_path).write("a", "text")
    assert files(tmp_path).get("a") == "text"
    assert files(tmp_path).get("b") is None
    with pytest.raises(FolderError, match=r"nowhere.*cannot be read"):
        files(tmp_path / "nowhere").get("a")


@pytest.mark.parametrize("links", [True, False])
def test_of_two_writers_at_one_moment_the_first_one_wins(tmp_path, monkeypatch, links):
    """Both have looked, and neither has found a file; where there are no links, the second one wins."""
    first, second = files(tmp_path), files(tmp_path)
    put = second._put
    monkeypatch.setattr(second, "_put", lambda *what: (put(*what), first.write("a", "first")))
    if not links:
        monkeypatch.setattr("pathlib.Path.hardlink_to", lambda *_: os.link(tmp_path, tmp_path / "b"))
    second.write("a", "second")
    assert list(files(tmp_path).read()) == [("a.txt", "first" if links else "second")]
    assert everything(tmp_path) == ["a.txt"]


def test_many_writers_of_one_file_leave_one_file(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: files(tmp_path).write("a", "same" * 1000), range(64)))

    assert list(files(tmp_path).read()) == [("a.txt", "same" * 1000)]
    assert everything(tmp_path) == ["a.txt"]


def test_preparing_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    folder = tmp_path / "new" / "deep"
    files(folder).prepare()
    assert everything(folder) == []


def test_readers_pass_over_what_is_not_finished_and_what_is_not_theirs(tmp_path):
    (tmp_path / "_half.txt").write_text("half")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "folder.txt").mkdir()
    files(tmp_path).write("a", "")

    assert list(files(tmp_path).read()) == [("a.txt", "")]


def test_a_folder_of_other_files_is_refused_and_one_of_none_is_empty(tmp_path):
    (tmp_path / "_half.txt").write_text("half")
    (tmp_path / ".hidden").write_text("")
    assert list(files(tmp_path).read()) == []
    (tmp_path / "offsets").mkdir()
    (tmp_path / "write.json").write_text("{}")
    with pytest.raises(OptionError) as refused:
        list(files(tmp_path).read())
    assert str(refused.value) == (
        f"[TUBEMQ_FOLDER_UNRELATED] The folder {tmp_path} has no file that the option 'lossLedger' writes, "
        "but others, such as offsets; name the folder that the queries were given."
    )


def test_a_file_appears_only_when_it_is_whole(tmp_path, monkeypatch):
    """A writer that is killed before the renaming leaves nothing that a reader sees."""
    seen = []

    def killed(self, source, target):
        seen.append(list(files(tmp_path).read()))
        raise KeyboardInterrupt

    folder = files(tmp_path)
    system = _Recording(killed)
    monkeypatch.setattr(folder, "_opened", (system, str(tmp_path)))
    with pytest.raises(KeyboardInterrupt):
        folder.write("a", "text")

    assert seen == [[]]
    assert list(files(tmp_path).read()) == []


class _Recording:
    """The local file system, with another way to rename."""

    def __init__(self, move):
        self._local = fs.LocalFileSystem()
        self._move = move

    def move(self, source, target):
        self._move(self._local, source, target)

    def __getattr__(self, name):
        return getattr(self._local, name)


def test_what_fails_now_and_then_is_tried_again(tmp_path):
    pauses, troubles = [], [OSError("busy"), OSError("busy")]

    def sometimes(local, source, target):
        if troubles:
            raise troubles.pop()
        local.move(source, target)

    folder = files(tmp_path, pauses.append)
    folder._opened = _Recording(sometimes), str(tmp_path)
    folder.write("a", "text")

    assert pauses == [0.5, 1.0]
    assert list(files(tmp_path).read()) == [("a.txt", "text")]


def test_what_keeps_failing_names_the_folder_the_option_and_the_cause(tmp_path):
    def never(*_):
        raise OSError("input/output error")

    pauses = []
    folder = files(tmp_path, pauses.append)
    folder._opened = _Recording(never), str(tmp_path)
    with pytest.raises(FolderError) as failed:
        folder.write("a", "text")

    assert pauses == [0.5, 1.0], "three attempts"
    assert str(failed.value) == (
        f"[TUBEMQ_FOLDER_UNUSABLE] The folder {tmp_path} of option 'lossLedger' cannot be written to: "
        "input/output error; mend that, or name one that the driver and all executors can reach and write to."
    )
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)
    assert failed.value.__cause__ is None


@pytest.mark.parametrize(
    "cause",
    [
        "[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device",
        "[Errno 122] Disk quota exceeded",
        "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /x is exceeded",
    ],
)
def test_a_full_disk_is_told_as_what_it_is(tmp_path, cause):
    def never(*_):
        raise OSError(cause)

    folder = files(tmp_path, lambda _seconds: None)
    folder._opened = _Recording(never), str(tmp_path)
    with pytest.raises(FolderError) as failed:
        folder.write("a", "text")
    assert str(failed.value) == (
        f"[TUBEMQ_FOLDER_UNUSABLE.FULL] The folder {tmp_path} of option 'lossLedger' cannot be written to, "
        f"because no space is left: {cause}; free some space, or name a folder elsewhere that the driver and "
        "all executors can reach."
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("act", [TextFiles.prepare, lambda one: one.write("a", "text")])
def test_a_full_disk_is_found_out_and_gets_no_parts_of_files(tmp_path, monkeypatch, act):
    monkeypatch.setattr(text_files, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="name")))

    def fill(_seconds=0):
        assert everything(tmp_path) == []
        (tmp_path / "_name").symlink_to("/dev/full")

    fill()
    with pytest.raises(FolderError, match=r"_UNUSABLE\.FULL.*No space left on device; free some space"):
        act(files(tmp_path, fill))
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    "act", [TextFiles.prepare, lambda one: one.write("a", ""), lambda one: list(one.read())]
)
def test_a_folder_that_cannot_be_is_refused_without_waiting(tmp_path, act):
    (tmp_path / "file").write_text("")

    def impatient(seconds):
        raise AssertionError

    with pytest.raises(FolderError, match="lossLedger"):
        act(files(tmp_path / "file" / "folder", impatient))


def test_a_folder_that_is_not_there_is_not_an_empty_one(tmp_path):
    """Neither for readers nor for tasks: on another machine the driver's folder is not there."""
    with pytest.raises(FolderError, match=r"cannot be read: .*missing"):
        list(files(tmp_path / "missing").read())
    with pytest.raises(FolderError, match="cannot be written to"):
        files(tmp_path / "missing").write("a", "")
    assert everything(tmp_path) == []
