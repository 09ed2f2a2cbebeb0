"""Tests that a path above a log root, such as a mount point, is refused with the log root's name."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import NotALog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.kafka.logs import write_segment


@pytest.mark.parametrize("below", ["kafka-log0", "data-0/kafka-log0"])
def test_log_root_below_the_path_is_named(tmp_path: Path, below: str) -> None:
    volume = tmp_path / "volume"
    write_segment(volume / below / "orders-0", 0, [encode_batch([Record(0, 1, b"k", b"v")])])
    (volume / "lost+found").mkdir()
    for command in (
        lambda: lastwrite.inspect(str(volume)),
        lambda: lastwrite.explain(str(volume)),
        lambda: list(lastwrite.dump(str(volume))),
        lambda: lastwrite.fetch(str(volume), str(tmp_path / "archive")),
    ):
        with pytest.raises(NotALog) as caught:
            command()
        assert str(caught.value.remedy).endswith(f"below this folder: {volume / below}")
        assert "ledger" not in str(caught.value.remedy)
    assert lastwrite.fetch(str(volume / below), str(tmp_path / "archive")).exit_status == 0


def test_path_without_a_log_is_refused_without_naming_one_system(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="no such file or folder"):
        lastwrite.fetch(str(tmp_path / "nothing"), str(tmp_path / "archive"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALog, match="no Kafka log, RocketMQ store or Pulsar ledger"):
        lastwrite.fetch(str(tmp_path / "empty"), str(tmp_path / "archive"))
