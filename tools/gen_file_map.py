"""Write the file map of DESIGN.md: every module of the package with the first sentence of its docstring."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- file map: written by tools/gen_file_map.py -->"
END = "<!-- end of file map -->"


def modules() -> list[Path]:
    """Return the package's modules that people write, ordered as a directory listing shows them."""
    found = [*ROOT.glob("tubemq_spark/**/*.py"), *ROOT.glob("pyspark_tubemq/*.py")]
    return sorted(path for path in found if "/pb/" not in path.as_posix())


def first_sentence(path: Path) -> str:
    """Return the summary line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{path} has no docstring")
    return docstring.splitlines()[0]


def file_map() -> str:
    """Return the map as Markdown."""
    lines = [f"- `{path.relative_to(ROOT).as_posix()}`: {first_sentence(path)}" for path in modules()]
    return "\n".join([BEGIN, *lines, END])


def with_map(text: str) -> str:
    """Return DESIGN.md's text with the map of today."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit("DESIGN.md has lost the marks of its file map")
    return before + file_map() + after


if __name__ == "__main__":
    design = ROOT / "DESIGN.md"
    design.write_text(with_map(design.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{design.name}: {len(modules())} modules\n")
