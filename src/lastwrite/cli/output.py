"""The output of a command: results on standard output, everything else on standard error.

With ``--json``, file descriptor 1 is redirected to standard error while the command runs, because
a JVM, a Spark worker or a library may print to it. The document is written to a copy of the
original descriptor. If the reader closes the pipe, the command continues without printing.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from lastwrite.errors import (
    INTERRUPTED,
    SYSTEM_ERROR,
    UNEXPECTED,
    WRONG_USE,
    BadValue,
    InvalidConfig,
    LogError,
)
from lastwrite.reports.document import Document, Printed
from lastwrite.storage.machine import MORE_SPACE

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_PLAIN_WIDTH, _WIDEST = 140, 200  # default and maximum width of a table in a file or a pipe
_SENTENCE_WIDTH = 40  # minimum width of a table's last column
_SECONDS_A_LINE = 5.0
_TELLING_BYTES = 1 << 16
_WORDS_AT_ONCE = 1 << 14  # number of JSON tokens that are written at once
_BESIDE_THE_BAR = 56  # number of columns of a progress line that the bar does not fill


_NO_RIGHTS = "give the user who runs Lastwrite the rights for this path, or choose another path"
_REMEDIES = {
    errno.ENOSPC: MORE_SPACE,
    errno.EDQUOT: MORE_SPACE,
    errno.EROFS: "choose a path on a file system that is not mounted read-only",
    errno.EACCES: _NO_RIGHTS,
    errno.EPERM: _NO_RIGHTS,
    errno.EMFILE: "raise the limit of open files: ulimit -n",
}


class Output:
    """Standard output and standard error of one command.

    With ``as_json``, the command prints one document. With ``lines``, it prints one document per
    line (``dump``), and errors only on standard error.
    """

    def __init__(self, as_json: bool = False, lines: bool = False) -> None:
        self.as_json = as_json
        self.lines = lines
        self.is_open = True
        self._progress: TerminalProgress | LineProgress | None = None
        self._real: TextIO = sys.stdout
        self._given_away: int | None = None
        if as_json:
            try:
                self._given_away = os.dup(1)
                sys.stdout.flush()
                os.dup2(2, 1)
                self._real = os.fdopen(
                    os.dup(self._given_away), "w", encoding="utf-8", newline="\n"
                )
            except OSError:  # a descriptor is closed: no redirection is needed
                self._given_away = None

    def close(self) -> None:
        """End the progress display, and restore descriptor 1."""
        self.end_progress()
        self._flush()
        if self._given_away is not None:
            if self.is_open:
                self._real.close()
            os.dup2(self._given_away, 1)
            os.close(self._given_away)
            self._given_away = None

    def document(self, value: Printed | dict[str, Any]) -> None:
        """Print the JSON document of this command, encoded piece by piece to limit memory.

        With 100,000 partitions, a document has hundreds of megabytes.
        """
        self.end_progress()
        whole = value.iterate_once() if isinstance(value, Printed) else value
        words = json.JSONEncoder(indent=None if self.lines else 2).iterencode(whole)
        while part := "".join(itertools.islice(words, _WORDS_AT_ONCE)):
            if not self._write(part):
                return
        self.line("")
        self._flush()

    def line(self, text: str) -> bool:
        """Print a line of the result. Returns False if the reader has closed the pipe."""
        return self._write(text + "\n")

    def _write(self, text: str) -> bool:
        if self.is_open:
            try:
                self._real.write(text)
            # write ASCII with escapes, because the terminal's encoding is not UTF-8
            except UnicodeEncodeError:
                self._real.write(text.encode("ascii", "backslashreplace").decode())
            except BrokenPipeError:
                self._hang_up()
        return self.is_open

    def raw(self, data: bytes) -> bool:
        """Print bytes of the result unchanged. Returns False if the reader has closed the pipe."""
        if self.is_open:
            try:
                self._real.buffer.write(data)
            except BrokenPipeError:
                self._hang_up()
        return self.is_open

    def text(self, lines: Iterable[str]) -> None:
        """Print lines of the result, and flush them."""
        self.end_progress()
        for line in lines:
            self.line(line)
        self._flush()

    def table(self, heads: str, rows: Iterable[Sequence[object]]) -> None:
        """Print a table with the column heads ``heads``, such as ``name | >size``.

        A column with ``>`` is right-aligned. A table that is too wide for the terminal or file is
        printed with one line per value.
        """
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        self.end_progress()
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        marked = heads.split(" | ")
        columns = [head.removeprefix(">") for head in marked]
        for number, (head, column) in enumerate(zip(marked, columns, strict=True), 1):
            is_right = head != column
            # Only the last column may contain sentences, which may need several lines.
            table.add_column(
                column,
                justify="right" if is_right else "left",
                overflow="fold",
                no_wrap=is_right or number < len(columns),
            )
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        for row in cells:
            table.add_row(*map(escape, row))
        try:
            if self.is_open:
                console = Console(file=self._real, highlight=False)
                at_hand = console.width if self._real.isatty() else _PLAIN_WIDTH
                least = _least_width([columns, *cells])
                if least > (at_hand if self._real.isatty() else _WIDEST):
                    self.text(_folded(columns, cells, at_hand))
                else:
                    console.width = max(at_hand, least)
                    console.print(table)
        except BrokenPipeError:
            self._hang_up()
        self._flush()

    def say(self, text: str) -> None:
        """Print a line on standard error."""
        self.end_progress()
        try:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except (OSError, UnicodeEncodeError):
            pass

    def progress(self) -> TerminalProgress | LineProgress:
        """The progress display on standard error: bars on a terminal, otherwise lines."""
        if self._progress is None:
            self._progress = TerminalProgress() if sys.stderr.isatty() else LineProgress(sys.stderr)
        return self._progress

    def end_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _flush(self) -> None:
        if self.is_open:
            try:
                self._real.flush()
            except BrokenPipeError:
                self._hang_up()

    def _hang_up(self) -> None:
        self.is_open = False
        nowhere = os.open(os.devnull, os.O_WRONLY)  # noqa: TID251 -- Python flushes at exit
        os.dup2(nowhere, self._real.fileno())
        os.close(nowhere)


def _folded(columns: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterator[str]:
    """A wide table as text: for each row, its first value, then one line for each other column."""
    margin = max(map(len, columns)) + 4
    for first, *others in rows:
        yield first
        for head, value in zip(columns[1:], others, strict=True):
            if value:
                yield textwrap.fill(
                    value,
                    max(width, margin + 1),
                    initial_indent=f"  {head}".ljust(margin),
                    subsequent_indent=" " * margin,
                    break_long_words=False,
                    break_on_hyphens=False,
                )


def _least_width(rows: Sequence[Sequence[str]]) -> int:
    """The minimum width of a table at which no number is wrapped."""
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    return sum(widths[:-1]) + min(widths[-1], _SENTENCE_WIDTH)


class LineProgress:
    """Progress for a log file: a line when a stage begins, every few seconds, and when it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._name: str | None = None
        self._total = self._done = 0
        self._began = self._spoke = 0.0

    def stage(self, name: str, total_bytes: int) -> None:
        with self._lock:
            self._end_stage()
            self._name, self._total, self._done = name, total_bytes, 0
            self._began = self._spoke = time.monotonic()
            self._write(f"{name}: {format_size(total_bytes)}" if total_bytes else name)

    def advance(self, done_bytes: int) -> None:
        with self._lock:
            self._done += done_bytes
            now = time.monotonic()
            if self._name is not None and now - self._spoke >= _SECONDS_A_LINE:
                self._spoke = now
                share = f"{self._done / self._total:.0%} of " if self._total else ""
                seconds = now - self._began
                pace = f"for {in_time(seconds)}"
                if _can_estimate(self._done, self._total):
                    left = max(self._total - self._done, 0) * seconds / self._done
                    pace = f"{format_size(self._done / seconds)}/s, {in_time(left)} left"
                self._write(f"{self._name}: {share}{format_size(self._total)}, {pace}")
            if self._total and self._done >= self._total:  # the stage has ended
                self._end_stage()

    def note(self, text: str) -> None:
        with self._lock:
            self._write(text)

    def close(self) -> None:
        with self._lock:
            self._end_stage()

    def _end_stage(self) -> None:
        if self._name is not None:
            self._write(f"{self._name}: done in {in_time(time.monotonic() - self._began)}")
            self._name = None

    def _write(self, text: str) -> None:
        try:
            # write the line with one call, so that no other output splits it
            self._stream.write(text + "\n")
            self._stream.flush()
        except OSError:
            pass  # the stream was closed


