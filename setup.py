"""The one thing that setup.cfg cannot say: the optional compiled module."""

import os

from setuptools import Extension, setup

# What it reads comes from a network.
_HARDENED = ["-O2", "-Wall", "-Wextra", "-Wconversion", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"]

setup(
    ext_modules=[
        Extension(
            "tubemq_spark.protocol._speedups",
            ["tubemq_spark/protocol/_speedups.c"],
            extra_compile_args=_HARDENED if os.name == "posix" else [],
            py_limited_api=True,
            # Without a compiler everything works, in Python.
            optional=True,
        )
    ]
)
