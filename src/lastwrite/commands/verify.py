"""``verify``: is a log what its format promises, and did a compaction keep what compaction
promises?

    lastwrite.verify("/var/lib/kafka")                        # structure
    lastwrite.verify("/var/lib/kafka", before="/backup")      # and nothing was lost

Chooses the system; ``verification.engine`` does the rest. Nothing is written beside scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lastwrite.commands.systems import system_of
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
    """Check the partitions at ``path``, each against what it was at ``before``.

    Args:
        path: a log root, a partition's folder, or one of its files; a store of RocketMQ, whose
            commit log, consume queues and index files are checked too, or a part of one; topic
            folders of Pulsar, which are read in this process.
        before: the same as it was before compaction; None: check the structure only. Two single
            partitions are compared whatever they are called; else partitions meet by name.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        topic, partition: which of what lies there, as for ``compact``; None: all.
        config: settings under upstream's names, as ``compact`` takes them: they say what may be
            missing; Kafka's ``index.interval.bytes`` says how dense indexes should be.
        now_ms: the clock of the compaction. Kafka: a delete may be missing if its horizon had come
            by then, and the last batch of a producer that was forgotten by then; None: a delete if
            it had any horizon, a batch if its producer is forgotten by now. RocketMQ: a delete if
            its store time and ``delete.retention.ms`` had passed by then; None: by now.
        memory, spark, master, conf, progress: as for ``compact``.
        drop_keyless: of a Kafka topic, records without a key were to go; else a missing one is a
            broken promise.

    Raises:
        NotALog, InvalidConfig: nothing was begun.
        LogHeld: a broker or another run holds one of the logs.
        EnvironmentUnfit: Java or Spark is missing.

    Damage and broken promises do not raise: they stand in the report.
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
    found = system_of(question.path, system)
    if question.before is not None:
        system_of(question.before, system)  # a topic's address is not read from either
    proof = proof_of(found)
    return engine.verify(proof, question, spark, master, memory, conf or {}, progress)
