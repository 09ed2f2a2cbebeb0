"""Properties of ``explain`` on Pulsar: it predicts the next compaction of every key."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given

import lastwrite
from lastwrite.pulsar.format.entry import decode_entry, messages_of
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.place import name_of
from lastwrite.reports.explanation import PartitionExplanation, RecordOutcome
from tests.property.test_pulsar_compaction import EVENT_TIME, Life, life, rules, run, seeds
from tests.support.pulsar.model import START_MS, Rules, is_part, is_undecodable


def explained(topic: Life, rules: Rules, key: bytes | None) -> PartitionExplanation:
    (found,) = lastwrite.explain(
        str(topic.folder),
        config={
            "topicCompactionRetainNullKey": rules.retain,
            **({"compactionServiceFactoryClassName": EVENT_TIME} if rules.event_time else {}),
        },
        now_ms=START_MS,
        key=key,
    ).partitions
    assert found.problems == []
    return found


def ids_by_key(
    entries: Iterable[tuple[Position, bytes]], partition: int, rules: Rules
) -> dict[bytes, list[str]]:
    """The ids of the messages that compete for each key, in the order of the log."""
    found: dict[bytes, list[str]] = {}
    for place, body in entries:
        entry = decode_entry(body, *place)
        said = f"{place.ledger}:{place.entry}:{partition}"
        if entry.is_marker or is_undecodable(entry):
            continue
        if entry.is_readable_batch:
            for message in messages_of(entry):
                if message.key is not None and not message.compacted_out:
                    found.setdefault(message.key, []).append(f"{said}:{message.index}")
        elif entry.metadata.partition_key is not None:
            if not (rules.event_time and is_part(entry, rules)):
                found.setdefault(entry.metadata.partition_key, []).append(said)
    return found


def beyond(topic: Life) -> list[tuple[Position, bytes]]:
    horizon = topic.model.horizon
    return [each for each in topic.model.raw if horizon is None or each[0] > horizon]


@given(seeds, rules())
def test_explain_predicts_exactly_the_messages_that_the_next_round_removes(
    seed: int, rules: Rules
) -> None:
    rules = Rules(rules.retain, rules.event_time, like_broker=False)
    with life(seed, entries=15) as topic:
        partition = name_of(str(topic.folder)).partition
        for _ in range(2):
            topic.grow()
            before = ids_by_key([*topic.model.compacted, *beyond(topic)], partition, rules)
            said = {key: explained(topic, rules, key) for key in before}
            total = explained(topic, rules, None)
            moved = topic.model.compact(rules)
            (report,) = run(topic.folder, rules).partitions
            assert total.is_due == moved
            assert moved or total.reasons
            after = ids_by_key([*topic.model.compacted, *beyond(topic)], partition, rules)
            for key, ids in before.items():
                records = said[key].records
                assert records is not None
                assert [each.message_id for each in records] == ids
                gone = [each for each in ids if each not in after.get(key, [])]
                going = [
                    each.message_id for each in records if each.fate is RecordOutcome.NEXT_ROUND
                ]
                assert not moved or going == gone
                assert all(
                    (each.fate is RecordOutcome.STAYS) == (each.change is None) for each in records
                )
            if moved:
                assert total.waiting is not None and report.verdicts is not None
                assert total.waiting.superseded_next == report.verdicts["shadowed"]
                assert total.waiting.keyless_next == report.verdicts["keyless"]
                assert total.waiting.deletes_due == report.verdicts["expired"]
                assert total.waiting.aborted_next == report.verdicts["aborted"]
