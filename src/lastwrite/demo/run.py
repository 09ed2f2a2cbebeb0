"""The demo's steps: write a topic, compact, compare, verify and query it. Each step is timed."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import lastwrite
from lastwrite.demo.demo_topic import DemoTopic, WrittenTopic
from lastwrite.demo.git_topic import GitTopic
from lastwrite.demo.proof import prove, read_table
from lastwrite.demo.question import DemoAnswer, can_query, run_query
from lastwrite.demo.sample_topic import SampleTopic
from lastwrite.errors import InvalidConfig, LogError, VerificationFailed
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.reports.compaction import CompactionReport, Status
from lastwrite.reports.document import Document, FrozenDocument, figure
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import Inline, choose_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Topics of this size or more are verified by Spark. Verifying a smaller topic takes less time than
# starting Spark.
_SPARK_FROM_BYTES = 64 << 20


class Figures(FrozenDocument, frozen=True):
    """The numbers of records, tombstones, keys, bytes and segments of a topic."""

    records: int
    tombstones: int
    keys: int
    bytes: int
    segments: int


class DemoReport(Document, kw_only=True):
    """The result of the demo. It exists only if all comparisons succeeded."""

    repository: str | None  # null for the sample, as are ``head``, ``commits``, ``is_shallow``
    head: str | None
    commits: int | None
    is_shallow: bool | None
    topic: str
    partition: int
    before_path: str | None  # null if nothing was kept
    after_path: str | None
    segment_bytes: int
    before: Figures
    after: Figures
    live_keys: int  # keys that are not deleted; in a git history, the paths in the tree of ``head``
    equals_last_writes: ClassVar[bool] = figure(lambda self: True)
    equals_git_ls_tree: ClassVar[bool] = figure(lambda self: self.repository is not None)
    compaction: CompactionReport
    verification: VerifyReport
    answer: DemoAnswer | None = None  # null without Spark, or without pyarrow and pandas
    stage_seconds: dict[str, float] = {}


# This function is long because it contains all steps of the demo in order.
def run_demo(
    repository: str | None = None,
    keep: str | None = None,
    *,
    now_ms: int | None = None,
    memory: str | int | None = None,
    master: str = "local[*]",
    conf: dict[str, str] | None = None,
    spark: SparkSession | Inline | None = None,
    progress: Progress | None = None,
) -> DemoReport:
    """Write a topic whose last writes are known, compact it, and verify the result.

    Args:
        repository: a folder in a git repository whose history becomes the topic. None means the
            sample in this package.
        keep: a folder for ``before`` and ``after``, which become log roots. None means a temporary
            folder.
        now_ms: the clock of the compaction, milliseconds since 1970. None means now.

    The other arguments are as in ``lastwrite.compact``.

    Raises:
        NotALog: there is no git repository, or its history has no file.
        InvalidConfig: ``keep`` contains an earlier demo.
        VerificationFailed: a proof does not hold.
        EnvironmentUnfit: git, Java or Spark is missing.
    """
    progress = progress or NoProgress()
    seconds: dict[str, float] = {}
    demo: DemoTopic = SampleTopic() if repository is None else GitTopic(repository)
    with _demo_folder(keep) as place:
        before, after = os.path.join(place, "before"), os.path.join(place, "after")
        with _timed(seconds, demo.write_stage):
            topic = demo.write(before, progress)
        progress.stage("start Spark", 0)
        # the compaction's stages are timed separately, and subtracted below from this time
        with _timed(seconds, "start Spark"):
            compaction = lastwrite.compact(
                before,
                to=after,
                topic=demo.name.topic,
                config=demo.settings,
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
        _reject_all_but_cleaned(compaction)
        with _timed(seconds, demo.compare_stage):
            progress.stage(demo.compare_stage, 0)
            table = read_table(os.path.join(after, str(demo.name)))
            prove(table, demo.live_keys())
        with _timed(seconds, "verify"):
            runs_on = choose_spark(spark, topic.bytes, _SPARK_FROM_BYTES)
            verified = lastwrite.verify(
                after,
                before=before,
                topic=demo.name.topic,
                config=demo.settings,
                now_ms=compaction.now_ms,
                memory=memory,
                master=master,
                conf=conf,
                spark=runs_on,
                progress=progress,
            )
        _reject_all_but_verified(verified)
        answer = None
        if not isinstance(spark, Inline) and can_query():
            with _timed(seconds, "ask in SQL"):
                progress.stage("ask in SQL", 0)
                answer = run_query(demo, after, spark, master, conf or {}, progress)
            if answer.files != len(table.live):
                raise VerificationFailed(f"the SQL query counts {answer.files} files")
    history = demo.history if isinstance(demo, GitTopic) else None
    return DemoReport(
        repository=None if history is None else history.repository,
        head=None if history is None else history.head.decode(),
        commits=None if history is None else len(history.commits),
        is_shallow=None if history is None else history.is_shallow,
        topic=demo.name.topic,
        partition=demo.name.partition,
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
def _demo_folder(keep: str | None) -> Iterator[str]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="lastwrite-demo-") as folder:
            yield folder
        return
    for name in ("before", "after"):
        if os.path.lexists(os.path.join(keep, name)):
            raise InvalidConfig(
                f"the folder contains an earlier {name}",
                path=keep,
                remedy="remove it, or name another folder with --keep",
            )
    yield keep


@contextlib.contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - began


def _reject_all_but_cleaned(compaction: CompactionReport) -> None:
    """Raise an error unless the topic was cleaned, or had nothing to clean.

    There is nothing to clean if no path was ever written twice.
    """
    for partition in compaction.partitions:
        if partition.status not in (Status.CLEANED, Status.UNCHANGED):
            reasons = [partition.reason or "", *map(str, partition.problems)]
            raise LogError(
                f"the compaction left the topic {partition.status}: "
                f"{'; '.join(filter(None, reasons))}"
            )


def _reject_all_but_verified(verified: VerifyReport) -> None:
    if verified.exit_status == 0:
        return
    found = [
        *map(str, verified.violations),
        *(str(problem) for p in verified.partitions for problem in p.problems),
    ]
    raise VerificationFailed(
        f"verify found a problem: {found[0] if found else verified.partitions[0].reason}"
    )


def _figures(topic: WrittenTopic) -> Figures:
    return Figures(topic.records, topic.deletes, topic.keys, topic.bytes, topic.segments)
