"""Print the branches of each package that the last run with ``--cov`` took; fail below the floor."""

import collections
import json
import sys
import tempfile
from pathlib import Path
from typing import Final

import coverage

ROOT: Final = Path(__file__).resolve().parent.parent


def main() -> int:
    """Return 1 when the share of all branches is less than ``fail_under`` of pyproject.toml, in percent."""
    measured = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    measured.load()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        measured.json_report(outfile=file.name)
        files = json.load(file)["files"]
    covered: collections.Counter[str] = collections.Counter()
    branches: collections.Counter[str] = collections.Counter()
    for path, figures in files.items():
        package = "/".join(Path(path).parts[1:-1][:2]) or "the root"
        for name in (package, "all"):
            covered[name] += figures["summary"]["covered_branches"]
            branches[name] += figures["summary"]["num_branches"]
    for name in sorted(branches, key=lambda name: (name == "all", name)):
        share = 100 * covered[name] / max(branches[name], 1)
        print(f"{name:28} {covered[name]:6,} of {branches[name]:6,} branches {share:6.1f} %")
    floor = float(measured.get_option("report:fail_under"))
    if 100 * covered["all"] >= floor * branches["all"]:
        return 0
    print(f"fewer than {floor} % of all branches are covered")
    return 1


if __name__ == "__main__":
    sys.exit(main())
