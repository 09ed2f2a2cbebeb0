"""Tests of turning Spark's errors into one sentence with a remedy.

Memory is blamed only if the system reports a kill.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lastwrite.errors import CommitConflict, EnvironmentUnfit, LogError
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import FailedUnit, SegmentOutput
from lastwrite.spark.executors import requested_executors
from lastwrite.spark.launcher.jvm import JvmDeath
from lastwrite.spark.persistent_job import PersistentJob
from lastwrite.spark.runner import SparkRunner, explain_worker_errors
from lastwrite.spark.spark_errors import last_trace_line, spark_error, start_failure
from lastwrite.storage.files import to_log_error

TRACE = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 4327, in invoke_udf
    run_process()
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/work.py", line 9, in work
    import this
    ^^^^^^^^^^^
{raised}
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
Caused by: java.io.EOFException
"""  # noqa: E501
STAGE = "An error\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed {} "
CRASHED = STAGE + (
    "times, most recent failure: Lost task 1.0 in stage 0.0 (TID 1) (localhost executor driver): org.apache.spark."
    "SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.execution'\n\tat org.x"
)
LOST = STAGE + (
    "times, most recent failure: Lost task 1.0 in stage 0.0 (TID 1) (host executor 7): ExecutorLostFailure (executor 7 "
    "exited caused by one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:\n\tat org.x"
)


def test_last_line_of_the_last_trace_is_found() -> None:
    assert last_trace_line(TRACE.format(raised="ValueError: bad\nthing")) == "ValueError: bad"
    assert last_trace_line("no trace") is None
    assert last_trace_line("Traceback (most recent call last):\n  File") is None


@pytest.mark.parametrize(
    "raised, kind, remedy",
    [
        (
            "ModuleNotFoundError: No module named 'lastwrite'",
            EnvironmentUnfit,
            "install the same version of lastwrite",
        ),
        (
            "pyspark.errors.PySparkRuntimeError: No module named 'numba'",
            EnvironmentUnfit,
            "PYSPARK_PYTHON=PATH",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/log/t-0'",
            LogError,
            "same path on every worker",
        ),
        ("MemoryError", LogError, "--memory"),
        ("ValueError: bad", LogError, "report it"),
    ],
)
def test_worker_exception_has_a_remedy(raised: str, kind: type[LogError], remedy: str) -> None:
    error = spark_error("scan", RuntimeError(TRACE.format(raised=raised)))
    assert type(error) is kind
    assert error.problem == f"Spark could not finish the stage scan: a worker raised {raised}"
    assert remedy in str(error.remedy)
    assert ("memory" in str(error).lower()) == (raised == "MemoryError")


@pytest.mark.parametrize(
    "text, said",
    [
        (CRASHED.format(4), "a worker process was killed or crashed, 4 times in a row — nothing"),
        (CRASHED.format(1), "a worker process was killed or crashed — nothing"),
        (
            LOST.format(4),
            "an executor was lost, 4 times in a row: Command exited with code 137 — nothing",
        ),
        (
            "x\nJob aborted due to stage failure: Master removed our application: FAILED",
            "removed our application — ",
        ),
        (
            "x\n: java.lang.IllegalStateException: SparkContext has been shutdown",
            "has been shutdown — nothing",
        ),
        (
            "job 3 cancelled\nbecause of an Exception of sorts",
            "because of an Exception of sorts — nothing",
        ),
        ("", "no reason — nothing"),
    ],
)
def test_lost_worker_is_explained(text: str, said: str) -> None:
    error = spark_error("rewrite", RuntimeError(text))
    assert said in str(error)
    assert "memory" not in str(error)


def test_full_temporary_folder_is_named() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    error = spark_error("scan", full)
    assert "temporary folder is full" in error.problem and "set TMPDIR" in str(error.remedy)


