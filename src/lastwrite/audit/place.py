"""Whose files lie at a path, without starting anything."""

from __future__ import annotations

from lastwrite.logstore.pulsar import single as pulsar_single
from lastwrite.logstore.pulsar import topic as pulsar_topic
from lastwrite.logstore.rocketmq import reading as rocketmq_reading

KAFKA, ROCKETMQ, PULSAR = "kafka", "rocketmq", "pulsar"


def system_of(path: str, system: str | None) -> str:
    """The system whose files ``path`` is looked at as: the one that was given, else by what lies there; Kafka where
    nothing of the others does.

    Raises:
        InvalidConfig: no such system.
    """
    if system is not None:
        from lastwrite.pipeline.system import system_named  # not before it is needed

        return system_named(system).name
    if rocketmq_reading.locate(path) is not None:
        return ROCKETMQ
    is_pulsar = pulsar_topic.locate(path) is not None or pulsar_single.kind_of(path) is not None
    return PULSAR if is_pulsar else KAFKA
