"""Properties of counting: kernels and slow decoder agree on ledgers of every shape."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look.count import count_ledger
from lastwrite.pulsar.look.inspect import count_entry
from lastwrite.pulsar.look.inspection import EntryCounts
from lastwrite.pulsar.look.walk import walk
from lastwrite.pulsar.store.reading import LedgerReader
from lastwrite.pulsar.store.topic import Ledger, list_topic
from tests.support.pulsar.folders import batch, write_compacted, write_ledger
from tests.support.pulsar.model import Author, ModelTopic, Rules
from tests.support.pulsar.topics import topic_folder


def check(ledger: Ledger, is_compacted: bool) -> None:
    slow = EntryCounts()
    for each in walk(LedgerReader(ledger), is_compacted, lambda problem: None):
        count_entry(slow, each.entry, each.size)
    fast = count_ledger(ledger, is_compacted)
    assert fast is not None
    told = [counts.to_dict() for counts in (fast.contents, slow)]
    for counts in told:
        counts["formats"] = {name: count for name, count in counts["formats"].items() if count}
    assert told[0] == told[1]


@given(st.integers(0, 10**6), st.integers(1, 40), st.booleans())
def test_kernels_and_slow_walk_count_the_same(seed: int, size: int, retain: bool) -> None:
    with tempfile.TemporaryDirectory() as archive:
        folder, author = (
            topic_folder(Path(archive), "persistent://public/default/orders"),
            Author(seed),
        )
        entries = author.entries(size) + [batch([("a", "1"), (None, "2"), ("b", None)])]
        write_ledger(folder, 10, entries, block_bytes=4000)
        model = ModelTopic([(Position(10, number), body) for number, body in enumerate(entries)])
        if model.compact(Rules(retain=retain)) and model.horizon is not None:
            write_compacted(folder, 11, model.compacted, model.horizon)
        topic = list_topic(str(folder))
        check(topic.ledgers[0], False)
        for part in topic.compacted or ():
            check(part, True)


def test_ledgers_of_old_releases_need_the_slow_walk(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, "persistent://public/default/orders")
    write_compacted(
        folder, 11, [(Position(10, 0), batch([("gone", None), ("a", "1")]))], Position(10, 0)
    )
    (ledger,) = list_topic(str(folder)).compacted or ()
    assert count_ledger(ledger, True) is None
