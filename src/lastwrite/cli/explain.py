"""``lastwrite explain``: explains why a partition, a duplicate or a delete is not cleaned yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import typer

from lastwrite.cli import options
from lastwrite.cli.output import (
    Output,
    counted,
    format_size,
    in_local_time,
    local_moment,
    moment,
    quantity,
)
from lastwrite.cli.problems import problem_lines
from lastwrite.reports.explanation import PartitionExplanation, RecordExplanation, Rule, Waiting

EXAMPLES = """
lastwrite explain /var/lib/kafka --topic orders
lastwrite explain /var/lib/kafka --topic orders --partition 0 --key order-1
"""


def explain(
    context: typer.Context,
    path: options.PathArgument,
    system: options.System = None,
    topic: options.Topics = None,
    partition: options.Partition = None,
    key: options.Key = None,
    key_base64: options.KeyBase64 = None,
    key_hex: options.KeyHex = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    topic_config: options.TopicConfig = None,
    topic_config_file: options.TopicConfigFile = None,
    metadata: options.Metadata = None,
    now: options.Now = None,
    include_active: options.IncludeActive = False,
    drop_keyless: options.DropKeyless = False,
    memory: options.Memory = None,
    json: options.Json = False,
) -> int:
    """Explain why a partition is not clean and when it will be.

    With a key, it lists every record of the key, why it is still in the log, and when it will be
    removed. Without a key, it counts the records that wait, by reason. The whole log is read and
    nothing is changed.
    """
    import lastwrite

    output: Output = context.obj
    report = lastwrite.explain(
        path,
        system=system,
        topic=topic,
        partition=partition,
        config=options.settings(output, config, config_file),
        now_ms=now,
        key=options.key_bytes(key, key_base64, key_hex),
        include_active=include_active,
        memory=memory,
        # no progress lines if standard error is a file, because the command ends soon
        progress=output.progress() if sys.stderr.isatty() else None,
        topic_config=options.topic_settings(topic_config, topic_config_file),
        metadata=metadata,
        drop_keyless=drop_keyless,
    )
    if output.as_json:
        output.document(report)
        return report.exit_status
    for number, found in enumerate(report.partitions):
        output.text([*([""] if number else []), *map(in_local_time, _partition(found))])
        output.text(problem_lines(found.problems))
    return report.exit_status


def _partition(found: PartitionExplanation) -> Iterator[str]:
    name = found.topic if found.partition < 0 else f"{found.topic}-{found.partition}"
    yield f"{name}: {found.summary}"
    places = found.in_words
    if places is not None and found.cleanable_bytes is not None:
        yield (
            f"  dirty from {places.first_dirty}, cleanable up to {places.first_uncleanable}, end "
            f"{places.end}: {format_size(found.cleanable_bytes)} cleanable, "
            f"{format_size(found.clean_bytes)} clean"
        )
    for reason in found.reasons:
        yield f"  {reason.rule}: {reason.message}"
        yield f"    ends {reason.change}{_when(reason.at_ms)}"
    if found.waiting is not None and found.records is None:
        yield from _waiting(found.waiting, _can_be_requested(found))
    for each in found.held_for:
        yield f"  deletes are {each.words()}"
    if found.records is not None:
        yield (
            f"  {quantity(len(found.records), 'record')} of the key"
            if found.records
            else "  no record of the key"
        )
        for record in found.records:
            yield from _record(record)


def _can_be_requested(found: PartitionExplanation) -> bool:
    """Whether compaction is possible, but not due, because too little data is dirty."""
    rules = {reason.rule for reason in found.reasons}
    is_refused = rules & {Rule.POLICY, Rule.DAMAGE, Rule.KEYLESS}
    return not (found.is_due or is_refused) and bool(rules & {Rule.CLEAN, Rule.DIRTY_RATIO})


def _waiting(waiting: Waiting, may_be_asked_for: bool) -> Iterator[str]:
    """One line for each reason for which records wait for their removal."""
    horizons = ""
    if waiting.first_horizon_ms is not None and waiting.last_horizon_ms is not None:
        horizons = (
            f", from {local_moment(waiting.first_horizon_ms)} to "
            f"{local_moment(waiting.last_horizon_ms)}"
        )
    for count, what in (
        (waiting.superseded_next, "superseded, dropped by the next round"),
        (
            waiting.superseded_later,
            "superseded, but they or their later writes are above the range",
        ),
        (waiting.aborted_next, "of aborted transactions, dropped by the next round"),
        (waiting.aborted_later, "of aborted transactions, above the range"),
        (waiting.keyless_next, "without a key, which a round would drop"),
        (
            waiting.deletes_due,
            "deletes past their horizon, dropped by the next round"
            + (", or now by compact --drop-expired-deletes" if may_be_asked_for else ""),
        ),
        (waiting.deletes_waiting, f"deletes before their horizon{horizons}"),
        (waiting.deletes_held, "deletes past their horizon that are held back"),
        (waiting.deletes_unstamped, "deletes that get a horizon in the next round"),
        (
            waiting.deletes_never,
            "deletes that never get a horizon: delete.retention.ms is too long",
        ),
        (
            waiting.deletes_bad_horizon,
            "of these with a horizon below 0, which a round replaces; "
            "the broker's cleaner drops such deletes",
        ),
        (
            waiting.deletes_old,
            "deletes of formats v0 and v1, which expire by the time of their file",
        ),
        (waiting.deletes_above, "deletes above the range"),
        (waiting.markers_needed, "transaction markers whose records are still in the log"),
        (waiting.markers_due, "transaction markers past their horizon, dropped by the next round"),
        (waiting.markers_waiting, "transaction markers before their horizon"),
        (waiting.markers_unstamped, "transaction markers that get a horizon in the next round"),
        (
            waiting.markers_never,
            "transaction markers that never get a horizon: delete.retention.ms is too long",
        ),
    ):
        if count:
            yield f"  {counted(count):>9}  {what}"


def _record(record: RecordExplanation) -> Iterator[str]:
    value = "a delete" if record.value_bytes is None else f"{record.value_bytes:,} bytes"
    place = record.message_id or record.offset
    yield (
        f"  @{place}  {moment(record.timestamp_ms)}  {value}, segment {record.segment}, "
        f"{record.part}: {record.fate}"
    )
    yield f"    {record.message}"
    if record.change is not None:
        yield f"    {record.change}{_when(record.at_ms)}"


def _when(at_ms: int | None) -> str:
    return "" if at_ms is None else f": {local_moment(at_ms)}"
