"""A PySpark that is too old is refused where the source is made, before it fails in a task."""

import subprocess
import sys

import pyspark
import pytest

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import TubeMQError
from tubemq_spark.spark.edge import too_old


@pytest.mark.parametrize("version", ["3.5.9", "4.0.0", "4.1.4", "4.1.0.dev0"])
def test_an_old_spark_is_refused_with_both_versions(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(TubeMQError) as caught:
        TubeMQDataSource({"subscribe": "demo"})
    assert str(caught.value) == (
        f"[TUBEMQ_SPARK_TOO_OLD] PySpark {version} is installed, but tubemq_spark needs 4.2 or newer; "
        "run: pip install 'pyspark>=4.2' (on a cluster: a newer Spark)."
    )


@pytest.mark.parametrize("version", ["4.2.0", "4.2.0rc1", "4.3.0.dev1", "4.10.0", "5.0.0"])
def test_newer_ones_are_taken(version):
    assert not too_old(version)


def test_a_spark_without_python_data_sources_is_refused_where_ours_is_imported(tmp_path):
    """PySpark 3.5 has no ``pyspark.sql.datasource``."""
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.7"\n')
    (tmp_path / "pyspark" / "sql" / "__init__.py").touch()
    program = "import sys; sys.path.insert(0, sys.argv[1]); import tubemq_spark.datasource"

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(
        "tubemq_spark.errors.TubeMQError: [TUBEMQ_SPARK_TOO_OLD] PySpark 3.5.7 is installed"
    )
