"""What pages show can be copied: they import only what is public, and choose tests that are there.

Public is what the pages of the Python API and versions.md name.
"""

import ast
import importlib
import re
import textwrap

from testkit.git import ROOT

PUBLIC = re.compile(r"(?:::: |`)(tubemq_spark(?:\.\w+)*)")
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def public():
    """Return the names that are public; of a module, all that it lists."""
    reference = ROOT / "docs" / "reference"
    pages = [*sorted((reference / "api").glob("*.md")), reference / "versions.md"]
    names = {name for page in pages for name in PUBLIC.findall(page.read_text(encoding="utf-8"))}
    for name in sorted(names):
        if name.rpartition(".")[2].islower():
            module = importlib.import_module(name)
            names.update(f"{name}.{attribute}" for attribute in getattr(module, "__all__", vars(module)))
    return names


def imported():
    """Yield each name of the package that the code of a page or an example imports, and where."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [(page, code) for page in pages for code in CODE.findall(page.read_text(encoding="utf-8"))]
    texts += [
        (page, page.read_text(encoding="utf-8"))
        for page in sorted((ROOT / "tubemq_spark" / "examples").glob("*.py"))
    ]
    for page, code in texts:
        for node in ast.walk(ast.parse(textwrap.dedent(code))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tubemq_spark"):
                yield from ((page, f"{node.module}.{name.name}") for name in node.names)


def test_pages_and_examples_import_what_is_public():
    known, names = public(), list(imported())
    assert len(names) > 25
    internal = [f"{page.relative_to(ROOT)}: {name}" for page, name in names if name not in known]
    assert internal == [], (
        "pages and examples import only what the pages of the Python API and versions.md name"
    )


def test_commands_that_choose_a_test_can_be_copied():
    """Those of the contributing page and of ``make help``."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "Makefile")]
    chosen = set(re.findall(r"-k (\w+)", " ".join(texts))) - {"embedded", "real"}
    tests = [
        path.read_text(encoding="utf-8")
        for folder in ("tests", "integration_tests")
        for path in (ROOT / folder).rglob("test_*.py")
    ]
    assert len(chosen) >= 3
    missing = [name for name in chosen if not any(f"def {name}(" in text for text in tests)]
    assert missing == [], "pytest -k selects nothing: name a test that is there"


def test_code_of_the_first_pages_fits_beside_their_menus():
    """No reader has to scroll sideways in the first code, on the site and where the repository is hosted."""
    first = [ROOT / "README.md", ROOT / "docs" / "quick-start.md"]
    lines = [
        (page.name, line)
        for page in first
        for code in CODE.findall(page.read_text("utf-8"))
        for line in code.splitlines()
    ]
    assert len(lines) > 50
    wide = [line for line in lines if len(line[1]) > 88]
    assert wide == [], "code of README and the quick start is at most 88 columns wide"
