"""Runs of ``table_to`` that are killed before a random operation, or whose commit gets no response.

The table is then the old one or the new one, and the next run updates it. Each run is a child of
this process, which must not start threads of libraries.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lastwrite
from lastwrite.errors import LogError, RemoteFailed
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from lastwrite.storage.objects.folder import FolderStore
from tests.support.tables.topics import KafkaTopic
from tests.tables.rounds import VECTORS

Rows = dict[bytes, bytes]
ROUNDS = 10  # number of kills for each topic
_BUCKET_BYTES = 300  # small, so that tables outgrow their buckets
_KILLED = -signal.SIGKILL


def play(seed: int, format: str) -> Counter[str]:
    """Disturb ``ROUNDS`` runs on one topic. Returns counts of what happened.

    Raises:
        AssertionError: a table is neither old nor new, or the next run fails.
    """
    draw = random.Random(seed)
    met: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        topic = KafkaTopic(Path(folder, "log"), draw)
        to = Path(folder, "table")
        before: dict[bytes, bytes] | None = None
        operations = 40
        for number in range(ROUNDS):
            topic.step()
            where = f"seed {seed}, {format}, round {number}"
            is_lost = draw.random() < 0.25
            point = draw.randint(1, operations + 2)
            how = draw.choice(["nothing", "no answer"])
            log = Path(folder, "operations")
            log.unlink(missing_ok=True)

            lost = how if is_lost else ""
            status = _child(
                partial(_spoilt, topic, to, format, lost, FaultPoints(point, log=str(log)))
            )
            met["killed" if status == _KILLED else "answers lost" if is_lost else "whole"] += 1
            assert status in (0, 7, _KILLED), f"{where}: the run failed with {status}"
            if status == _KILLED:
                met[f"before {log.read_text().splitlines()[-1].partition(' ')[0]}"] += 1
            elif log.exists():
                operations = max(len(log.read_text().splitlines()), 10)
            models = [model for model in (before, dict(topic.model)) if model is not None]

            assert _child(partial(_is_one_of, format, to, models, before is None)) == 0, (
                f"{where}: neither the old table nor the new one"
            )

            assert _child(partial(_goes_on, topic, to, format)) == 0, (
                f"{where}: the next run does not bring it up to date"
            )
            before = dict(topic.model)
    return met


def warm_up() -> None:
    """Import here what child processes need. This must not leave threads running."""
    import deltalake
    import pyiceberg.catalog.sql

    import tests.support.tables.judges

    assert deltalake and pyiceberg.catalog.sql and tests.support.tables.judges
    with tempfile.TemporaryDirectory() as folder:
        topic = KafkaTopic(Path(folder, "log"), random.Random(1))
        to = Path(folder, "table")
        for _ in range(3):
            topic.append([("key-0", "a"), ("key-1", None)])
            _run(topic, to, "parquet")
        lastwrite.verify_table(str(topic.root), str(to), format="parquet")


def _spoilt(topic: KafkaTopic, to: Path, format: str, lost: str, points: FaultPoints) -> None:
    """A run that is killed at a point, or whose commit's response is lost."""
    if lost:
        with _deaf(format, lost):
            _run(topic, to, format)
    else:
        files.faults = points
        _run(topic, to, format)


def _is_one_of(format: str, to: Path, models: Sequence[Rows], may_be_none: bool) -> None:
    found = _found(format, to)
    assert (may_be_none and found is None) or found in models


def _goes_on(topic: KafkaTopic, to: Path, format: str) -> None:
    _run(topic, to, format)
    assert _found(format, to) == topic.model
    plain = format.removesuffix(VECTORS)
    proof = lastwrite.verify_table(str(topic.root), str(to), topic="t", format=plain)
    assert proof.is_proven and proof.proven == proof.rows, proof


def _run(topic: KafkaTopic, to: Path, format: str) -> None:
    buckets = None if _found_any(to) else 2
    plain = format.removesuffix(VECTORS)
    vectors = plain != format and buckets is not None  # later runs keep using them
    with mock.patch("lastwrite.tables.update._bucket_bytes", lambda _: _BUCKET_BYTES):
        lastwrite.table_to(
            str(topic.root), "t", to=str(to), format=plain, buckets=buckets, vectors=vectors
        )


def _found_any(to: Path) -> bool:
    marks = "_delta_log/*.json", "_lastwrite/current", "metadata/*.json"
    return any(next(to.glob(mark), None) is not None for mark in marks)


def _found(format: str, to: Path) -> dict[bytes, bytes] | None:
    """The table as other readers find it. None if it does not exist."""
    from lastwrite.commands.table_to import format_at
    from tests.support.tables.judges import readings

    if format_at(str(to), format.removesuffix(VECTORS), "t", None).head() is None:
        return None
    (rows, *others) = [rows for _, rows in readings(format, to)]
    assert all(each == rows for each in others)
    return rows


def _deaf(format: str, how: str) -> Any:
    """Let the response to a commit be lost although the commit is made."""
    if format.removesuffix(VECTORS) == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        commit = SqlCatalog.commit_table

        def unanswered(self: SqlCatalog, *given: Any, **named: Any) -> Any:
            commit(self, *given, **named)
            raise ConnectionError("no answer")

        return mock.patch.object(SqlCatalog, "commit_table", unanswered)
    name = "replace" if format == "parquet" else "create"
    real = getattr(FolderStore, name)

    def put(self: FolderStore, *given: Any) -> Any:
        real(self, *given)
        if how == "no answer":
            raise RemoteFailed("no answer")
        return None

    return mock.patch.object(FolderStore, name, put)


def _child(work: Callable[[], None]) -> int:
    """Run ``work`` in a child process.

    Returns 0, 7 if the outcome of the commit is unknown, or the negative signal number.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except RemoteFailed:
            status = 7
        except LogError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
