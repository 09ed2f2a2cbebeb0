"""``lastwrite demo``: compacts a sample topic or a git history, and checks the result."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, format_size, in_time

if TYPE_CHECKING:
    from lastwrite.demo.question import DemoAnswer
    from lastwrite.demo.run import DemoReport

_SHORT_ID = 12


EXAMPLES = """
lastwrite demo --keep /tmp/demo
lastwrite demo --repo ~/src/linux
"""


def demo(
    context: typer.Context,
    repo: Annotated[
        str | None,
        options.option(
            "--repo DIR",
            "Compact the history of the git repository that contains DIR, instead of the sample.",
            options.SELECTION,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        options.option(
            "--keep DIR", "Keep the topic in DIR/before and the compacted topic in DIR/after."
        ),
    ] = None,
    now: options.Now = None,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
) -> int:
    """Compact a sample topic, and check the result.

    The sample is a topic of 12,000 records that a Kafka broker wrote. It is part of this package.
    Spark compacts it. The result is compared with the last writes that a Kafka consumer read.

    With --repo the topic is a git history. A path is the key; its mode and blob id are the value.
    A deleted path is a tombstone. The live keys must equal the output of `git ls-tree -r HEAD`.
    """
    output: Output = context.obj
    from lastwrite.spark.session import start_ahead

    spark_settings = options.pairs("--conf", conf)
    if repo is None or os.path.exists(os.path.join(repo, ".git")):
        # Spark starts while the other modules are imported.
        start_ahead(master, spark_settings, output.say, lambda: "kafka", "lastwrite.demo.warm_up")
    from lastwrite.demo.question import REMEDY
    from lastwrite.demo.run import run_demo

    report = run_demo(
        repo,
        keep,
        now_ms=now,
        memory=memory,
        master=master,
        conf=spark_settings,
        progress=output.progress(),
    )
    if output.as_json:
        output.document(report)
        return 0
    before, after = report.before, report.after
    output.text(_opening(report))
    output.table(
        " | >before | >after | >stays",
        [
            (name, shown(was), shown(now_), f"{now_ / was:.1%}" if was else "")
            for name, was, now_, shown in (
                ("records", before.records, after.records, counted),
                ("  of them deletes", before.tombstones, after.tombstones, counted),
                ("keys", before.keys, after.keys, counted),
                ("bytes", before.bytes, after.bytes, format_size),
                ("segments", before.segments, after.segments, counted),
            )
        ],
    )
    output.text([""])
    output.table(
        "stage | >time",
        [
            *(
                (name, in_time(seconds))
                for name, seconds in report.stage_seconds.items()
                if seconds
            ),
            ("together", in_time(sum(report.stage_seconds.values()))),
        ],
    )
    output.text(["", *_proofs(report), ""])
    if report.answer is not None:
        output.text(_question(report.answer))
        columns = (report.answer.folders, report.answer.folder_files, report.answer.last_writes)
        output.table(
            "{} | >{} | last write".format(*report.answer.columns),
            [(name, counted(files), day) for name, files, day in zip(*columns, strict=True)],
        )
    else:
        output.text([f"SQL is skipped because Spark lacks a package: {REMEDY}"])
    output.text(["", *_next_commands(report, repo)])
    return 0


def _opening(report: DemoReport) -> Iterator[str]:
    if report.head is None:
        yield f"Topic {report.topic}, as a Kafka 4.4.0 broker wrote it. Its last segment is empty,"
        yield "because the active segment is not compacted."
        yield ""
        return
    shallow = " (a shallow clone: the oldest commit counts as a whole)" if report.is_shallow else ""
    head = report.head[:_SHORT_ID]
    size = format_size(report.segment_bytes)
    yield f"{report.repository}: {report.commits:,} commits up to {head}{shallow}"
    yield f"as the topic git-history in segments of {size}. The last segment is empty,"
    yield "because the active segment is not compacted."
    yield ""


def _question(answer: DemoAnswer) -> Iterator[str]:
    yield "Query:    the last writes as rows, one per live key. In Spark:"
    formats = 'key_format="utf8", value_format="utf8"'
    yield f'  lastwrite.read(…, spark=spark, view="compacted", {formats})'
    yield '    .createTempView("topic")'
    yield from (f"  {line}" for line in answer.sql.splitlines())
    yield ""


def _proofs(report: DemoReport) -> Iterator[str]:
    if report.equals_git_ls_tree:
        equal = "`git ls-tree -r HEAD`, with mode and id of every path"
    else:
        equal = "those that a Kafka consumer read, with their values"
    yield f"Proved:   the {report.live_keys:,} live keys equal {equal}; no key appears twice."
    yield (
        "Verified: structure, checksums and indexes are intact, and only records that compaction "
        "may drop are gone."
    )
    if report.after.tombstones:
        yield (
            f"Deletes:  {report.after.tombstones:,} stay for delete.retention.ms (a day), so that "
            "slow consumers receive them."
        )
        yield "          A later round drops them, as in Kafka."


def _next_commands(report: DemoReport, repo: str | None) -> Iterator[str]:
    program = _program()
    if report.before_path is None or report.after_path is None:
        where = "" if repo is None else f" --repo {shlex.quote(repo)}"
        yield "The files were deleted. To keep and examine them, run:"
        yield f"  {program} demo{where} --keep demo"
        before, after = os.path.join("demo", "before"), os.path.join("demo", "after")
    else:
        yield "To examine them, run:"
        before, after = shlex.quote(report.before_path), shlex.quote(report.after_path)
    yield f"  {program} inspect {before}"
    yield f"  {program} dump {after} --limit 3"
    yield f"  {program} verify {after} {before}"
    yield f"  {program} plan {before}"


def _program() -> str:
    """The shell command that starts this program: its name if it is in PATH, else its path."""
    called = sys.argv[0]
    if os.path.basename(called) != "lastwrite" or shutil.which("lastwrite"):
        return "lastwrite"
    return shlex.quote(called)