def _can_estimate(done_bytes: float, total_bytes: float) -> bool:
    """Whether the remaining time can be estimated. At first, startup dominates the elapsed time."""
    return done_bytes >= max(_TELLING_BYTES, total_bytes / 100)


class TerminalProgress:
    """Progress on a terminal: one bar per stage, with rate and remaining time."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            Task,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.text import Text

        class TimeLeftColumn(TimeRemainingColumn):
            def render(self, task: Task) -> Text:
                told = _can_estimate(task.completed, task.total or 0)
                return super().render(task) if told else Text("-:--:--", "progress.remaining")

        console = Console(stderr=True)
        self._bars: RichProgress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(max(4, min(40, console.width - _BESIDE_THE_BAR))),
            TaskProgressColumn(),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeftColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._bars.start()

    def stage(self, name: str, total_bytes: int) -> None:
        self._end_stage()
        self._task = self._bars.add_task(name, total=total_bytes or None)

    def advance(self, done_bytes: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, done_bytes)

    def note(self, text: str) -> None:
        from rich.markup import escape

        self._bars.console.print(escape(text), highlight=False)

    def close(self) -> None:
        self._end_stage()
        self._bars.stop()

    def _end_stage(self) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._task)]
            total = task.total or task.completed or 1
            self._bars.update(self._task, total=total, completed=total)
            self._task = None


def format_size(size_bytes: float | None) -> str:
    """Format a size: 512 B, 1.5 MB, 21 GB."""
    if size_bytes is None:
        return "?"
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def shares(counts: Mapping[str, int]) -> str:
    """Format a count for each name, such as a number of records per codec.

    A single name is printed without its count.
    """
    return ", ".join(
        f"{name} {count:,}" if len(counts) > 1 else name for name, count in sorted(counts.items())
    )


def moment(timestamp_ms: int) -> str:
    """Format a timestamp as date and time in UTC. -1 means no time."""
    if timestamp_ms == -1:
        return "no time"
    try:
        when = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{when:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def local_moment(timestamp_ms: int) -> str:
    """Format a timestamp in local time and in milliseconds, which commands accept.

    For example, ``2023-11-14 23:13:20.000+01:00 (1700000000000)``.
    """
    try:
        when = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    said = when.replace(microsecond=timestamp_ms % 1000 * 1000)
    return f"{said.isoformat(' ', 'milliseconds')} ({timestamp_ms})"


def in_local_time(sentence: str) -> str:
    """Replace each time in milliseconds in a report's sentence by local time."""
    return re.sub(r"\btime (-?\d+)\b", lambda found: local_moment(int(found[1])), sentence)


