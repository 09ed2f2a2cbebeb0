"""The sample topic in this package: the files of ``orders-0`` as a Kafka 4.4.0 broker wrote them.

``sample/last-writes.jsonl`` has the last write of each key, as a Kafka consumer found it by
reading the topic (``tests/corpus/make_sample.py``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from lastwrite.demo.demo_topic import WrittenTopic
from lastwrite.demo.proof import read_table
from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress

SAMPLE = Path(__file__).parent / "sample"
_LAST_WRITES = "last-writes.jsonl"
_SEGMENT_BYTES = 131_072
_SQL = """\
SELECT get_json_object(value, '$.state') AS state, count(*) AS orders,
       date(max(timestamp)) AS last_write, sum(count(*)) OVER () AS of
FROM topic GROUP BY state ORDER BY orders DESC, state LIMIT 5"""


class SampleTopic:
    """The sample topic: 12,000 states of 1,500 orders, which a real broker wrote."""

    name = TopicPartition("orders", 0)
    write_stage = "copy the sample"
    compare_stage = "compare"
    sql = _SQL
    settings: Mapping[str, object] = {"cleanup.policy": "compact"}

    def write(self, root: str, progress: Progress) -> WrittenTopic:
        """Copy the sample topic to ``root``, and close its active segment as a broker does."""
        progress.stage(self.write_stage, 0)
        for source in sorted(each for each in SAMPLE.rglob("*") if each.is_file()):
            if source.name != _LAST_WRITES:
                target = Path(root, source.relative_to(SAMPLE))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        folder = Path(root, str(self.name))
        table = read_table(str(folder))
        (folder / segment_file_name(table.records, KafkaFileKind.LOG)).touch()
        return WrittenTopic(
            str(folder),
            table.records,
            table.tombstones,
            table.keys,
            table.bytes,
            table.segments + 1,
            _SEGMENT_BYTES,
        )

    def live_keys(self) -> Mapping[bytes, bytes]:
        lines = (SAMPLE / _LAST_WRITES).read_text(encoding="utf-8").splitlines()
        entries = (json.loads(line) for line in lines)
        return {key.encode(): value.encode() for key, value in entries if value is not None}
