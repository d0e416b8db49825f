"""The documentation of the web calls names all of them, and no others."""

import re
from pathlib import Path

import pytest

from tests.embedded.web import ask

PAGE = Path(__file__).parents[3] / "docs" / "testing" / "admin-api.md"


def table(section):
    """Return the rows of a section's table: method, token, parameters, note."""
    lines = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("| `")]


@pytest.mark.parametrize(
    ("section", "web", "field"), [("Master", "master_web", "data"), ("Broker", "broker_web", "dataSet")]
)
def test_the_page_lists_all_calls(tubemq, section, web, field):
    answer = ask(getattr(tubemq, web), method="admin_get_methods")
    rows = table(section)
    names = [name.strip("`") for name, *_ in rows]
    assert names == sorted(names)
    assert {token for _, token, _, _ in rows} <= {"token", ""}
    assert all(note.endswith(".") for *_, note in rows)
    documented = {name.strip("`"): token == "token" for name, token, _, _ in rows}
    assert documented == {item["method"]: item["needAuth"] for item in answer[field]}
    others = {name for _, _, parameters, _ in rows for name in re.findall(r"^as `(\w+)`", parameters)}
    assert others <= set(documented)
