"""Memory that is freed and used again costs no new pages."""

import platform
import subprocess
import sys

import pytest

_COUNT_FAULTS = """
import resource
from tubemq_spark.net.memory import keep_freed_memory

def use():
    return [b"x" * (8 << 20) for _ in range(3)]

keep_freed_memory(16 << 20)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_large_pieces_that_were_freed_are_used_again():
    """Three of 8 MiB are freed together: by itself glibc would give them back, and take 6000 new pages."""
    counted = subprocess.run(
        [sys.executable, "-c", _COUNT_FAULTS], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(counted.stdout) < 1000
