"""Tests of partitions that several connections request at once, and of partitions that
disappear.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from lastwrite.engine.system import system_named
from lastwrite.errors import CorruptLog, LogError
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.server.catalog import Catalog, ServedPartition, ServedSource
from lastwrite.server.files import Files
from tests.golden.commands import CORPUS
from tests.support.kafka.logs import write_segment
from tests.support.kafka.metadata import write_metadata


def batch(base: int) -> bytes:
    return encode_batch([Record(base, 5, b"k", b"v", ())], base_offset=base)


class Counted(ServedPartition):
    """A partition whose first listing waits for ``go_on``."""

    listings = 0
    go_on = Event()

    def listed(self) -> PartitionLog:
        self.listings += 1
        assert self.go_on.wait(20)
        return super().listed()


def test_concurrent_requests_share_one_listing(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    shutil.copytree(CORPUS / "kafka-4.4.0" / "stopped" / "client-none-0", folder)
    partition = Counted(TopicPartition("t", 0), str(folder), Files(1 << 20))
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(partition.log) for _ in range(4)]
        while not partition.listings:
            pass
        partition.go_on.set()
        found = {id(each.result(20)) for each in asked}
    assert len(found) == partition.listings == 1
    assert partition.reread() is not partition.reread()


def _served(folder: Path, told: list[str], *numbers: int) -> Catalog:
    for number in numbers:
        shutil.copytree(
            CORPUS / "kafka-4.4.0" / "stopped" / "client-none-0", folder / f"t-{number}"
        )
    source = ServedSource(str(folder), system_named("kafka"))
    return Catalog([source], (), Files(1 << 20), notify=told.append)


def _partitions(catalog: Catalog, id: bytes) -> list[list[int]]:
    """The topic's partitions, found by its name and by its id."""
    by_name, by_id = catalog.topic("t"), catalog.of_id(id)
    return [
        [] if by_name is None else sorted(by_name.partitions),
        [] if by_id is None else sorted(by_id.partitions),
        catalog.numbers("t") if "t" in catalog.names() else [],
        [n for n in range(3) if catalog.partition(by_name, n) is not None],
    ]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders and topics are listed again at every request."""
    monkeypatch.setattr("lastwrite.server.catalog.FILES_S", -1.0)
    monkeypatch.setattr("lastwrite.server.catalog._LIST_S", -1.0)


@pytest.mark.usefixtures("impatient")
def test_deleted_partition_disappears_for_all_requests(tmp_path: Path) -> None:
    told: list[str] = []
    catalog = _served(tmp_path, told, 0, 1)
    topic = catalog.topic("t")
    assert topic is not None
    id = topic.id
    assert _partitions(catalog, id) == [[0, 1]] * 4
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    for _ in range(2):
        assert _partitions(catalog, id) == [[1]] * 4
    assert (
        len(told) == 1
        and f"t-0 is no longer served: the folder {tmp_path}/t-0 was removed" in told[0]
    )
    (tmp_path / "t-1").rename(tmp_path / "also elsewhere")
    assert _partitions(catalog, id) == [[]] * 4
    (tmp_path / "elsewhere").rename(tmp_path / "t-0")
    (tmp_path / "also elsewhere").rename(tmp_path / "t-1")
    assert _partitions(catalog, id) == [[0, 1]] * 4
    assert sorted(each.split(":")[0] for each in told) == [
        "t-0 is no longer served",
        "t-0 is served again",
        "t-1 is no longer served",
        "t-1 is served again",
    ]
    catalog.close()


@pytest.mark.usefixtures("impatient")
def test_renamed_topic_is_served_under_its_new_name(tmp_path: Path) -> None:
    told: list[str] = []
    catalog = _served(tmp_path, told, 0)
    assert catalog.names() == ["t"]
    (tmp_path / "t-0").rename(tmp_path / "new-0")
    assert catalog.topic("t") is None and catalog.names() == ["new"]
    renamed = catalog.topic("new")
    assert renamed is not None and renamed.partitions[0].log().end(False) > 0
    assert len(told) == 1
    catalog.close()


def test_damage_is_reported_once(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "t-0"
    shutil.copytree(CORPUS / "kafka-4.4.0" / "stopped" / "client-none-0", folder)
    segment = sorted(folder.glob("*.log"))[0]
    segment.write_bytes(b"\xff" * 100 + segment.read_bytes()[100:])
    partition = ServedPartition(TopicPartition("t", 0), str(folder), Files(1 << 20), told.append)
    for _ in range(2):
        with pytest.raises(LogError):
            partition.log()
    assert len(told) == 1 and "t-0 cannot be served" in told[0]


def test_logged_errors_are_remembered_within_a_bound(tmp_path: Path) -> None:
    told: list[str] = []
    partition = ServedPartition(TopicPartition("t", 0), str(tmp_path), Files(1), told.append)
    for n in range(1000):
        for at in (n, n, 5000):  # 5000 is always among the recent errors
            partition.report(CorruptLog("a wrong CRC", at))
    assert len(told) == len(set(told)) == 1001
    # the first error is forgotten after 1000 other ones
    partition.report(CorruptLog("a wrong CRC", 0))
    assert len(told) == 1002


def test_many_gaps_are_logged_once_while_they_last(tmp_path: Path) -> None:
    told: list[str] = []
    for base in range(0, 240, 2):  # one message for each missing offset
        write_segment(tmp_path / "t-0", base, [batch(base)])
    write_metadata(tmp_path, {"t": {"cleanup.policy": "delete"}})
    partition = ServedPartition(
        TopicPartition("t", 0), str(tmp_path / "t-0"), Files(1), told.append
    )
    for _ in range(3):
        partition.reread()
    assert len(told) == len(set(told)) == 119
    write_segment(tmp_path / "t-0", 1, [batch(1)])
    partition.reread()
    for path in (tmp_path / "t-0").glob("00000000000000000001.*"):
        path.unlink()
    partition.reread()
    assert len(told) == 120 and told[-1] in told[:-1]
