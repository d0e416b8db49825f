"""Arguments and exit codes."""

import argparse
import errno
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.cases import in_one_test
from tubemq_spark import __version__
from tubemq_spark.cli import main as cli
from tubemq_spark.cli.embedded import describe, parse_topic
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.constants import DEFAULT_ADMIN_TOKEN


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("clicks", "is not NAME:STORES:PARTITIONS"),
        ("clicks:3:1:1", "is not NAME:STORES:PARTITIONS"),
        ("clicks:0:1", "has no partition"),
        ("clicks:1:0", "has no partition"),
        (":1:1", "is not a valid topic name"),
        ("a" * 65 + ":1:1", "is not a valid topic name"),
    ],
)
def test_a_wrong_topic_is_refused(refused, text, complaint):
    with pytest.raises(argparse.ArgumentTypeError, match=complaint):
        parse_topic(text)
    assert complaint in refused("embedded", "--topic", text)


@in_one_test(
    ("arguments", "complaint"),
    [
        *(
            (["demo", f"--rows-per-batch={number}"], "is not a positive whole number")
            for number in ("0", "-1", "x", "1.5", "")
        ),
        *(
            (["demo", f"--master={master}"], "is not an address")
            for master in ("", "host", "host:0", "a:1,", ":8715")
        ),
        ([], "COMMAND"),
        (["consume", "plain", "--from", "yesterday"], "'yesterday' is not a place"),
        (["consume", "plain", "--partition", "1"], "'1' is not BROKER_ID:PARTITION_ID"),
        (["consume", "plain", "--count", "0"], "'0' is not a positive whole number"),
        (["produce", "plain", "--attribute", "k"], "'k' is not NAME=VALUE"),
        (["receipts", "verify", "/x", "--batch-id", "-1"], "is not a whole number"),
        (["receipts", "verify", "/x", "--timeout", "0"], "is not a number of seconds"),
        (["receipts", "verify", "/x", "--timeout", "soon"], "is not a number of seconds"),
        *(
            (["receipts", "verify", uri], f"argument URI: '{uri}' is not an absolute path, or a URI")
            for uri in ("", "ftp://host/x", "s3://")
        ),
        (["topics", "list", "("], "'(' is not a regular expression"),
        (["topics", "create", "x-1"], "'x-1' is not a topic name"),
        (["topics", "create", "x1", "--stores", "0"], "'0' is not a number of stores; use 1 to 1000"),
        (["topics", "create", "x1", "--property", "delPolicy=1"], "of topics; did you mean 'deletePolicy'?"),
        (["topics", "create", "x1", "--property", "deletePolicy"], "'deletePolicy' is not NAME=VALUE"),
        (["topics", "create", "x1", "--brokers", "1;2"], "'1;2' is not a list of broker ids"),
    ],
)
def test_a_wrong_value_is_refused(refused, arguments, complaint):
    assert complaint in refused(*arguments)


def test_missing_input_is_exit_code_2_and_a_sentence(capsys, tmp_path):
    assert cli.main(["demo", "--input", str(tmp_path / "nowhere")]) == 2
    assert "tubemq-spark: [TUBEMQ_DEMO_INPUT]" in capsys.readouterr().err


def test_one_topic_for_lines_and_counts_is_refused(capsys):
    assert cli.main(["demo", "--lines-topic", "same", "--counts-topic", "same"]) == 2
    assert "[TUBEMQ_DEMO_ONE_TOPIC]" in capsys.readouterr().err


SYSTEM = (
    "[TUBEMQ_COMMAND_SYSTEM] The operating system refuses: No space left on device; mend that, and run the "
    "command again."
)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 1, f"tubemq-spark: {SYSTEM}\n"),
    ],
)
def test_each_end_has_its_exit_code(monkeypatch, capfd, error, code, told):
    def ends():
        raise error

    monkeypatch.setattr("tubemq_spark.cli.embedded._allow_many_files", ends)
    assert cli.main(["embedded"]) == code
    assert capfd.readouterr().err == told


FILE = "[TUBEMQ_COMMAND_FILE] {} cannot be used: No such file or directory; mend that, or name another file"
SETTING = "[TUBEMQ_BAD_SETTING] {} ({}); it must be a text file that can be read."
CONFIG = (
    "[TUBEMQ_COMMAND_SETTING] The configuration file /no cannot be used: No such file or directory; correct"
)


