"""Tests of recognising the system of a path."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.commands.systems import system_at
from lastwrite.errors import InvalidConfig

STORE = Path(__file__).resolve().parents[1] / "corpus" / "rocketmq" / "5.5.0"
ROOT = Path(__file__).resolve().parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def test_path_determines_the_system() -> None:
    assert system_at(str(STORE)).name == "rocketmq"
    assert system_at(str(ROOT)).name == "kafka"
    assert system_at(str(STORE), "kafka").name == "kafka"


def test_copied_commit_log_is_recognised_under_any_name(tmp_path: Path) -> None:
    copy = tmp_path / "00000.bak"
    shutil.copy(STORE / "commitlog" / "00000000000000016384", copy)
    assert system_at(str(copy)).name == "rocketmq"
    found = lastwrite.inspect(str(copy)).to_dict()
    assert found["what"] == "commit log" and not found["problems"]
    first = next(iter(lastwrite.dump(str(copy))))
    assert (first["topic"], first["queue_offset"], first["physical_offset"]) == (
        "ctopic",
        44,
        16384,
    )


def test_similar_file_is_not_recognised_as_a_commit_log(tmp_path: Path) -> None:
    content = bytearray((STORE / "commitlog" / "00000000000000016384").read_bytes())
    content[4] ^= 1  # the record's magic
    for name, data in (("cut.bak", content[:7]), ("other.bak", content), ("empty.bak", b"")):
        (tmp_path / name).write_bytes(data)
        assert system_at(str(tmp_path / name)).name == "kafka"


LIVE = "persistent://public/default/orders"


@pytest.mark.parametrize(
    "command",
    [
        ["inspect"],
        ["inspect", "--system", "pulsar"],
        ["settings"],
        ["release"],
        ["explain"],
        ["dump"],
        ["read"],
        ["verify"],
        ["verify", str(ROOT)],
    ],
    ids=" ".join,
)
def test_command_on_files_names_fetch_for_a_live_topic(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, LIVE]) == 2
    said = capfd.readouterr().err
    assert f"{LIVE}: this is the address of a live topic" in said
    assert f"lastwrite fetch {LIVE} --to ARCHIVE --config metadataStoreUrl=" in said


@pytest.mark.parametrize(
    "name", ["inspect", "settings", "release", "explain", "dump", "read", "verify", "latest"]
)
def test_functions_name_fetch_for_a_live_topic(name: str) -> None:
    with pytest.raises(InvalidConfig, match="fetch it first"):
        list(getattr(lastwrite, name)(LIVE))


def test_non_persistent_topic_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="is not a persistent topic"):
        lastwrite.inspect(f"non-{LIVE}")


def test_folder_of_copied_commit_logs_is_recognised_under_any_names(tmp_path: Path) -> None:
    """Each record contains its address, so the files are sorted by it."""
    folder = tmp_path / "copies"
    folder.mkdir()
    names = ["z", "a", "m"]
    for name, file in zip(names, sorted((STORE / "commitlog").iterdir()), strict=False):
        shutil.copy(file, folder / name)
    (folder / "notes.txt").write_text("where these are from\n")
    assert system_at(str(folder)).name == "rocketmq"
    found = lastwrite.inspect(str(folder)).to_dict()
    assert found["what"] == "commit log"
    assert [problem["path"] for problem in found["problems"]] == [str(folder / "notes.txt")]
    whole = lastwrite.inspect(str(STORE / "commitlog")).to_dict()
    assert found["commit_log"]["records"] == whole["commit_log"]["records"] > 80
    (folder / "notes.txt").unlink()  # this file might be a commit log whose first record is damaged
    assert [m["physical_offset"] for m in lastwrite.dump(str(folder))] == [
        m["physical_offset"] for m in lastwrite.dump(str(STORE / "commitlog"))
    ]
    (folder / "z").write_bytes(b"no record")
    (folder / "a").unlink()
    (folder / "m").unlink(missing_ok=True)
    assert system_at(str(folder)).name == "kafka"
