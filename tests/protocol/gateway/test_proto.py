"""The page about the protocol, and what ``make check-proto`` refuses: what clients of before cannot read."""

import re
import shutil
import subprocess

import pytest

from testkit.git import ROOT

PLACE = "tubemq_spark/protocol/gateway/proto/tubemq/gateway/v1/gateway.proto"
RELEASED = "tools/released_proto/tubemq/gateway/v1/gateway.proto"
BREAKING = "breaking", "--against", "tools/released_proto"


@pytest.fixture(scope="module")
def buf():
    """The program that the Makefile names, as npm has fetched it before: no test asks the registry."""
    line = re.search(
        r"^BUF := npm exec --yes (--package=\S+) ", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    found = run(["npm", "exec", "--offline", "--yes", line[1], "--call", "command -v buf"], ROOT)
    if found.returncode:
        pytest.skip("npm has not fetched buf: make check-proto does")
    return found.stdout.strip()


def run(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def changed(tmp_path):
    """A function that changes a copy of the .proto, which counts as released as it is, and returns where."""
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    for place in (PLACE, RELEASED):
        (tmp_path / place).parent.mkdir(parents=True)
        shutil.copy(ROOT / PLACE, tmp_path / place)

    def change(*changes):
        text = (ROOT / PLACE).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / PLACE).write_text(text)
        return tmp_path

    return change


def test_what_breaks_clients_of_the_last_release_is_refused(buf, changed):
    folder = changed(
        ("bytes secret = 3;", "bytes secret = 33;"),
        ("string language = 5;", "bytes language = 5;"),
        ("string version = 6;", "string release = 6;"),
        ("  rpc Heartbeat(HeartbeatRequest) returns (HeartbeatResponse);\n", ""),
        ("OUTCOME_UNKNOWN = 2;", "OUTCOME_UNKNOWN = 3;"),
    )
    told = run([buf, *BREAKING], folder).stdout
    for what in ('field "3"', '"string" to "bytes"', 'to "release"', '"Heartbeat"', 'value "2"'):
        assert what in told, told


def test_a_name_against_the_rules_is_refused(buf, changed):
    done = run([buf, "lint"], changed(("service GatewayService {", "service Gateway {")))
    assert done.returncode
    assert '"Gateway"' in done.stdout


def test_a_new_field_breaks_no_client(buf, changed):
    folder = changed(
        ("message CloseSessionRequest {}", "message CloseSessionRequest {\n  bool later = 1;\n}")
    )
    for command in (["lint"], BREAKING):
        done = run([buf, *command], folder)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_about_the_protocol_has_examples_of_a_program_that_a_test_runs():
    page = (ROOT / "docs" / "gateway" / "protocol.md").read_text(encoding="utf-8")
    program = ROOT / "integration_tests" / "programs" / "GatewayClient.java"
    code = "".join(program.read_text(encoding="utf-8").split())
    examples = re.findall(r"```java\n(.*?)```", page, re.DOTALL)
    assert examples
    assert all("".join(example.split()) in code for example in examples)