@in_one_test(
    ("arguments", "code", "told"),
    [
        (["examples", "copy", "/proc/x"], 1, FILE.format("/proc/x")),
        (["produce", "t1", "/no", "--master", "m"], 1, FILE.format("/no")),
        (
            ["consume", "t1", "--username", "u", "--password-file", "/no", "--master", "m"],
            2,
            SETTING.format("--password-file is /no", "No such file or directory"),
        ),
        (
            ["topics", "create", "t1", "--token-file", "/proc", "--master", "m"],
            2,
            SETTING.format("--token-file is /proc", "Is a directory"),
        ),
        (
            ["groups", "reset", "g1", "--offsets", sys.executable, "--master", "m"],
            2,
            f"[TUBEMQ_BAD_SETTING] --offsets is {sys.executable} ('utf-8' codec can't decode ",
        ),
        (["consume", "t1", "--config", "/no"], 2, CONFIG),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_a_condition(capsys, monkeypatch, arguments, code, told):
    monkeypatch.delenv("TUBEMQ_PASSWORD", raising=False)
    monkeypatch.delenv("TUBEMQ_ADMIN_TOKEN", raising=False)
    assert cli.main(arguments) == code
    err = capsys.readouterr().err
    assert told in err
    assert "[Errno" not in err


@in_one_test(
    "arguments",
    [
        *(["--print-completion", shell] for shell in ("bash", "zsh", "tcsh", "fish", "powershell")),
        *(["--help"], ["consume", "--help"], ["--version"], ["examples", "list"]),
    ],
)
def test_an_output_that_is_not_read_ends_in_silence(monkeypatch, arguments):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # argparse passes over what it cannot write
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "tubemq_spark", *arguments]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_embedded_server_describes_its_addresses_and_topics(tmp_path):
    addresses = types.SimpleNamespace(
        master="h:1", master_web="h:2", brokers={1: "h:4", 2: "i:4"}, broker_webs={1: "h:3", 2: "i:3"}
    )
    text = describe(addresses, {"clicks": (3, 1), "other": (1, 2)}, tmp_path, "own")
    for part in (
        "h:1",
        "http://h:2",
        "tubemq.master.web=h:2, or --web",
        "\n    export TUBEMQ_MASTER=h:1 TUBEMQ_WEB=h:2\n",
        "http://h:3",
        "http://i:3",
        "h:4",
        "i:4",
        "clicks: 3 stores",
        "other: 1 store",
        str(tmp_path),
    ):
        assert part in text
    assert '.option("subscribe", "clicks")' in text
    assert "own" not in text
    addresses.master_web = "h:8780"
    text = describe(addresses, {}, tmp_path, DEFAULT_ADMIN_TOKEN)
    assert "--web" not in text
    assert "\n    export TUBEMQ_MASTER=h:1 TUBEMQ_ADMIN_TOKEN=abc\n" in text


def test_the_commands_load_what_they_need():
    code = (
        "import sys; from tubemq_spark.cli.main import build_parser, main; build_parser(); "
        "print([m for m in ('pyspark', 'pyarrow', 'rich', 'numpy') if m in sys.modules]); "
        "main(['consume', 'x', '--master', '127.0.0.1:1', '--timeout', '0.1']); "
        "print([m for m in ('pyspark', 'pyarrow', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_told(capsys, option):
    with pytest.raises(SystemExit) as caught:
        cli.main([option])
    assert caught.value.code == 0
    twin = "pure Python" if speedups.compiled is None else "compiled"
    assert capsys.readouterr().out == f"tubemq_spark {__version__} ({twin})\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_their_options(capsys, shell):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", shell])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert "tubemq-spark" in script
    assert "--master-port" in script


def test_a_positional_argument_may_come_behind_options(capsys, tmp_path):
    file = str(tmp_path / "nowhere")
    for arguments in (
        ["produce", "clicks", "--master", "127.0.0.1:1", file],
        ["produce", "--master", "127.0.0.1:1", "clicks", "--timeout", "1", file],
    ):
        assert cli.main(arguments) == 1
        assert file in capsys.readouterr().err


