"""Write the kept files anew: ``python -m integration_tests.seen [NAME ...]``. Read them then."""

import sys
import tempfile
from pathlib import Path

from integration_tests.seen.mistakes import KEPT, MISTAKES, run

for name in sys.argv[1:] or MISTAKES:
    with tempfile.TemporaryDirectory() as folder:
        (KEPT / f"{name}.txt").write_text(run(MISTAKES[name], Path(folder)), encoding="utf-8")
    print(name)
