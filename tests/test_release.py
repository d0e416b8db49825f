"""What is released has one version, in all places that show one, and complete metadata."""

import importlib.util
import re
from email.message import Message
from pathlib import Path

import pytest

import tubemq_spark

ROOT = Path(__file__).resolve().parents[1]
CHECK = ROOT / "tools" / "check_release.py"
VERSION = "1.2.3"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_release", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata(check, **changed):
    message = Message()
    for name in check._FIELDS:
        message[name] = VERSION if name == "Version" else "something"
    message.set_payload("# tubemq_spark\n\nConnects.")
    for name, value in changed.items():
        del message[name]
        if value is not None:
            message[name] = value
    return message


def test_complete_metadata_of_the_version_has_no_fault(check):
    assert check.faults_of(metadata(check), VERSION) == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"Summary": None}, "the metadata has no Summary"),
        ({"Version": "1.2.2"}, "the version is 1.2.2, not 1.2.3"),
    ],
)
def test_faults_of_metadata(check, changed, fault):
    assert check.faults_of(metadata(check, **changed), VERSION) == [fault]


def test_a_description_is_needed(check):
    bare = metadata(check)
    bare.set_payload("")

    assert check.faults_of(bare, VERSION) == ["the metadata has no description"]


@pytest.mark.parametrize(
    ("tag", "newest", "faults"),
    [
        (None, "Unreleased", 0),
        (None, "1.2.3 (2026-01-31)", 0),
        (None, "1.2.2 (2026-01-31)", 1),
        ("v1.2.3", "1.2.3 (2026-01-31)", 0),
        ("v1.2.3", "Unreleased", 1),
        ("v1.2.3", "1.2.3", 1),
        ("v1.2.4", "1.2.3 (2026-01-31)", 1),
        ("v1.2.4", "Unreleased", 2),
    ],
)
def test_the_changelog_and_the_tag_fit_the_version(check, tag, newest, faults):
    found = check.faults_of_the_changelog(
        VERSION, tag, f"# Changelog\n\n## {newest}\n\n## 1.0.0 (2025-01-01)\n"
    )

    assert len(found) == faults, found


def test_the_changelog_of_this_commit_fits(check):
    assert check.faults_of_the_changelog(tubemq_spark.__version__, None) == []


@pytest.mark.parametrize(("tag", "text", "faults"), [("v1.2.3", "b", 1), ("v1.2.3", "a", 0), (None, "b", 0)])
def test_later_changes_are_compared_with_the_proto_of_the_release(check, tmp_path, tag, text, faults):
    for folder, content in (("tools/released_proto", "a"), ("tubemq_spark/protocol/gateway/proto", text)):
        place = tmp_path / folder / "tubemq" / "gateway" / "v1"
        place.mkdir(parents=True)
        (place / "gateway.proto").write_text(content)
    assert len(check.faults_of_the_proto(tag, tmp_path)) == faults


def test_actions_of_others_are_named_by_their_digest():
    """A tag may be moved to other code."""
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    uses = re.findall(r"uses: (.*)", workflow)
    assert len(uses) > 10
    assert [action for action in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", action)] == []
