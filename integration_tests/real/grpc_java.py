"""gRPC for Java, and its code generators, to try the gateway's service by its `.proto` alone.

Fetched as Maven resolves them, once; `grpc_java.json` pins every file by its SHA-256.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from .cache import ChecksumError, cache_dir, cache_lock, check_sha256, scratch_dir
from .maven import ArtifactsUnavailableError, fetch_jars, has_maven, run_maven
from .pins import MAVEN_COPY

GRPC_VERSION: Final = "1.71.0"
PROTOBUF_VERSION: Final = "3.25.5"
"""The one that this gRPC needs."""
PINNED: Final[dict[str, str]] = json.loads(
    Path(__file__).with_name("grpc_java.json").read_text(encoding="utf-8")
)
"""File name to SHA-256."""

_JARS: Final = ("grpc-netty-shaded", "grpc-protobuf", "grpc-stub")
_PROTOC: Final = f"protoc-{PROTOBUF_VERSION}-linux-x86_64.exe"
_PLUGIN: Final = f"protoc-gen-grpc-java-{GRPC_VERSION}-linux-x86_64.exe"


def why_unavailable() -> str | None:
    """Name what this machine lacks to generate and compile a client, or None when nothing is missing."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "the pinned code generators are for Linux on x86-64"
    if shutil.which("javac") is None:
        return "no `javac` on the PATH; a JDK is needed"
    if not _home().is_dir() and not has_maven():
        return "no `mvn` on the PATH; Maven is needed once, to fetch gRPC for Java"
    return None


def grpc_home() -> Path:
    """Return the directory with gRPC's jars and code generators, fetching them where the cache lacks them."""
    reason = why_unavailable()
    if reason is not None:
        raise ArtifactsUnavailableError(reason)
    if not _home().is_dir():
        with cache_lock():
            _fetch()
    return _home()


def compile_client(proto: Path, program: Path, directory: Path) -> str:
    """Generate a service's code and compile a program with it; return the class path to run it with."""
    home = grpc_home()
    generated, classes = directory / "generated", directory / "classes"
    for made in (generated, classes):
        made.mkdir()
    subprocess.run(
        [
            home / _PROTOC,
            f"--plugin=protoc-gen-grpc-java={home / _PLUGIN}",
            f"--proto_path={proto.parent}",
            f"--java_out={generated}",
            f"--grpc-java_out=@generated=omit:{generated}",
            proto.name,
        ],
        check=True,
    )
    class_path = f"{classes}:{home}/*"
    sources = [*generated.rglob("*.java"), program]
    subprocess.run(["javac", "-nowarn", "-cp", class_path, "-d", classes, *sources], check=True)
    return class_path


def _home() -> Path:
    return cache_dir() / f"grpc-java-{GRPC_VERSION}"


def _fetch() -> None:
    if _home().exists():
        return
    with scratch_dir() as scratch:
        jars = fetch_jars(
            *(f"io.grpc:{name}:{GRPC_VERSION}" for name in _JARS),
            scratch=scratch,
            brings="gRPC for Java",
        )
        for coordinate in (
            f"com.google.protobuf:protoc:{PROTOBUF_VERSION}:exe:linux-x86_64",
            f"io.grpc:protoc-gen-grpc-java:{GRPC_VERSION}:exe:linux-x86_64",
        ):
            settings = (f"-Dartifact={coordinate}", f"-DoutputDirectory={jars}")
            run_maven(MAVEN_COPY, *settings, directory=scratch, brings=coordinate)
        _check(jars)
        for name in (_PROTOC, _PLUGIN):
            (jars / name).chmod(0o755)
        jars.rename(_home())


def _check(jars: Path) -> None:
    """Demand exactly the pinned files."""
    seen = {jar.name for jar in jars.iterdir()}
    if seen != set(PINNED):
        raise ChecksumError(f"gRPC for Java came with other files than pinned: {sorted(seen ^ set(PINNED))}")
    for name, sha256 in PINNED.items():
        check_sha256(jars / name, name, sha256)
