"""``verify``: checks that a log is intact, and that a compaction lost nothing.

    lastwrite.verify("/var/lib/kafka")                        # structure
    lastwrite.verify("/var/lib/kafka", before="/backup")      # structure, and that nothing was lost

This module selects the system; ``verification.engine`` does the work. Only scratch files are
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lastwrite.commands.systems import AUTOMQ, KAFKA, system_of, system_to_read
from lastwrite.config.keyless import may_drop
from lastwrite.config.stores import store_settings
from lastwrite.model.progress import Progress
from lastwrite.reports.verification import VerifyReport
from lastwrite.storage.choice import Topics
from lastwrite.storage.objects import address
from lastwrite.verification import engine
from lastwrite.verification.proof import Question, proof_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.inline import Inline


def verify(
    path: str,
    before: str | None = None,
    *,
    system: str | None = None,
    metadata: str | None = None,
    topic: Topics = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    drop_keyless: bool = False,
) -> VerifyReport:
    """Check the partitions at ``path``, and compare each with its state at ``before``.

    Args:
        path: a log root, a partition's folder, or one of its files. Or a RocketMQ store, whose
            commit log, consume queues and index files are checked too, or a part of one. Or topic
            folders of Pulsar, which are read in this process.
        before: the same log before compaction. None means: check the structure only. Partitions
            are matched by name; two single partitions are compared even if their names differ.
        system: ``kafka``, ``rocketmq``, ``pulsar`` or ``automq``. None means: detect it from the
            files.
        metadata: AutoMQ: the path of the cluster's metadata log, ``__cluster_metadata-0``. If
            ``before`` is given, it is the bucket.
        topic, partition: selection as for ``compact``. None means all.
        config: settings by upstream's names, as for ``compact``. They decide which records may be
            missing. Kafka's ``index.interval.bytes`` is the expected density of indexes.
        now_ms: the time of the compaction. Kafka: a delete may be missing if its horizon had
            passed by then. A producer's last batch may be missing if the producer had expired by
            then. None means: any delete with a horizon may be missing, and the last batches of
            producers that have expired by now. RocketMQ: a delete may be missing if its store
            time plus ``delete.retention.ms`` had passed by then. None means now.
        memory, spark, master, conf, progress: as for ``compact``.
        drop_keyless: Kafka: the compaction was allowed to drop records without a key. Otherwise, a
            missing one is a violation.

    Raises:
        NotALog, InvalidConfig: nothing was done.
        LogHeld: a broker or another run has locked one of the logs.
        EnvironmentUnfit: Java or Spark is missing.

    Damage and violations do not raise. The report contains them.
    """
    address.use(store_settings(config))
    question = Question(
        path=str(path),
        before=None if before is None else str(before),
        topic=topic,
        partition=partition,
        config=may_drop(config, drop_keyless),
        now_ms=now_ms,
    )
    if question.before is None:
        found = system_to_read(question.path, system, metadata)
    else:
        system_to_read(question.before, system, metadata)
        found = system_of(question.path, KAFKA if system == AUTOMQ else system)
    proof = proof_of(found)
    return engine.verify(proof, question, spark, master, memory, conf or {}, progress)
