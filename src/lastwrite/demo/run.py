"""The demo from start to end: read, write, compact, prove, verify, ask; each step timed."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import lastwrite
from lastwrite.demo.git_history import open_history
from lastwrite.demo.proof import prove, read_table
from lastwrite.demo.question import Answer, ask, can_ask
from lastwrite.demo.topic import TOPIC, WrittenTopic, write_topic
from lastwrite.errors import InvalidConfig, LogError, VerificationFailed
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.reports.compaction import CompactionReport, Status
from lastwrite.reports.document import Document, FrozenDocument, figure
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import Inline, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Segments are merged as long as their sizes before a round fit together into segment.bytes: with
# the size that they were rolled by, none would be.
_MERGED_SEGMENTS = 4
_SPARK_FROM_BYTES = 64 << 20  # to verify less than this takes less time than to start Spark again


class Figures(FrozenDocument, frozen=True):
    """What a topic holds."""

    records: int
    tombstones: int
    keys: int
    bytes: int
    segments: int


class DemoReport(Document, kw_only=True):
    """What the demo did and proved; there is one only if every proof held."""

    repository: str
    head: str
    commits: int
    is_shallow: bool
    topic: ClassVar[str] = figure(lambda self: TOPIC.topic)
    partition: ClassVar[int] = figure(lambda self: TOPIC.partition)
    before_path: str | None  # None: nothing was kept
    after_path: str | None
    segment_bytes: int
    before: Figures
    after: Figures
    live_keys: int  # as many as paths in the tree of ``head``, each with its mode and id
    equals_git_ls_tree: ClassVar[bool] = figure(lambda self: True)
    compaction: CompactionReport
    verification: VerifyReport
    answer: Answer | None = None  # None: there is no Spark, or no pyarrow and pandas
    stage_seconds: dict[str, float] = {}


# Long: the demo's steps, told in their order.
def run_demo(
    repository: str = ".",
    keep: str | None = None,
    *,
    now_ms: int | None = None,
    memory: str | int | None = None,
    master: str = "local[*]",
    conf: dict[str, str] | None = None,
    spark: SparkSession | Inline | None = None,
    progress: Progress | None = None,
) -> DemoReport:
    """Make a topic of the history of ``repository``, compact it, and prove the result.

    Args:
        repository: a folder in a git repository.
        keep: a folder in which ``before`` and ``after`` stay, each a log root; None: a temporary
            one.
        now_ms: the clock of the compaction, milliseconds since 1970; None: now.

    The other arguments are those of ``lastwrite.compact``.

    Raises:
        NotALog: no git repository, or one without a single file in its history.
        InvalidConfig: ``keep`` holds an earlier demo.
        VerificationFailed: a proof does not hold.
        EnvironmentUnfit: git, Java or Spark is missing.
    """
    progress = progress or NoProgress()
    seconds: dict[str, float] = {}
    history = open_history(repository)
    with _place(keep) as place:
        before, after = os.path.join(place, "before"), os.path.join(place, "after")
        with _timed(seconds, "git to topic"):
            topic = write_topic(history, before, progress)
        settings: dict[str, object] = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": _MERGED_SEGMENTS * topic.segment_bytes,
        }
        progress.stage("start Spark", 0)
        with _timed(seconds, "start Spark"):  # what remains when the stages are taken off
            compaction = lastwrite.compact(
                before,
                to=after,
                config=settings,
                now_ms=now_ms,
                memory=memory,
                master=master,
                conf=conf,
                spark=spark,
                progress=progress,
            )
        seconds["start Spark"] = max(
            0.0, seconds["start Spark"] - sum(compaction.stage_seconds.values())
        )
        seconds |= compaction.stage_seconds
        _refuse_all_but_cleaned(compaction)
        with _timed(seconds, "prove by git"):
            progress.stage("prove by git", 0)
            table = read_table(os.path.join(after, str(TOPIC)))
            prove(table, history.tree())
        with _timed(seconds, "verify"):
            runs_on = place_of(spark, topic.bytes, _SPARK_FROM_BYTES)
            verified = lastwrite.verify(
                after,
                before=before,
                config=settings,
                now_ms=compaction.now_ms,
                memory=memory,
                master=master,
                conf=conf,
                spark=runs_on,
                progress=progress,
            )
        _refuse_all_but_verified(verified)
        answer = None
        if not isinstance(spark, Inline) and can_ask():
            with _timed(seconds, "ask in SQL"):
                progress.stage("ask in SQL", 0)
                answer = ask(after, spark, master, conf or {}, progress)
            if answer.files != len(table.live):
                raise VerificationFailed(f"SQL counts {answer.files} files")
    return DemoReport(
        repository=history.repository,
        head=history.head.decode(),
        commits=len(history.commits),
        is_shallow=history.is_shallow,
        before_path=before if keep is not None else None,
        after_path=after if keep is not None else None,
        segment_bytes=topic.segment_bytes,
        before=_figures(topic),
        after=Figures(table.records, table.tombstones, table.keys, table.bytes, table.segments),
        live_keys=len(table.live),
        compaction=compaction,
        verification=verified,
        answer=answer,
        stage_seconds=seconds,
    )


@contextlib.contextmanager
def _place(keep: str | None) -> Iterator[str]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="lastwrite-demo-") as folder:
            yield folder
        return
    for name in ("before", "after"):
        if os.path.lexists(os.path.join(keep, name)):
            raise InvalidConfig(
                f"it holds a folder {name} already",
                path=keep,
                remedy="remove it, or name another folder with --keep",
            )
    yield keep


@contextlib.contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - began


def _refuse_all_but_cleaned(compaction: CompactionReport) -> None:
    """A history in which no path was ever written twice leaves nothing to clean: that is well, too."""
    for partition in compaction.partitions:
        if partition.status not in (Status.CLEANED, Status.UNCHANGED):
            reasons = [partition.reason or "", *map(str, partition.problems)]
            raise LogError(
                f"the topic came out {partition.status}: {'; '.join(filter(None, reasons))}"
            )


def _refuse_all_but_verified(verified: VerifyReport) -> None:
    if verified.exit_status == 0:
        return
    found = [
        *map(str, verified.violations),
        *(str(problem) for p in verified.partitions for problem in p.problems),
    ]
    raise VerificationFailed(
        f"verify is not content: {found[0] if found else verified.partitions[0].reason}"
    )


def _figures(topic: WrittenTopic) -> Figures:
    return Figures(topic.records, topic.deletes, topic.keys, topic.bytes, topic.segments)
