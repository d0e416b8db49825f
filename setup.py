"""What setup.cfg cannot say: the optional compiled module, and README as the package's description."""

import os
import re
from pathlib import Path

from setuptools import Extension, setup

# What it reads comes from a network.
_HARDENED = ["-O2", "-Wall", "-Wextra", "-Wconversion", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"]

# [text](path), and pictures: the package index has no such file, so a link to it would be dead.
_LINK_INSIDE = re.compile(r"!?\[([^\]]+)\]\((?!\w+:)([^)]+)\)")
_README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")

setup(
    long_description=_LINK_INSIDE.sub(r"\1 (\2)", _README),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "tubemq_spark.protocol._speedups",
            ["tubemq_spark/protocol/_speedups.c"],
            extra_compile_args=_HARDENED if os.name == "posix" else [],
            py_limited_api=True,
            # Without a compiler everything works, in Python.
            optional=True,
        )
    ],
)
