"""Around the demo: its directory, the size of a micro-batch, where logs go; no Spark session."""

import contextlib
import io
import signal
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from tubemq_spark.cli.demo.command import MICRO_BATCHES, _unwinding_on_sigterm, _workspace, lines_per_batch
from tubemq_spark.cli.demo.job import _standard_error_to
from tubemq_spark.cli.screen import Screen
from tubemq_spark.errors import OptionError, ProduceError


@pytest.fixture
def screen():
    return Screen(Console(file=io.StringIO()))


@given(stores=st.integers(1, 4), per_store=st.integers(400, 200_000))
def test_the_work_is_cut_into_the_wanted_number_of_micro_batches(stores, per_store):
    lines = stores * per_store
    share = lines_per_batch(lines)
    taken = share // stores * stores
    assert -(-lines // taken) == MICRO_BATCHES


def test_the_directory_is_removed_when_all_went_well(screen):
    with _workspace(screen, keep=False) as path:
        (path / "file").touch()
    assert not path.exists()


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (None, True),
        (ProduceError("TUBEMQ_DEMO_FAULTS", faults="x"), True),
        (OptionError("TUBEMQ_DEMO_ONE_TOPIC", topic="x"), False),
        (KeyboardInterrupt(), False),
        (SystemExit(143), False),
    ],
)
def test_the_directory_of_a_run_is_kept_after_success_or_a_failure_of_tubemq(
    screen, error, kept, monkeypatch, tmp_path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expected = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with expected, _workspace(screen, keep=error is None):
        if error is not None:
            raise error
    assert bool(list(tmp_path.iterdir())) is kept


def test_sigterm_unwinds(screen):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, _unwinding_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_processes_started_in_the_block_write_standard_error_to_the_log(tmp_path, capfd):
    log = tmp_path / "log"
    noise = [sys.executable, "-c", "import sys; sys.stderr.write('noise')"]
    with _standard_error_to(log):
        subprocess.run(noise, check=True)
    subprocess.run(noise, check=True)
    assert log.read_text() == "noise"
    assert capfd.readouterr().err == "noise"
