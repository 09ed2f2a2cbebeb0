"""A Dagster asset: a topic's archive, fetched from the cluster and compacted.

The data version of the asset is its end offsets. If a run finds no new records, the version stays
the same, and Dagster does not regard the assets behind it as stale.

Tested: Dagster 1.13.29 (``dagster.materialize``) with a log directory and an archive in a folder.
Not tested: Dagster's daemon and web server, a live cluster, a bucket.
"""

from __future__ import annotations

import json
import os

import dagster as dg

import lastwrite

SOURCE = os.environ.get("LASTWRITE_SOURCE", "kafka://kafka:9092")
ARCHIVE = os.environ.get("LASTWRITE_ARCHIVE", "s3://backups/kafka")
TOPIC = "orders"


@dg.asset(name=TOPIC, kinds={"kafka"}, pool="lastwrite")
def compacted_topic() -> dg.MaterializeResult:
    """The last write of every key of the topic, as an archive."""
    fetched = lastwrite.fetch(SOURCE, ARCHIVE, topic=TOPIC)
    compacted = lastwrite.compact(ARCHIVE, topic=TOPIC, memory="1g")
    for report in (fetched, compacted):
        if report.exit_status:
            reasons = [each["reason"] for each in report.to_dict()["partitions"]]
            raise dg.Failure("; ".join(filter(None, reasons)))
    logs = fetched.to_dict()["partitions"]
    offsets = {str(each["partition"]): each["end_offset"] for each in logs}
    return dg.MaterializeResult(
        data_version=dg.DataVersion(json.dumps(offsets, sort_keys=True)),
        metadata={
            "fetched_bytes": sum(each["bytes"] for each in logs),
            "bytes_before": sum(each.bytes_before for each in compacted.partitions),
            "bytes_after": sum(each.bytes_after for each in compacted.partitions),
        },
    )


hourly = dg.ScheduleDefinition(name="hourly", target=[compacted_topic], cron_schedule="7 * * * *")
defs = dg.Definitions(assets=[compacted_topic], schedules=[hourly])
