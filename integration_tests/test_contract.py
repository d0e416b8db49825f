"""The contracts of clusters and of transports hold on the Java TubeMQ too, directly and through gateways."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec

ROOT = Path(__file__).parents[1]
CONTRACTS = {"tests/cluster/test_contract.py": 36, "tests/client/transport/test_contract.py": 72}
"""With how many tests each has at least."""
SHAPES = {"plain": (2, 1), "shared": (1, 3), "empty": (1, 1)}
TESTS = 80
"""At most; each has topics of its own."""


@pytest.mark.nightly  # each test has clusters and gateways of its own
@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_contract_holds_on_java_brokers(contract):
    require_real_tubemq()
    specs = {
        f"{name}_{number}": TopicSpec(*shape) for number in range(TESTS) for name, shape in SHAPES.items()
    }
    with RealTubeMQ(specs, brokers=2) as java:
        given = {"master": java.master, "web": java.master_web, "tests": TESTS}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", contract],
            cwd=ROOT,
            env=os.environ | {"TUBEMQ_CONTRACT_SERVERS": json.dumps(given)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-5_000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= CONTRACTS[contract]
