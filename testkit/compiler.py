"""Whether this machine can build the optional compiled module."""

import shutil
import sysconfig
from pathlib import Path


def can_compile() -> bool:
    """Tell whether there is a C compiler, and what it needs of Python."""
    return shutil.which("cc") is not None and Path(sysconfig.get_paths()["include"], "Python.h").is_file()
