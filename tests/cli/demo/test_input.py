"""Files become lines and names, in a fixed order."""

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.cli.demo.input import (
    MAX_LINE_BYTES,
    InputFile,
    attribute_name,
    extension_of,
    select_installed_python,
    select_paths,
)
from tubemq_spark.errors import OptionError
from tubemq_spark.protocol.payload import attribute_text, parse_attributes


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
