"""Run the tests of a folder that failed last time once more, one by one: ``failed_again.py FOLDER``.

Those that pass now are printed with the word UNSTABLE before them.

``pytest --last-failed`` does not know what failed in several processes: xdist calls a test of a group
``path::name@group``. Where pytest knows none of the tests that failed, it runs all.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")
_TEST_OF_GROUP: Final = re.compile(r"(.*?::[^\[@]*(?:\[.*\])?)@[^\]]*")


def without_group(node_id: str) -> str:
    """Return the node id of a test without the name of the group in which xdist ran it."""
    of_group = _TEST_OF_GROUP.fullmatch(node_id)
    return of_group[1] if of_group else node_id


def failed_in(folder: str) -> list[str]:
    """Return the tests of a folder that failed last time, and make pytest know them by these node ids."""
    if not FAILED.exists():
        return []
    failed = {without_group(node_id): True for node_id in json.loads(FAILED.read_text(encoding="utf-8"))}
    FAILED.write_text(json.dumps(failed, indent=2), encoding="utf-8")
    return sorted(node_id for node_id in failed if node_id.startswith(f"{folder}/"))


def main(folder: str) -> int:
    """Return pytest's exit code; 0 when no test of the folder failed."""
    failed = failed_in(folder)
    if not failed:
        return 0
    code = subprocess.call([sys.executable, "-m", "pytest", "-p", "no:randomly", *failed])
    if code == 0:
        sys.stdout.writelines(f"UNSTABLE {node_id}\n" for node_id in failed)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
