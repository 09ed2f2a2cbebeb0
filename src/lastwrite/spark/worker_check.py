"""Check the workers of a cluster before any log is read, and report all problems in one error.

Each executor may be another machine with its own Python, packages and files. The check's function
is sent by value, since a worker may lack ``lastwrite``.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import lastwrite
from lastwrite.archive.partition_store import MANIFEST
from lastwrite.errors import EnvironmentUnfit, LogError
from lastwrite.model.progress import Progress
from lastwrite.model.stores import StoreSettings
from lastwrite.spark.runner import SparkRunner
from lastwrite.spark.spark_errors import INSTALL
from lastwrite.storage.encryption import check_key
from lastwrite.storage.files import to_log_error
from lastwrite.storage.objects import address
from lastwrite.storage.reading import exists

if TYPE_CHECKING:
    from pyspark import SparkContext

    from lastwrite.spark.work import Runner

_LIBRARIES = ("numpy", "numba", "obstore")
_NOT_SEEN = "not seen"
_SEEN_BY_ALL = (
    "give an address that every worker can read: a bucket, or a folder at the same path on every "
    "worker"
)


def check_workers(runner: Runner, folders: Sequence[str], progress: Progress) -> None:
    """Check that each executor has the required packages and can read ``folders``.

    ``folders`` are partition folders on a disk, or addresses of partitions in a bucket. A worker
    can read a partition in a bucket if it can read the partition's manifest. Nothing is checked if
    the workers are on this machine.

    Raises:
        EnvironmentUnfit: a worker has a problem. The error lists all problems.
        LogError: the job failed.
    """
    if not isinstance(runner, SparkRunner) or runner.is_here:
        return
    ask = _question(tuple(folders), pickle.dumps(address.used()))
    # as many tasks as workers: all workers are free, so each executor gets at least one task
    tasks = runner.workers

    def act(context: SparkContext) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = context.parallelize(range(tasks), tasks).map(ask).collect()
        return found

    answers = {each["where"]: each for each in runner.run_job("ask the workers", act, progress)}
    here = {"lastwrite": lastwrite.__version__, **{name: _version(name) for name in _LIBRARIES}}
    needed = any(map(address.is_address, folders))
    found = findings(list(answers.values()), here, runner.spark.master, needs_client=needed)
    if found:
        remedies = dict.fromkeys(remedy for _, remedy in found)
        raise EnvironmentUnfit(
            "; ".join(problem for problem, _ in found),
            remedy="; ".join(["nothing was changed", *remedies]),
        )


def _question(paths: Sequence[str], stores: bytes) -> Callable[[int], dict[str, Any]]:
    # ``ask`` uses only the standard library until it has checked the packages
    def ask(_: int) -> dict[str, Any]:
        import importlib.metadata
        import importlib.util
        import os
        import socket

        found: dict[str, Any] = {"where": (socket.gethostname(), os.getcwd())}
        for name in ("lastwrite", "numpy", "numba", "obstore"):
            spec = importlib.util.find_spec(name)
            found[name] = None if spec is None else "?"
            try:
                if spec is not None and name != "lastwrite":
                    found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                pass
            if name == "lastwrite" and spec is not None:
                found[name] = importlib.import_module(name).__version__
                found["is_zipped"] = not os.path.isfile(spec.origin or "")
        found["seen"] = {}
        if found["lastwrite"] and found["numpy"] and found["numba"] and not found["is_zipped"]:
            try:
                from lastwrite.spark.worker_check import find_problems
            # the worker's version of the package lacks this function; the driver reports the
            # version
            except ImportError:
                return found
            found["seen"] = find_problems(paths, stores)
        return found

    return ask


def find_problems(paths: Sequence[str], stores: bytes) -> dict[str, tuple[str, str | None]]:
    """The problems that a worker has with ``paths`` and with the private key files in the settings.

    Returns (problem, remedy) by path or key file. Paths and files without a problem are left out.
    """
    settings: StoreSettings = pickle.loads(stores)
    address.use(settings)
    found: dict[str, tuple[str, str | None]] = {}
    for path in paths:
        try:
            if not exists(address.join(path, MANIFEST) if address.is_address(path) else path):
                found[path] = _NOT_SEEN, _SEEN_BY_ALL
        except OSError as error:
            said = to_log_error(error, path, "read the state of this path")
            found[path] = said.problem, said.remedy
        except LogError as error:
            found[path] = error.problem, error.remedy
    for _, file in settings.encryption_keys:
        try:
            check_key(file)
        except LogError as error:
            found[file] = error.problem, error.remedy
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def findings(
    answers: Sequence[Mapping[str, Any]],
    here: Mapping[str, str | None],
    master: str,
    *,
    needs_client: bool,
) -> list[tuple[str, str]]:
    """The problems of the workers as (problem, remedy), from one answer per executor.

    ``here`` has the versions of this process.
    """
    found: list[tuple[str, str]] = []

    def who(count: int, one: str, many: str) -> str:
        workers = "worker" if len(answers) == 1 else "workers"
        return f"{count} of {len(answers)} {workers} {one if count == 1 else many}"

    versions = Counter(each["lastwrite"] for each in answers)
    for version, count in sorted(versions.items(), key=str):
        if version is None:
            found.append((f"{who(count, 'has', 'have')} no lastwrite installed", INSTALL))
        elif version != here["lastwrite"]:
            text = (
                f"{who(count, 'has', 'have')} lastwrite {version}, but this machine has "
                f"{here['lastwrite']}"
            )
            found.append((text, INSTALL))
    zipped = sum(1 for each in answers if each.get("is_zipped"))
    if zipped:
        text = (
            f"{who(zipped, 'has', 'have')} lastwrite in a zip file, where kernels cannot be "
            "compiled"
        )
        remedy = (
            "ship an unpacked archive instead of --py-files: --conf "
            "spark.archives=lastwrite.zip#lw --conf spark.executorEnv.PYTHONPATH=lw "
            "(docs/guide/clusters.md)"
        )
        found.append((text, remedy))
    for name in ("numpy", "numba", *(["obstore"] if needs_client else [])):
        missing = sum(1 for each in answers if each["lastwrite"] and each[name] is None)
        if missing:
            found.append((f"{who(missing, 'has', 'have')} no {name}", INSTALL))
    major = (here["numpy"] or "").partition(".")[0]
    others = Counter(
        each["numpy"]
        for each in answers
        if each["numpy"] and each["numpy"].partition(".")[0] != major
    )
    for version, count in sorted(others.items()):
        text = f"{who(count, 'has', 'have')} numpy {version}, but this machine has {here['numpy']}"
        found.append((text, "install the same major version of numpy on all machines"))
    return found + _unseen(answers, master, who)


def _unseen(
    answers: Sequence[Mapping[str, Any]], master: str, who: Callable[[int, str, str], str]
) -> list[tuple[str, str]]:
    found = []
    problems = Counter((path, *said) for each in answers for path, said in each["seen"].items())
    for (path, problem, remedy), count in problems.items():
        if problem != _NOT_SEEN:
            said = f"{who(count, 'reports', 'report')} a problem of {path}: {problem}"
        elif count == len(answers):
            said = f"the workers of {master} cannot access {path}"
        else:
            said = f"{who(count, 'cannot', 'cannot')} access {path}"
        found.append((said, remedy or "make this path readable and writable on the workers"))
    return found
