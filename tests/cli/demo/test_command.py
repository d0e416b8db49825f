"""Around the demo: its directory, the size of a micro-batch, where logs go; no Spark session."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from tubemq_spark.cli.demo.command import (
    MAX_LINE_BYTES,
    MICRO_BATCHES,
    InputFile,
    _unwinding_on_sigterm,
    _workspace,
    attribute_name,
    extension_of,
    lines_per_batch,
    select_installed_python,
    select_paths,
)
from tubemq_spark.cli.demo.job import _standard_error_to
from tubemq_spark.cli.screen import Screen
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.protocol.payload import attribute_text, parse_attributes


@pytest.fixture
def screen():
    return Screen(Console(file=io.StringIO()))


@given(stores=st.integers(1, 4), per_store=st.integers(400, 200_000))
def test_the_work_is_cut_into_the_wanted_number_of_micro_batches(stores, per_store):
    lines = stores * per_store
    share = lines_per_batch(lines)
    taken = share // stores * stores
    assert -(-lines // taken) == MICRO_BATCHES


def test_the_directory_is_removed_when_all_went_well(screen):
    with _workspace(screen, keep=False) as path:
        (path / "file").touch()
    assert not path.exists()


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (None, True),
        (ProduceError("TUBEMQ_DEMO_FAULTS", faults="x"), True),
        (OptionError("TUBEMQ_DEMO_ONE_TOPIC", topic="x"), False),
        (KeyboardInterrupt(), False),
        (SystemExit(143), False),
    ],
)
def test_the_directory_of_a_run_is_kept_after_success_or_a_failure_of_tubemq(
    screen, error, kept, monkeypatch, tmp_path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expected = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with expected, _workspace(screen, keep=error is None):
        if error is not None:
            raise error
    assert bool(list(tmp_path.iterdir())) is kept


def test_sigterm_unwinds(screen):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, _unwinding_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_processes_started_in_the_block_write_standard_error_to_the_log(tmp_path, capfd):
    log = tmp_path / "log"
    noise = [sys.executable, "-c", "import sys; sys.stderr.write('noise')"]
    with _standard_error_to(log):
        subprocess.run(noise, check=True)
    subprocess.run(noise, check=True)
    assert log.read_text() == "noise"
    assert capfd.readouterr().err == "noise"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub" / "__pycache__").mkdir(parents=True)
    (root / "b.py").write_bytes(b"one\n\ntwo")
    (root / "a.TXT").write_bytes(b"\xff\xfe\r\n")
    (root / "sub" / "LICENSE").write_bytes(b"free\n")
    (root / "sub" / "empty.py").write_bytes(b"")
    (root / "sub" / "__pycache__" / "b.pyc").write_bytes(b"code\n")
    return root


def _names(selection):
    return [file.name for file in selection.files]


def test_a_directory_gives_its_files_by_name_without_empty_ones_and_caches(tree):
    selection = select_paths([str(tree)])
    assert _names(selection) == ["tree/a.TXT", "tree/b.py", "tree/sub/LICENSE"]
    assert [file.extension for file in selection.files] == ["txt", "py", "none"]
    assert [file.line_count for file in selection.files] == [1, 3, 1]
    assert selection.line_count == 5


def test_lines_keep_their_endings_and_their_bytes(tree):
    by_name = {file.name: file for file in select_paths([str(tree)]).files}
    assert list(by_name["tree/b.py"].chunks()) == [[b"one\n", b"\n", b"two"]]
    assert list(by_name["tree/a.TXT"].chunks()) == [[b"\xff\xfe\r\n"]]


@given(content=st.binary(max_size=200), size=st.integers(1, 5))
def test_lines_put_together_are_the_file_and_none_is_empty(tmp_path_factory, content, size):
    path = tmp_path_factory.mktemp("law") / "file"
    path.write_bytes(content)
    chunks = list(InputFile(path, "file", "none", 0).chunks(size))
    lines = [line for chunk in chunks for line in chunk]
    assert b"".join(lines) == content
    assert all(lines)
    assert all(len(chunk) == size for chunk in chunks[:-1])


def test_the_limit_takes_whole_files_in_order(tree):
    assert _names(select_paths([str(tree)], max_lines=3)) == ["tree/a.TXT"]
    assert _names(select_paths([str(tree)], max_lines=4)) == ["tree/a.TXT", "tree/b.py"]


def test_files_of_two_directories_with_equal_names_stay_apart(tmp_path):
    for side in ("left", "right"):
        (tmp_path / side / "src").mkdir(parents=True)
        (tmp_path / side / "src" / "x.py").write_text(side)
    selection = select_paths([str(tmp_path / "left" / "src"), str(tmp_path / "right" / "src")])
    assert _names(selection) == ["left/src/x.py", "right/src/x.py"]


def test_a_file_named_twice_is_published_once(tree):
    selection = select_paths([str(tree / "b.py"), str(tree)])
    assert _names(selection) == ["tree/b.py", "tree/a.TXT", "tree/sub/LICENSE"]


def test_a_single_file_is_called_by_its_name(tree):
    assert _names(select_paths([str(tree / "b.py")])) == ["b.py"]


@pytest.mark.parametrize(("size", "taken"), [(MAX_LINE_BYTES, True), (MAX_LINE_BYTES + 1, False)])
def test_a_file_with_a_line_no_message_takes_is_skipped_and_named(tree, size, taken):
    (tree / "huge.js").write_bytes(b"x" * size)
    selection = select_paths([str(tree)])
    assert ("tree/huge.js" in _names(selection)) is taken
    assert selection.skipped == (() if taken else (f"{tree / 'huge.js'}: {_long(size)}",))


def _long(size):
    return f"a line of {size} bytes is too long for a message"


def test_pipes_and_dangling_links_are_passed_over(tree):
    os.mkfifo(tree / "pipe")
    (tree / "dangling").symlink_to(tree / "nowhere")
    assert _names(select_paths([str(tree)])) == ["tree/a.TXT", "tree/b.py", "tree/sub/LICENSE"]


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OptionError, match="nowhere does not exist"):
        select_paths([str(tmp_path / "nowhere")])


def test_input_without_a_line_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(OptionError, match="contains no lines"):
        select_paths([str(tmp_path)])


@given(name=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1))
def test_any_file_name_is_a_lawful_attribute(name):
    text = attribute_text({"file": attribute_name(name), "line": "1"}, "py")
    assert parse_attributes(text)["file"] == attribute_name(name)


def test_plain_names_stay_readable_and_others_are_percent_encoded():
    assert attribute_name("tree/a_b-c.py") == "tree/a_b-c.py"
    assert attribute_name("a,b=c $msgType$%") == "a%2Cb%3Dc%20%24msgType%24%25"
    assert attribute_name(os.fsdecode(b"\xff")) == "%FF"


@pytest.mark.parametrize(
    ("name", "extension"),
    [
        ("a.py", "py"),
        ("a.tar.GZ", "gz"),
        ("COPYING", "none"),
        (".hidden", "none"),
        ("a.b c", "none"),
        ("a." + "x" * 16, "x" * 16),
        ("a." + "x" * 17, "none"),
    ],
)
def test_the_type_is_the_plain_extension(name, extension):
    assert extension_of(Path(name)) == extension


def test_the_installed_python_gives_the_same_lines_every_time():
    first = select_installed_python(5_000)
    assert first == select_installed_python(5_000)
    assert 0 < first.line_count <= 5_000
    assert len(set(_names(first))) == len(first.files)
    assert {name.split("/")[0] for name in _names(first)} <= {"stdlib", "site-packages"}
