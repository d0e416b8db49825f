"""What the package promises as a whole."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_importing_the_package_loads_neither_spark_nor_arrow():
    """The client works without Spark, so importing it must not cost Spark's or Arrow's import."""
    code = (
        "import sys, tubemq_spark, tubemq_spark.client, tubemq_spark.client.aio, "
        "tubemq_spark.cluster.open, tubemq_spark.options, tubemq_spark.embedded.server; "
        "print(sorted(m for m in ('pyspark', 'pyarrow', 'grpc', 'rich') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def imported_by(path, mentioned):
    """Yield what a file imports, if the word import and one of these names stand in a line of it."""
    text = path.read_text(encoding="utf-8")
    # Parsing all files takes seconds.
    if not any(re.search(rf"\bimport\b.*\b{name}\b|\b{name}\b.*\bimport\b", text) for name in mentioned):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("tests", {"integration_tests"}),
        ("integration_tests", {"tests"}),
        ("testkit", {"tests", "integration_tests"}),
    ],
)
def test_unit_tests_and_integration_tests_share_only_the_testkit(package, others):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        assert others.isdisjoint(name.partition(".")[0] for name in imported_by(path, others)), path


def test_no_module_that_mypy_does_not_read_sets_a_constant_twice():
    """The later value would count for the functions above it too, as when modules are joined."""
    folders = ("tests", "testkit", "simulation", "integration_tests", "benchmarks", "fuzz", "tools")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 400
    for path in files:
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^(_?[A-Z][A-Z0-9_]*)(?:: .*)? = ", text, re.MULTILINE)
        assert len(names) == len(set(names)), f"{path}: {sorted(names)}"


def pictures():
    """Yield each picture of layers in DESIGN.md: of each line what stands left of the explanation."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    for picture in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield [re.split(r" {2,}", line)[0] for line in picture.splitlines()]


def test_the_pictures_of_layers_are_the_contracts():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = {c["containers"][0]: c["layers"] for c in contracts["contracts"] if c["type"] == "layers"}
    drawn = [layers[f"tubemq_spark{part}"] for part in ("", ".client", ".gateway", ".embedded")]
    assert list(pictures()) == drawn


def test_no_folder_of_the_package_has_more_than_25_modules():
    package = ROOT / "tubemq_spark"
    sizes = {
        folder: len([path for path in folder.glob("*.py") if not path.stem.endswith(("_pb2", "__init__"))])
        for folder in (package, *(path for path in package.rglob("*") if path.is_dir()))
    }
    full = {str(folder): size for folder, size in sizes.items() if size > 25}
    assert full == {}, "make a package of the modules that belong together"


def test_the_client_has_at_most_twenty_rooms_on_one_level():
    rooms = [path for path in (ROOT / "tubemq_spark" / "client").iterdir() if not path.name.startswith("__")]
    assert len(rooms) <= 20, sorted(path.name for path in rooms)


def test_a_gateway_has_at_most_twenty_modules_in_one_folder():
    gateway = ROOT / "tubemq_spark" / "gateway"
    modules = [path for path in gateway.rglob("*.py") if path.stem != "__init__"]
    assert len(modules) <= 20, sorted(str(path.relative_to(gateway)) for path in modules)
    assert {path.parent for path in modules} == {gateway}