def in_time(seconds: float) -> str:
    """Format a duration: 0.3 s, 42 s, 3:07, 2:10:00."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def in_stages(stage_seconds: Mapping[str, float]) -> str:
    """Format the duration of each stage. Stages that did not run are omitted."""
    return ", ".join(
        f"{name} {in_time(seconds)}" for name, seconds in stage_seconds.items() if seconds
    )


def counted(number: int | None) -> str:
    """Format a count with thousands separators. A question mark if the count is unknown."""
    return "?" if number is None else f"{number:,}"


def quantity(number: int | None, noun: str) -> str:
    """Format a count with its noun, as in ``1 record``, ``2,000 entries`` or ``? records``."""
    if number == 1:
        return f"1 {noun}"
    plural = {"entry": "entries", "batch": "batches"}.get(noun, f"{noun}s")
    return f"{counted(number)} {plural}"


class Failure(Document):
    """The error that ended a command."""

    kind: str  # the error's class
    code: str  # the error's code in docs/reference/errors.md, which never changes
    message: str
    path: str | None
    position: int | None  # byte position in the file
    remedy: str | None  # what the user can do
    exit_status: int


class FailureReport(Document):
    """The document that a command prints if it fails."""

    error: Failure


def report_failure(output: Output, error: BaseException) -> int:
    """Report an error in one line, and return the exit status."""
    if isinstance(error, InvalidConfig | BadValue):
        from lastwrite.decoding.options import COMMAND_NAMES, with_option_names

        error = with_option_names(error, COMMAND_NAMES)
    failure = _failure(error)
    said = f"{failure.message} — {failure.remedy}" if failure.remedy else failure.message
    text = str(error) if isinstance(error, LogError) else said
    if not text.startswith("Usage:"):
        code = f" [{failure.code}]"
        text = f"lastwrite: {_one_line(text).removesuffix(code)}{code}"
    output.say(text)
    if os.environ.get("LASTWRITE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    if output.as_json and not output.lines:
        output.document(FailureReport(failure))
    return failure.exit_status


def _failure(error: BaseException) -> Failure:
    kind = type(error).__name__
    if isinstance(error, LogError):
        kind = next(
            each.__name__ for each in type(error).__mro__ if each.__module__ == LogError.__module__
        )
        return Failure(
            kind, error.code, error.problem, error.path, error.at, error.remedy, error.exit_status
        )
    status, remedy = 1, None
    say = getattr(error, "format_message", None)
    if isinstance(error, KeyboardInterrupt) or kind == "Abort":
        code, kind = INTERRUPTED, "Interrupted"
        message = "the command was interrupted; unfinished work was not committed"
    elif say is not None:  # an error of Typer
        code, status, message = WRONG_USE, 2, str(say())
        if kind != "NoArgsIsHelpError":
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "lastwrite"
            message = f"{message} (see: {command} --help)"
        kind = "WrongUse"
    elif isinstance(error, OSError) and error.strerror is not None:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        code = SYSTEM_ERROR
        message = f"{' → '.join(names) or 'standard output'}: {error.strerror}"
        remedy = _REMEDIES.get(error.errno or 0)
    else:
        code = UNEXPECTED
        try:
            text = _one_line(str(error)) or kind
        except Exception:  # py4j's error requests its text from Java, which may have ended
            text = "the text of the error cannot be read"
        message = (
            f"unexpected {kind}: {text} — report it with the traceback that "
            "LASTWRITE_DEBUG=1 prints"
        )
    return Failure(kind, code, message, None, None, remedy, status)


def _one_line(text: str) -> str:
    first, *more = [line.strip() for line in text.strip().splitlines()] or [""]
    return first if not more else f"{first} …"
