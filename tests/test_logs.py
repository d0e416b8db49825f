"""What stderr shows of a warning, with and without a configuration of the user's."""

import re
import subprocess
import sys

import pytest

_WARN = "logging.getLogger('tubemq_spark.net.loop').warning('a broker is away')"
_LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING tubemq_spark\.net\.loop: a broker is away\n"
)


def _stderr_of(*statements):
    code = "\n".join(("import logging, sys", *statements))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_a_warning_has_time_level_and_logger_without_configured_logging():
    assert _LINE.fullmatch(_stderr_of("import tubemq_spark", _WARN))


def test_what_is_below_a_warning_is_not_shown():
    assert _stderr_of("import tubemq_spark", _WARN.replace("warning", "info")) == ""


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("DEBUG", True), ("ERROR", False), ("", False)])
def test_the_environment_says_from_which_level_on(level, shown):
    environment = f"import os; os.environ['TUBEMQ_SPARK_LOG_LEVEL'] = {level!r}"
    found = _stderr_of(environment, "import tubemq_spark", _WARN.replace("warning", "info"))
    assert bool(_LINE.fullmatch(found.replace(" INFO ", " WARNING "))) == shown
    assert bool(found) == shown


def test_a_level_that_is_none_is_told():
    found = _stderr_of("import os; os.environ['TUBEMQ_SPARK_LOG_LEVEL'] = 'loud'", "import tubemq_spark")
    assert "TUBEMQ_SPARK_LOG_LEVEL is LOUD, which is no level: logging begins at WARNING" in found


@pytest.mark.parametrize("configured", ["before", "after"])
def test_a_users_configuration_has_the_last_word(configured):
    own = "logging.basicConfig(format='%(levelname)s|%(message)s')"
    first, second = (own, "import tubemq_spark") if configured == "before" else ("import tubemq_spark", own)
    assert _stderr_of(first, second, _WARN) == "WARNING|a broker is away\n"


def test_a_handler_of_a_part_of_the_package_replaces_ours_for_that_part():
    own = "logging.getLogger('tubemq_spark.net').addHandler(logging.NullHandler())"
    assert _stderr_of("import tubemq_spark", own, _WARN) == ""
    assert _LINE.fullmatch(_stderr_of("import tubemq_spark", own.replace(".net", ".sink"), _WARN))


def test_a_client_logs_to_the_file_and_from_the_level_that_its_user_chooses(tmp_path):
    """As the log level and log path of TubeMQ's C++ client."""
    changed = "FlowControl().update_default(3, '[]')"
    shown = _stderr_of(
        f"logging.basicConfig(filename={str(tmp_path / 'client.log')!r})",
        "from tubemq_spark.client.consumer.flow_control import FlowControl",
        changed,
        "logging.getLogger('tubemq_spark').setLevel(logging.INFO)",
        changed,
    )
    assert shown == ""
    assert (tmp_path / "client.log").read_text() == (
        "INFO:tubemq_spark.client.consumer.flow_control:"
        "flow control rules of the cluster changed (id 3): []\n"
    )
