"""An Airflow operator that fetches a topic into an archive and compacts it, and a DAG with it.

Each run updates the asset ``orders``. The extra of its event has the end offsets of the topic.

Tested: Airflow 3.3.2 (``DagBag``, ``DAG.test``) with a log directory and an archive in a folder.
Not tested: Airflow's scheduler and executors, a live cluster, a bucket.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset, BaseOperator, Context
from airflow.sdk.exceptions import AirflowException

import lastwrite

SOURCE = os.environ.get("LASTWRITE_SOURCE", "kafka://kafka:9092")
ARCHIVE = os.environ.get("LASTWRITE_ARCHIVE", "s3://backups/kafka")
TOPIC = "orders"


class CompactTopicOperator(BaseOperator):
    """Fetches ``topic`` from ``source`` into ``archive`` and compacts it. Returns the end offsets."""

    template_fields: Sequence[str] = ("source", "archive", "topic")

    def __init__(
        self, *, source: str, archive: str, topic: str, memory: str = "1g", **options: Any
    ) -> None:
        super().__init__(**options)
        self.source, self.archive, self.topic, self.memory = source, archive, topic, memory

    def execute(self, context: Context) -> dict[str, int]:
        fetched = lastwrite.fetch(self.source, self.archive, topic=self.topic)
        compacted = lastwrite.compact(self.archive, topic=self.topic, memory=self.memory)
        for report in (fetched, compacted):
            if report.exit_status:
                reasons = [each["reason"] for each in report.to_dict()["partitions"]]
                raise AirflowException("; ".join(filter(None, reasons)))
        logs = fetched.to_dict()["partitions"]
        offsets = {str(each["partition"]): each["end_offset"] for each in logs}
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = {"offsets": offsets}
        return offsets


with DAG(
    "compact_orders",
    schedule="7 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
):
    CompactTopicOperator(
        task_id="compact",
        source=SOURCE,
        archive=ARCHIVE,
        topic=TOPIC,
        outlets=[Asset(TOPIC)],
    )
