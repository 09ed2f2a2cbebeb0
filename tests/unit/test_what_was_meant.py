"""Tests of addresses given as paths, and of missing packages: the error names the next step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import EnvironmentUnfit, InvalidConfig
from tests.support.kafka.growing import GrowingLog

PIP = r"pip install 'lastwrite\[frames\]'"


@pytest.mark.parametrize("command", ["table", "inspect", "dump", "read", "explain", "verify"])
def test_command_on_files_names_fetch_for_a_live_cluster(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--topic", "t", "--to", str(tmp_path / "t")] if command == "table" else []
    for address in ("kafka://localhost:9092", "rocketmq://a:9876,b:9876"):
        assert run([command, address, *more]) == 2
        assert f"lastwrite fetch {address} --to ARCHIVE, then give ARCHIVE" in (
            capsys.readouterr().err
        )
    assert run([command, "localhost:9092", *more]) == 2
    printed = capsys.readouterr().err
    assert "SOURCE is kafka://localhost:9092 or rocketmq://localhost:9092 or persistent:" in printed
    assert run([command, "pulsar+ssl://localhost:6651", *more]) == 2
    assert "lastwrite fetch persistent://TENANT/NAMESPACE/TOPIC" in capsys.readouterr().err


def test_fetch_names_the_accepted_addresses(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="give kafka://localhost:9092 or rocketmq://local"):
        lastwrite.fetch("localhost:9092", str(tmp_path))
    with pytest.raises(InvalidConfig, match="give persistent://TENANT/NAMESPACE/TOPIC"):
        lastwrite.fetch("pulsar://localhost:6650", str(tmp_path))


def test_folder_with_the_name_of_an_address_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("localhost:9092").mkdir()
    GrowingLog(tmp_path / "localhost:9092").append([(b"k", b"v", 1)])
    with lastwrite.table("localhost:9092", "t") as table:
        assert dict(table) == {b"k": b"v"}


def _given(name: str, root: str) -> Callable[[], Any]:
    table = lastwrite.table(root, "t")
    decoded = {"topic": "t", "value_format": "utf8"}
    calls: dict[str, Callable[[], Any]] = {
        "to_arrow": table.to_arrow,
        "reader": table.reader,
        "batches": lambda: list(table.batches()),
        "follow": lambda: list(table.follow(poll_s=None)),
        "__arrow_c_stream__": table.__arrow_c_stream__,
        "table": lambda: lastwrite.table(root, **decoded),
        "dump": lambda: list(lastwrite.dump(root, **decoded)),
        "read": lambda: list(lastwrite.read(root, **decoded)),
        "latest": lambda: lastwrite.latest(root, **decoded),
        "table_to": lambda: lastwrite.table_to(root, "t", to=f"{root}-table"),
        "verify_table": lambda: lastwrite.verify_table(root, f"{root}-table"),
    }
    return calls[name]


@pytest.mark.parametrize(
    "name",
    [
        "to_arrow",
        "reader",
        "batches",
        "follow",
        "__arrow_c_stream__",
        "table",
        "dump",
        "read",
        "latest",
        "table_to",
        "verify_table",
    ],
)
def test_missing_pyarrow_names_the_pip_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    GrowingLog(tmp_path / "log").append([(b"k", b"v", 1)])
    call = _given(name, str(tmp_path / "log"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # makes the import fail
    with pytest.raises(EnvironmentUnfit, match=PIP) as caught:
        call()
    assert caught.value.remedy is not None
