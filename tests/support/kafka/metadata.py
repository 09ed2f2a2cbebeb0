"""Writes a cluster's metadata log for tests, with settings of topics and brokers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record

TOPIC_ID = b"0123456789abcdef"
FOLDER = "__cluster_metadata-0"


def text(content: str | None) -> bytes:
    return b"\0" if content is None else bytes([len(content) + 1]) + content.encode()


def topic(name: str, topic_id: bytes = TOPIC_ID) -> bytes:
    return b"\1\2\0" + text(name) + topic_id + b"\0"


def setting(whose: str, name: str, value: str | None, kind: int = 2) -> bytes:
    return b"\1\4\0" + bytes([kind]) + text(whose) + text(name) + text(value) + b"\0"


def partition(
    number: int,
    topic_id: bytes,
    replicas: Sequence[int] = (1,),
    leader_epoch: int = 0,
    directories: Sequence[bytes] = (),
) -> bytes:
    """A PartitionRecord of version 1."""
    brokers = bytes([len(replicas) + 1]) + struct.pack(f">{len(replicas)}i", *replicas)
    said = struct.pack(">iii", replicas[0], leader_epoch, 0)
    roots = bytes([len(directories) + 1]) + b"".join(directories)
    head = b"\1\3\1" + struct.pack(">i", number) + topic_id
    return head + brokers + brokers + b"\1\1" + said + roots + b"\0"


def registration(node: int, host: str, port: int) -> bytes:
    """A RegisterBrokerRecord of version 0 with one listener."""
    point = text("PLAINTEXT") + text(host) + struct.pack(">Hh", port, 0) + b"\0"
    head = struct.pack(">i", node) + bytes(16) + struct.pack(">q", 1)
    return b"\1\0\0" + head + b"\2" + point + b"\1" + text(None) + b"\0" + b"\0"


def new_leader(number: int, topic_id: bytes, leader: int = 1) -> bytes:
    """A PartitionChangeRecord with a new leader, which begins a leader epoch."""
    return b"\1\5\0" + struct.pack(">i", number) + topic_id + b"\1\1\4" + struct.pack(">i", leader)


def write_records(root: Path, name: str, first_offset: int, *values: bytes) -> Path:
    """Write a file of the metadata log in ``root``, with one batch for each record."""
    folder = root / FOLDER
    folder.mkdir(exist_ok=True, parents=True)
    batches = [
        encode_batch([Record(offset, 0, None, value)], base_offset=offset)
        for offset, value in enumerate(values, first_offset)
    ]
    (folder / name).write_bytes(b"".join(batches))
    return folder / name


def write_metadata(
    root: Path,
    topics: Mapping[str, Mapping[str, str]],
    brokers: Mapping[str, Mapping[str, str]] | None = None,
) -> Path:
    """Write the metadata log in ``root``, and return its folder.

    ``brokers`` has dynamic settings by node id. The id "" means all brokers.
    """
    values = []
    for number, (name, settings) in enumerate(topics.items()):
        values.append(topic(name, number.to_bytes(16, "big")))
        values += [setting(name, key, value) for key, value in settings.items()]
    for node, settings in (brokers or {}).items():
        values += [setting(node, key, value, kind=4) for key, value in settings.items()]
    return write_records(root, f"{0:020d}.log", 0, *values).parent


def write_identity(root: Path, cluster: str, node: int = 1) -> None:
    """Write ``meta.properties``, which has the cluster and node id of the log root."""
    root.mkdir(exist_ok=True, parents=True)
    (root / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id={node}\n")