def test_a_wrong_argument_is_told_by_its_command(refused):
    told = refused("consume", "clicks", "--master", "m", "--xyzzy")
    assert told == (
        "tubemq-spark consume: unrecognized arguments: --xyzzy; see tubemq-spark consume --help\n"
    )
    told = refused("receipts", "verify", "/x", "--master", "m", "more")
    assert told.startswith("tubemq-spark receipts verify: unrecognized arguments: more;")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topic"], "tubemq-spark: no command is called 'topic'; did you mean 'topics'?"),
        (["xyzzy"], "tubemq-spark: no command is called 'xyzzy'; choose from embedded, gateway, "),
        (["topics", "orders"], "tubemq-spark topics: no action is called 'orders'; choose from list, d"),
        (["receipts", "check"], "tubemq-spark receipts: no action is called 'check'; choose from verify;"),
    ],
)
def test_an_unknown_command_is_told_what_there_is(refused, arguments, told):
    assert refused(*arguments).startswith(told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], ": COMMAND is missing: embedded, gateway, "),
        (["topics"], " topics: ACTION is missing: list, describe, create, alter or delete; see "),
        (["groups"], " groups: ACTION is missing: list, describe or reset; see "),
        (["checkpoint"], " checkpoint: ACTION is missing: show or rewind; see "),
        (["receipts"], " receipts: ACTION is missing: verify; see "),
        (["examples"], " examples: ACTION is missing: list or copy; see "),
        (["consume"], " consume: TOPIC is missing, as in: tubemq-spark consume clicks "),
        (
            ["groups", "reset", "--to", "latest"],
            " groups reset: GROUP is missing, as in: tubemq-spark groups reset ",
        ),
        (["groups", "describe"], " groups describe: GROUP is missing, as in: tubemq-spark groups describe "),
        (["groups", "reset", "g", "t"], "--to --offsets is required, as in: tubemq-spark groups reset "),
        (["lag"], "--checkpoint --group is required, as in: tubemq-spark lag "),
    ],
)
def test_what_is_missing_is_named_with_what_could_be_there(refused, arguments, told):
    assert told in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["consume", "clicks", "--tail", "5"], ": --tail 5; did you mean '--last'?; see "),
        (["consume", "clicks", "--Folow"], ": --Folow; did you mean '--follow'?; see "),
        (["consume", "clicks", "--cuont=5"], ": --cuont=5; did you mean '--count'?; see "),
        (["consume", "clicks", "--bootstrap-server", "h:1"], "; did you mean '--master'?; see "),
        (["consume", "clicks", "--from-beginning"], "; did you mean '--from'?; see "),
        (["topics", "list", "--mastr", "h:1"], "; did you mean '--master'?; see tubemq-spark topics list "),
        (["examples", "list", "--tail"], ": --tail; see "),
        (["consume", "-t", "clicks", "-o", "earliest"], ": -t; TOPIC is given without it; see "),
        (["produce", "--topic", "clicks"], ": --topic; TOPIC is given without it; see "),
        (["examples", "list", "-t"], ": -t; see "),
    ],
)
def test_an_unknown_argument_is_told_the_nearest(refused, arguments, told):
    assert told in refused(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "a\udcfe", "--master", "h:1"],
        ["consume", "clicks", "--master", "\udcfe:1"],
        ["topics", "describe", "a\udcfe", "--master", "h:1"],
        ["produce", "clicks", "--message-type", "\udcfe", "--master", "h:1"],
    ],
)
def test_bytes_that_are_no_text_are_refused(refused, arguments):
    assert "\\udcfe' has bytes that are no text in utf-8; see " in refused(*arguments).replace(":1'", "'")


def test_the_environment_may_name_the_master(capsys, monkeypatch):
    monkeypatch.setenv("TUBEMQ_MASTER", "127.0.0.1:1")
    assert cli.main(["consume", "clicks", "--timeout", "0.1"]) == 1
    assert "tried 127.0.0.1:1 " in capsys.readouterr().err
    monkeypatch.delenv("TUBEMQ_MASTER")
    assert cli.main(["consume", "clicks"]) == 2
    assert "No master is named; give --master HOST:PORT, set TUBEMQ_MASTER " in capsys.readouterr().err


def test_a_command_that_reads_nothing_takes_no_group(refused):
    told = refused("produce", "clicks", "--master", "m", "--group", "g")
    assert "unrecognized arguments: --group g" in told


@pytest.mark.parametrize(
    ("output", "code", "told"),
    [(">&-", 0, ""), ("> /dev/full", 1, "tubemq-spark: [TUBEMQ_COMMAND_SYSTEM]")],
    ids=["closed", "full"],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_takes_nothing_is_told_in_one_line(output, code, told):
    program = "import sys; from tubemq_spark.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -c "{program}" examples list {output}'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr[: len(told)]) == (code, told)
    assert len(done.stderr.splitlines()) == code