def test_memory_is_named_only_if_the_system_reports_a_kill() -> None:
    limit = "the limit of this control group, 300 MiB (/x/memory.max)"
    assert f"killed a worker for memory: it reached {limit} — " in str(
        spark_error("scan", RuntimeError(CRASHED.format(4)), None, limit)
    )
    raised = RuntimeError(
        TRACE.format(raised="ValueError: bad")
    )  # the system killed another process meanwhile
    assert "memory" not in str(spark_error("scan", raised, None, limit))
    died = spark_error("scan", ConnectionRefusedError(), JvmDeath("it died", "bury it"))
    assert str(died) == "Spark could not finish the stage scan: it died — bury it [LW-100]"


@pytest.mark.parametrize(
    "settings, wanted",
    [
        ({}, 0),
        ({"spark.executor.instances": "2"}, 2),
        ({"spark.cores.max": "7", "spark.executor.cores": "2"}, 4),
        ({"spark.dynamicAllocation.minExecutors": "3"}, 3),
    ],
)
def test_expected_number_of_executors_follows_the_settings(
    settings: dict[str, str], wanted: int
) -> None:
    assert requested_executors(settings.get) == wanted


def answers(error: Exception) -> list[SegmentOutput | FailedUnit[int]]:
    """The two forms in which a worker's error arrives."""
    return [FailedUnit(1, error), SegmentOutput(0, 0, 0, error=error)]


def test_file_that_only_the_worker_misses_is_explained(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.touch()
    new = tmp_path / "0.log.1.cleaned"
    missing = FileNotFoundError(errno.ENOENT, "No such file", str(log))
    made = FileNotFoundError(errno.ENOENT, "No such file", str(new))
    for error, path in [
        (missing, log),
        (
            CommitConflict("another program deleted the segment during the command", path=str(log)),
            log,
        ),
        (to_log_error(missing, str(log), "read the file"), log),
        (to_log_error(made, str(new), "create a new segment"), tmp_path),
    ]:
        for answer in answers(error):
            seen = str(explain_worker_errors(answer).error)
            assert seen.startswith(
                f"{path}: the workers cannot access this path — nothing was swapped; "
            )
            assert "at the same path on every worker" in seen
    log.unlink()  # the file is missing on the driver, too
    for error in (
        missing,
        CommitConflict("another program deleted the segment during the command", path=str(log)),
    ):
        for answer in answers(error):
            assert explain_worker_errors(answer).error is error


def test_refused_write_of_a_worker_is_explained() -> None:
    refused = to_log_error(OSError(errno.EROFS, "Read-only"), "/x/new", "create a new segment")
    for answer in answers(refused):
        assert (
            "/x/new: a worker could not create a new segment: the file system is read-only"
            in str(explain_worker_errors(answer).error)
        )


def test_message_on_the_next_line_is_found() -> None:
    text = "It failed.\n: org.apache.spark.SparkException: Task: org.apache.spark.SparkException: \n\nBad data in x"
    assert "SparkException: Bad data in x" in str(spark_error("scan", RuntimeError(text)))


def test_jvm_that_died_between_stages_is_explained(tmp_path: Path) -> None:
    def gone() -> None:
        raise ConnectionError("refused")

    standing = PersistentJob(tmp_path)
    spark = SimpleNamespace(
        master="local[2]",
        is_ours=True,
        context=SimpleNamespace(_jsc=SimpleNamespace(sc=gone)),
        find_death=lambda error: None,
        start_job=lambda: standing,
    )
    runner = SparkRunner(cast(Any, spark), 2)
    with pytest.raises(LogError, match="refused"):
        runner.run("elect", lambda unit: unit, [1], [1], NoProgress())
    assert runner.has_failed


def test_failed_start_names_javas_exception_and_its_cause() -> None:
    printed = (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.\n"
        "\tat io.fabric8.kubernetes.client.dsl.internal.BaseOperation.create(BaseOperation.java)\n"
        "Caused by: java.io.IOException: Connection refused: /127.0.0.1:1\n"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
        "Caused by: java.net.ConnectException: Connection refused\n"
    )
    assert start_failure(Exception(printed)) == (
        "io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.; "
        "caused by java.io.IOException: Connection refused: /127.0.0.1:1"
    )
    assert start_failure(Exception("one line")) == "one line"
    assert start_failure(ValueError()) == "ValueError"
