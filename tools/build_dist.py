"""Build what is released: the sdist, the wheel made from it, and the wheel as a zip for ``--py-files``."""

import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def build(target: Path) -> None:
    """Fill a directory, which is emptied before."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--quiet", "--outdir", target, _ROOT], check=True)
    (wheel,) = target.glob("*.whl")
    # A wheel is a zip whose root is what goes on the path; Spark only wants another name.
    shutil.copy(wheel, target / "tubemq_spark.zip")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "dist")
