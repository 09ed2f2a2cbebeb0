"""Tests of the command line's texts, options and progress lines."""

from __future__ import annotations

import errno
import io
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lastwrite.cli import output, run
from lastwrite.cli.app import build_app
from lastwrite.cli.options import pairs, settings
from lastwrite.errors import InvalidConfig


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (123_456, "123 kB"),
        (2_500_000_000, "2.5 GB"),
        (9e12, "9.0 TB"),
    ],
)
def test_sizes_are_formatted(size: float, said: str) -> None:
    assert output.format_size(size) == said
    assert output.format_size(None) == "?"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (42, "42 s"), (187, "3:07"), (7800, "2:10:00")],
)
def test_durations_are_formatted(seconds: float, said: str) -> None:
    assert output.in_time(seconds) == said


def test_progress_prints_a_line_per_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    progress = output.LineProgress(stream)
    progress.note("starting Spark")
    progress.stage("scan", 1_000_000)
    for _ in range(5):
        clock[0] += 2
        progress.advance(100_000)
    progress.stage("elect", 0)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "starting Spark",
        "scan: 1.0 MB",
        "scan: 30% of 1.0 MB, 50.0 kB/s, 14 s left",
        "scan: done in 10 s",
        "elect",
        "elect: done in 0.0 s",
    ]


def test_progress_omits_the_estimate_after_a_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    progress = output.LineProgress(stream)
    progress.stage("scan", 2000)
    clock[0] += 67
    progress.advance(1)
    assert stream.getvalue().splitlines()[1:] == ["scan: 0% of 2.0 kB, for 1:07"]


def test_progress_ignores_a_closed_stream() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = output.LineProgress(Gone())
    progress.stage("scan", 1)
    progress.close()


def test_options_override_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "topic.properties"
    file.write_text("# topic\ndelete.retention.ms=5\nsegment.bytes = 100\n")
    assert settings(output.Output(), ["delete.retention.ms=7"], str(file)) == {
        "delete.retention.ms": "7",
        "segment.bytes": "100",
    }
    assert settings(output.Output(), None, None) == {}


def test_value_may_contain_an_equals_sign() -> None:
    assert pairs("--conf", ["spark.driver.extraJavaOptions=-Da=b", "x="]) == {
        "spark.driver.extraJavaOptions": "-Da=b",
        "x": "",
    }


@pytest.mark.parametrize("given", [["delete.retention.ms"], ["=5"], ["a=1", "a=2"]])
def test_malformed_pair_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="--config"):
        pairs("--config", given)


def test_unreadable_settings_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        settings(output.Output(), None, str(tmp_path / "missing"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="UTF-8"):
        settings(output.Output(), None, str(tmp_path / "binary"))


@pytest.mark.parametrize(
    ("command", "group", "listed", "elsewhere"),
    [
        ("compact", "Kafka only", ("--metadata", "--topic-config", "--keep-scans"), "--exact"),
        ("compact", "Pulsar only", ("--archive",), "--metadata"),
        ("plan", "Kafka only", ("--topic-config-file", "--drop-keyless"), "--archive"),
        ("clean", "Pulsar only", ("--archive",), "--once"),
        ("dump", "RocketMQ only", ("--commit-log-offset", "--unique-key", "--to DIR"), "--from"),
        ("dump", "Pulsar only", ("--from ID",), "--limit"),
        ("read", "RocketMQ only", ("--pull",), "--from"),
        ("read", "Kafka only", ("--isolation-level", "--time"), "--read-compacted"),
    ],
)
def test_help_lists_options_of_one_system_under_its_name(
    command: str,
    group: str,
    listed: tuple[str, ...],
    elsewhere: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([command, "--help"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    [under] = [block for block in blocks if block.startswith(f"{group}:\n")]
    options = [line.strip() for line in under.splitlines()]
    for name in listed:
        assert [line for line in options if line.startswith(name)]
    assert elsewhere not in under
    [general] = [block for block in blocks if block.startswith("Selection:\n")]
    assert "--system" in general and listed[0] + " " not in general


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    return dict(build_app(output.Output()).commands)


def test_list_of_commands_fits_80_columns(
    commands: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split() for line in listed] == [
        [name, *command.help.partition("\n")[0].split()] for name, command in commands.items()
    ]
    assert all(line.endswith(".") for line in listed)


def test_help_of_every_command_groups_options_and_ends_with_examples(
    commands: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, command in commands.items():
        assert run([name, "--help"]) == 0
        said = capsys.readouterr().out
        assert said.count("\nOutput:\n") == 1 and "\nOptions:\n" not in said
        shown = said.partition("\nExamples:\n")[2].splitlines()
        assert [line[2:] for line in shown] == command.epilog.strip().splitlines()


def test_every_example_of_a_command_can_be_parsed(commands: dict[str, Any]) -> None:
    for name, command in commands.items():
        examples = command.epilog.strip().replace("\\\n", "").splitlines()
        assert len(examples) >= 2, name
        for example in examples:
            program, called, *arguments = shlex.split(example.partition(" >")[0])
            assert (program, called) == ("lastwrite", name)
            command.make_context(name, arguments)


def test_table_folds_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    name, path = "a-topic-with-a-long-name-0", "/data/a-topic-with-a-long-name-0/" + "0" * 40
    row = (name, "would be cleaned", "1,234,567 → 39", "", f"the file {path} [is] what it was")
    for width, is_folded in ((60, True), (200, False)):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stdout", Terminal())
        said = output.Output()
        said.table("partition | status | >records | >dirty | why", [row, row])
        said.close()
        lines = sys.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
        if is_folded:
            assert (
                lines[: len(lines) // 2]
                == lines[len(lines) // 2 :]
                == [
                    name,
                    "  status     would be cleaned",
                    "  records    1,234,567 → 39",
                    "  why        the file",
                    f"             {path}",
                    "             [is] what it was",
                ]
            )
        else:
            assert len(lines) == 4 and all(cell in lines[2] for cell in row)


def test_due_time_is_shown_in_the_local_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone, said in (("UTC0", "22:13:20.007+00:00"), ("CET-1", "23:13:20.007+01:00")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert output.local_moment(1_700_000_000_007) == f"2023-11-14 {said} (1700000000007)"
    monkeypatch.undo()
    time.tzset()
    assert output.local_moment(2**62) == f"{2**62} ms"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "set TMPDIR and SPARK_LOCAL_DIRS"),
        (errno.EROFS, "not mounted read-only"),
        (errno.EACCES, "rights for this path"),
        (errno.ENOENT, ""),
    ],
)
def test_error_of_the_system_names_both_files_and_a_remedy(
    capsys: pytest.CaptureFixture[str], number: int, remedy: str
) -> None:
    error = OSError(number, os.strerror(number), "/a", None, "/tmp/b")
    assert output.report_failure(output.Output(), error) == 1
    said = capsys.readouterr().err
    assert f"/a → /tmp/b: {os.strerror(number)}" in said and said.endswith("[LW-108]\n")
    assert remedy in said and ("—" in said) == bool(remedy)


def test_error_without_a_readable_text_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert output.report_failure(output.Output(), Unreadable()) == 1
    assert "unexpected Unreadable: the text of the error cannot be read" in capfd.readouterr().err


def test_unexpected_error_of_many_lines_keeps_its_remedy(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert output.report_failure(output.Output(), RuntimeError("first\nsecond")) == 1
    said = capfd.readouterr().err
    assert "unexpected RuntimeError: first … — report it with the traceback" in said
