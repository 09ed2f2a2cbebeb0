"""Partitions that several connections ask for at once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.server.catalog import Partition
from lastwrite.server.files import Files
from tests.golden.commands import CORPUS


class Counted(Partition):
    """Its first listing waits until it is let go."""

    listings = 0
    go_on = Event()

    def listed(self) -> PartitionLog:
        self.listings += 1
        assert self.go_on.wait(20)
        return super().listed()


def test_who_waits_for_it_to_be_read_does_not_read_it_again(tmp_path: Path) -> None:
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
    assert partition.again() is not partition.again()
