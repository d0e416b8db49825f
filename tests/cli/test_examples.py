"""``tubemq-spark examples``: what is listed, and what is copied."""

import json
from importlib import resources

from tubemq_spark.cli import main as cli

FILES = sorted(
    file.name
    for file in resources.files("tubemq_spark.examples").iterdir()
    if file.name.endswith((".py", ".ipynb")) and file.name != "__init__.py"
)


def test_the_list_says_what_each_shows_and_needs(capsys):
    assert cli.main(["examples", "list"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["FILE", "NEEDS", "SHOWS"]
    (tail,) = (line for line in table if line.startswith("tail.py"))
    assert tail.split(maxsplit=1)[1] == (
        "Tail a topic: show each message as it comes, and nothing that was there before."
    )
    (notebook,) = (line for line in table if ".ipynb" in line)
    assert notebook.split(maxsplit=1)[1] == "Spark  Throughput and lag of a stream"

    assert cli.main(["examples", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["examples"]
    assert [row["file"] for row in listed] == FILES
    assert {row["file"] for row in listed if not row["needsSpark"]} == {
        "copy_last.py",
        "hours.py",
        "service.py",
        "tail.py",
        "tail_json.py",
        "visits.py",
        "yesterday.py",
    }
    assert all(row["shows"] for row in listed)


def test_a_copy_is_the_file_and_says_where_it_is(capsys, tmp_path):
    folder = tmp_path / "new" / "folder"
    assert cli.main(["examples", "copy", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / name) for name in FILES]
    for name in FILES:
        assert (folder / name).read_bytes() == resources.files("tubemq_spark.examples").joinpath(
            name
        ).read_bytes()


def test_what_is_there_is_not_replaced(capsys, tmp_path):
    (tmp_path / "tail.py").write_text("mine")
    assert cli.main(["examples", "copy", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"tubemq-spark: [TUBEMQ_COMMAND_FILE_EXISTS] {tmp_path / 'tail.py'} exists, and nothing was copied; "
        "name another folder.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tail.py"]
    assert (tmp_path / "tail.py").read_text() == "mine"
