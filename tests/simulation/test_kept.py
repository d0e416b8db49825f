"""The universes that once showed a fault."""

import subprocess
import sys

import pytest

from testkit.git import ROOT


@pytest.mark.process
@pytest.mark.skipif(sys.version_info < (3, 12), reason="simloom needs Python 3.12")
def test_universes_that_were_kept_pass():
    command = [sys.executable, "-m", "simulation", "kept"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
