"""Features, quotas, settings and SCRAM credentials in a cluster's metadata log.

Source: Kafka 4.4 ``FeaturesDelta``, ``ClientQuotasDelta``, ``ConfigurationsDelta``, ``ScramDelta``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lastwrite.errors import TruncatedLog, UnsupportedFormat
from lastwrite.kafka.cluster.message import MessageReader
from lastwrite.kafka.cluster.metadata_log import records_of
from lastwrite.kafka.cluster.metadata_record import Transaction
from lastwrite.kafka.cluster.metadata_tables import FRAME_VERSION, METADATA_RECORDS
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.names import KafkaFileKind, Suffix, classify

_REGISTRATION, _CONFIG, _SCRAM, _FEATURE, _QUOTA, _NO_SCRAM = 0, 4, 11, 12, 14, 22
_NUMBERS = (_REGISTRATION, _CONFIG, _SCRAM, _FEATURE, _QUOTA, _NO_SCRAM)
_METADATA_VERSION = "metadata.version"
BROKER, CLIENT_METRICS, GROUP = 4, 16, 32  # resource types in ``configs``

# (entity type, entity name) pairs of a quota. The name None means the default entity.
QuotaEntity = tuple[tuple[str, str | None], ...]


class LogEnd(NamedTuple):
    """The end of the metadata log: its end offset and leader epoch."""

    offset: int = 0
    leader_epoch: int = 0


@dataclass(slots=True)
class ClusterState:
    """The features, quotas, settings and users of a cluster, from its metadata records."""

    end: LogEnd = field(default_factory=LogEnd)
    # finalized level of each feature, by name
    finalized: dict[str, int] = field(default_factory=dict)
    # lowest and highest supported level by feature name
    supported: dict[str, tuple[int, int]] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    # settings by (resource type, resource name)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    # iteration count of each SCRAM credential, by user and mechanism
    scram: dict[str, dict[int, int]] = field(default_factory=dict)

    def apply(self, number: int, fields: Mapping[str, Any]) -> None:
        """Apply a record of type ``number`` with these fields."""
        if number == _REGISTRATION:
            self.supported = {
                each["name"]: (each["minSupportedVersion"], each["maxSupportedVersion"])
                for each in fields["features"]
            }
        elif number == _FEATURE:
            _set(self.finalized, fields["name"], fields["featureLevel"] or None)
        elif number == _CONFIG:
            resource = fields["resourceType"], fields["resourceName"]
            settings = self.configs.setdefault(resource, {})
            _set(settings, fields["name"], fields["value"])
            if not settings:
                del self.configs[resource]
        elif number in (_SCRAM, _NO_SCRAM):
            mechanisms = self.scram.setdefault(fields["name"], {})
            iterations = fields["iterations"] if number == _SCRAM else None
            _set(mechanisms, fields["mechanism"], iterations)
            if not mechanisms:
                del self.scram[fields["name"]]
        else:
            entity = tuple((each["entityType"], each["entityName"]) for each in fields["entity"])
            entity = tuple(sorted(entity, key=lambda each: each[0]))
            quotas = self.quotas.setdefault(entity, {})
            _set(quotas, fields["key"], None if fields["remove"] else fields["value"])
            if not quotas:
                del self.quotas[entity]


def _set(values: dict[Any, Any], name: Any, value: Any) -> None:
    """Set ``name`` to a value in a dictionary. The value None removes ``name``."""
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def read_cluster_state(folder: str) -> ClusterState:
    """The cluster's state after all records of the metadata log in ``folder``.

    Raises:
        CorruptLog, UnsupportedFormat: the metadata log is damaged or has an unknown version.
        LogError: a file cannot be read.
    """
    state = ClusterState(_end_of(folder))
    pending: list[tuple[int, Mapping[str, Any]]] | None = None  # records of an open transaction
    for number, fields in records_of(folder, _decode):
        if number in _TRANSACTION:
            for each in (pending or ()) if number == Transaction.END.value else ():
                state.apply(*each)
            pending = [] if number == Transaction.BEGIN.value else None
        elif pending is not None:
            pending.append((number, fields))
        else:
            state.apply(number, fields)
    return state


_TRANSACTION = tuple(each.value for each in Transaction)


def _decode(value: bytes) -> tuple[int, Mapping[str, Any]] | None:
    reader = MessageReader(value)
    frame = reader.unsigned()
    if frame != FRAME_VERSION:
        raise UnsupportedFormat(f"the metadata record has frame version {frame}", 0)
    number, version = reader.unsigned(), reader.unsigned()
    if number in _NUMBERS:
        return number, METADATA_RECORDS[number].decode(value, version, reader.position)[0]
    return (number, {}) if number in _TRANSACTION else None


def _end_of(folder: str) -> LogEnd:
    """The later of two ends in the metadata log: the last segment's and the last snapshot's."""
    end = LogEnd()
    for name in sorted(os.listdir(folder)):
        file = classify(name)
        if file.suffix is not Suffix.LIVE:
            continue
        if file.kind is KafkaFileKind.METADATA_SNAPSHOT:
            end = max(end, LogEnd(file.offset or 0, int(name.split("-")[1].partition(".")[0])))
        elif file.kind is KafkaFileKind.LOG:
            end = max(end, _end_of_segment(os.path.join(folder, name)))
    return end


def _end_of_segment(path: str) -> LogEnd:
    with Path(path).open("rb") as file:
        view = memoryview(file.read())
    at, end = 0, LogEnd()
    while at < len(view):
        try:
            header = decode_batch_header(view, at)
        except TruncatedLog:  # a torn tail, which a broker truncates
            break
        at += header.size_bytes
        if at > len(view):
            break
        end = LogEnd(header.last_offset + 1, header.partition_leader_epoch)
    return end
