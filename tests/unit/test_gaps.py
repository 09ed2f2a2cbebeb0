"""``fetch --accept-gap``: what was lost between two fetches is noted, and commands name it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.fetching import FetchedLog, Held
from tests.support.kafka.logs import write_segment

NOW_MS = 1_700_000_000_000
GAP = "offsets 4 to 8 were lost before they were fetched"


def write(root: Path, offsets: Sequence[int]) -> Path:
    batches = [
        encode_batch([Record(n, NOW_MS, b"k%d" % (n % 3), b"v%d" % n)], base_offset=n)
        for n in offsets
    ]
    write_segment(root / "t-0", offsets[0], batches, mtime_ms=NOW_MS)
    return root


def fetch(root: Path, archive: Path, **how: bool) -> FetchedLog:
    report = lastwrite.fetch([str(root)], str(archive), include_active=True, **how)
    (found,) = report.partitions
    assert isinstance(found, FetchedLog)
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Of offsets 0 to 3, and 9 to 11."""
    to, root = tmp_path / "archive", tmp_path / "root"
    fetch(write(root, range(4)), to)
    shutil.rmtree(root)
    refused = fetch(write(root, range(9, 12)), to)
    assert refused.held is Held.GAP
    assert refused.reason is not None and "--accept-gap" in refused.reason
    found = fetch(root, to, accepts_gap=True)
    assert (found.reason, found.first_offset, found.end_offset) == (None, 9, 12)
    return to


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    assert cli.run(list(arguments)) == 0
    out, err = capfd.readouterr()
    return out + err


@pytest.mark.parametrize(
    "command", [["inspect"], ["dump"], ["read", "--partition", "0"], ["verify"], ["explain"]]
)
@pytest.mark.parametrize("json", [False, True])
def test_commands_name_the_gap(
    archive: Path, capfd: pytest.CaptureFixture[str], command: list[str], json: bool
) -> None:
    name, *options = command
    more = ["--json"] if json else []
    assert GAP in said(capfd, name, str(archive), "--topic", "t", *options, *more)


def test_the_next_fetch_and_a_copy_have_it_too(archive: Path, tmp_path: Path) -> None:
    write(tmp_path / "root", range(9, 15))
    assert fetch(tmp_path / "root", archive).end_offset == 15
    assert fetch(archive, tmp_path / "copy").end_offset == 15
    for place in (archive, tmp_path / "copy"):
        (found,) = lastwrite.inspect(str(place)).partitions
        assert [GAP in each.message for each in found.problems] == [True]


def test_it_is_not_accepted_and_set_aside_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="two things of one gap"):
        fetch(write(tmp_path, range(4)), tmp_path / "archive", accepts_gap=True, sets_aside=True)
