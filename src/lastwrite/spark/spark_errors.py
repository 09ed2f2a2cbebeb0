"""Convert Spark's errors, which are long stack traces, to one sentence."""

from __future__ import annotations

import re

from lastwrite.errors import EnvironmentUnfit, LogError
from lastwrite.spark.launcher.jvm import JvmDeath
from lastwrite.storage.machine import LESS_MEMORY, MORE_SPACE

SAME_PATH = (
    "nothing was swapped; make the log and the --to folder readable at the same path on every "
    "worker, or run on this machine with --master local[*]"
)
_AGAIN = "nothing of this wave was swapped; run the command again"
_TRACE = "Traceback (most recent call last):"
INSTALL = (
    "install the same version of lastwrite for the Python of every worker, or set "
    "PYSPARK_PYTHON=PATH in the environment to a Python that has it; docs/guide/clusters.md "
    "shows how to ship it"
)
_SAME_PYTHON = (
    "nothing was swapped; use the same minor version of Python on the workers as here: set "
    "PYSPARK_PYTHON=PATH"
)
# Messages for a full disk of a temporary folder. For a full disk of a log, ``files.to_log_error``
# creates the message.
_FULL = ("No space left on device", "Disk quota exceeded")
_LEFT = (
    "Master removed our application",
    "All masters are unresponsive",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
)


def last_trace_line(text: str) -> str | None:
    """The last line of the last Python traceback in ``text``, which names the exception.

    None means that there is no traceback.
    """
    _, trace, text = text.rpartition(_TRACE)
    if not trace:
        return None
    lines = iter(text.splitlines()[1:])
    for line in lines:
        if line and not line[0].isspace():
            return line.strip()
    return None


def start_failure(error: Exception) -> str:
    """Why Spark's context was not created: Java's exception with its first cause, in one line."""
    lines = str(error).splitlines() or [type(error).__name__]
    found = [line[2:] for line in lines if line.startswith(": ")][:1]
    found += [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")][
        :1
    ]
    return "; caused by ".join(found) or lines[0]


def spark_error(
    stage: str, error: Exception, death: JvmDeath | None = None, limit: str | None = None
) -> LogError:
    """The error to report for a stage that Spark did not finish.

    ``death`` is the reason why Spark's JVM has ended, if it has. ``limit`` is the memory limit as
    text, if the operating system has killed a process on this machine because of that limit.
    """
    could_not = f"Spark could not finish the stage {stage}"
    if death is not None:
        return LogError(f"{could_not}: {death.problem}", remedy=death.remedy)
    text = str(error)
    if any(reason in text for reason in _FULL):
        return LogError(
            f"{could_not}: the file system of a temporary folder is full",
            remedy=f"nothing of this wave was swapped; {MORE_SPACE}",
        )
    raised = last_trace_line(text)
    if raised is not None:
        return _raised_by_worker(could_not, raised)
    if "Python worker exited unexpectedly" in text:
        if limit is not None:
            problem = f"{could_not}: the system killed a worker for memory: it reached {limit}"
            return LogError(problem, remedy=LESS_MEMORY)
        return LogError(
            f"{could_not}: a worker process was killed or crashed{_times(text)}",
            remedy=f"{_AGAIN}; if it fails again, see the system's log for the cause",
        )
    lost = re.search(r"ExecutorLostFailure \((.*?)\) Reason: (.*)", text)
    if lost is not None:
        return LogError(
            f"{could_not}: an executor was lost{_times(text)}: {lost[2].strip()[:200]}",
            remedy=f"{_AGAIN}; if it fails again, see the executor's log for the cause",
        )
    gone = next((line for line in _LEFT if line in text), None)
    if gone is not None:
        return EnvironmentUnfit(
            f"{could_not}: {gone}",
            remedy=f"{_AGAIN}; if it fails again, see the logs of the cluster's master and "
            "executors for the cause",
        )
    return LogError(f"{could_not}: {type(error).__name__}: {_cause(text)[-400:]}", remedy=_AGAIN)


def _raised_by_worker(could_not: str, raised: str) -> LogError:
    kind, _, said = raised.partition(":")
    name = kind.rpartition(".")[2]
    problem = f"{could_not}: a worker raised {raised[:300]}"
    if name in ("ModuleNotFoundError", "ImportError") or "No module named" in said:
        return EnvironmentUnfit(problem, remedy=f"nothing was swapped; {INSTALL}")
    if name in ("FileNotFoundError", "PermissionError", "NotADirectoryError"):
        return LogError(problem, remedy=SAME_PATH)
    if "PYTHON_VERSION_MISMATCH" in said:
        return EnvironmentUnfit(problem, remedy=_SAME_PYTHON)
    if name == "MemoryError":
        return LogError(
            problem,
            remedy=f"{_AGAIN} with a higher --memory, or with fewer workers: --master local[1]",
        )
    return LogError(problem, remedy=f"{_AGAIN}; if it fails again, report it as a bug")


def _times(text: str) -> str:
    """A clause with the number of attempts of the failed task. Empty for one attempt."""
    tried = re.search(r"failed (\d+) times", text)
    return f", {tried[1]} times in a row" if tried is not None and tried[1] != "1" else ""


def _cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = next((n for n, line in enumerate(lines) if "Error" in line or "Exception" in line), 0)
    end = named + 1
    # a line that ends with a colon continues on the next line
    while end < len(lines) and lines[end - 1].endswith(":"):
        end += 1
    return " ".join(lines[named:end]) or "no reason"
