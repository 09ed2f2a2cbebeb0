"""The versions of Lastwrite, Python, Java and libraries.

No library is imported, and Spark is not started. Java is started only if it has no file
``release``, to print its version.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

import lastwrite
from lastwrite.errors import EnvironmentUnfit, install_command

REQUIRED = ("pyspark", "numpy", "numba", "cramjam", "lz4", "zstandard", "google-crc32c")
OPTIONAL = {  # names of distributions, each with the extra that installs it
    "pyarrow": "frames",
    "pandas": "frames",
    "kio": "kafka",
    "obstore": "objects",
    "pyiceberg": "iceberg",
    "deltalake": "delta",
    "protobuf": "protobuf",
    "rocksdict": "pulsar",
    "pycryptodome": "tiers",
}


def library_versions() -> dict[str, str | None]:
    """The version of each required and optional library. None means that it is not installed."""
    return {name: _version(name) for name in (*REQUIRED, *OPTIONAL)}


def version_lines() -> Iterator[str]:
    """The lines of ``lastwrite --version``: one name and version in each, Lastwrite first."""
    from lastwrite.spark.launcher.java import find_java

    yield f"lastwrite {lastwrite.__version__}"
    yield f"python {platform.python_version()}"
    try:
        java = find_java(by_release=True)
        yield f"java {java.full_version} ({java.path}, from {java.origin})"
    except EnvironmentUnfit as error:
        yield f"java missing: {error.problem}"
    for name, version in library_versions().items():
        extra = OPTIONAL.get(name)
        absent = f"not installed; {install_command(extra)}" if extra else "missing"
        yield f"{name} {version or absent}"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
