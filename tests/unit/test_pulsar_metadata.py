"""Tests of ledger, topic and cursor metadata: messages, nodes and exported JSON."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from lastwrite.errors import (
    CorruptLog,
    InvalidConfig,
    LogError,
    OutOfMemoryBudget,
    TruncatedLog,
    UnsupportedFormat,
)
from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.compacted import ledger_custom_metadata
from lastwrite.pulsar.format.ledger_metadata import (
    Digest,
    Ensemble,
    LedgerMetadata,
    LedgerState,
    custom_items,
)
from lastwrite.pulsar.format.managed_ledger import (
    CursorInfo,
    DriverMetadata,
    LedgerInfo,
    LongProperty,
    ManagedLedgerInfo,
    NestedPosition,
    OffloadContext,
    OffloadSegment,
    PositionInfo,
    Property,
    from_json,
    unwrapped,
    wrapped,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.protobuf import put
from tests.support.pulsar.bytes import EXAMPLES, T

ID = UUID("ff23abcd-0000-4000-8000-00000000beef")

CLOSED = LedgerMetadata(
    quorum=2,
    ensemble=3,
    length=65,
    last_entry=1,
    state=LedgerState.CLOSED,
    ensembles=(Ensemble(bookies=("a:3181", "b:3181", "c:3181"), first_entry=0),),
    digest=Digest.CRC32,
    password=b"",
    ack_quorum=2,
    ctime_ms=T,
    custom_items=custom_items(ledger_custom_metadata("persistent://t/n/x", Position(10, 2))),
    ctoken=5,
)

OPEN = LedgerInfo(ledger=15)
INFO = ManagedLedgerInfo(
    ledgers=(
        LedgerInfo(
            ledger=10,
            entries=3,
            size_bytes=200,
            closed_ms=T,
            offload=OffloadContext(
                uid_msb=-62_000_000_000_000,
                uid_lsb=1 << 62,
                complete=True,
                bookkeeper_deleted=False,
                timestamp_ms=T,
                driver=DriverMetadata(name="S3", properties=(Property(name="bucket", value="b"),)),
                segments=(OffloadSegment(uid_msb=0, uid_lsb=7, complete=True, end_entry=2),),
            ),
            properties=(Property(name="p", value="v"),),
        ),
        LedgerInfo(
            ledger=12,
            entries=1,
            size_bytes=40,
            closed_ms=T + 1,
            offload=OffloadContext.of_uuid(ID, complete=False),
        ),
        OPEN,
    ),
    terminated=NestedPosition(ledger=12, entry=0),
    properties=(Property(name="owner", value="me"),),
)


def test_ledger_node_round_trips() -> None:
    node = CLOSED.encode_node()
    assert node.startswith(b"BookieMetadataFormatVersion\t3\n")
    assert LedgerMetadata.decode_node(node) == CLOSED == LedgerMetadata.decode(CLOSED.encode())
    assert CLOSED.is_closed and CLOSED.compacted_topic == "persistent://t/n/x"
    begin = node.index(b"\n") + 1
    for cut in range(len(node)):
        with pytest.raises(CorruptLog if cut < begin else TruncatedLog):
            LedgerMetadata.decode_node(node[:cut])
    with pytest.raises(CorruptLog, match="bytes follow"):
        LedgerMetadata.decode_node(node + b"\0")


def test_ordinary_ledger_is_not_a_compacted_one() -> None:
    plain = LedgerMetadata(quorum=1, ensemble=1, length=0, state=LedgerState.OPEN)
    assert plain.compacted_topic is None and not plain.is_closed and plain.custom == {}


TEXT = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 65
lastEntryId: 1
state: CLOSED
segment {
  ensembleMember: "a:3181"
  ensembleMember: "b:3181"
  firstEntryId: 0
}
segment {
  ensembleMember: "c:3181"
  firstEntryId: 1
}
digestType: CRC32C
password: "\\001x\\n\\""
ackQuorumSize: 2
customMetadata {
  key: "component"
  value: "compacted-ledger"
}
customMetadata {
  key: "pulsar/compactedTo"
  value: "\\b\\n\\020\\002"
}
ctime: 1700000000000
"""


def test_text_ledger_node_is_decoded() -> None:
    found = LedgerMetadata.decode_node(TEXT)
    assert (found.quorum, found.ensemble, found.length, found.last_entry, found.ack_quorum) == (
        2,
        3,
        65,
        1,
        2,
    )
    assert (found.state, found.digest, found.ctime_ms) == (LedgerState.CLOSED, Digest.CRC32C, T)
    assert found.password == b'\x01x\n"'
    assert found.ensembles == (
        Ensemble(bookies=("a:3181", "b:3181"), first_entry=0),
        Ensemble(bookies=("c:3181",), first_entry=1),
    )
    assert found.custom == {
        "component": b"compacted-ledger",
        "pulsar/compactedTo": bytes.fromhex("080a1002"),
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"quorumSize: 2", b""),
        (b"length: 65", b"length: x"),
        (b"segment {", b"segment { {"),
        (b"  firstEntryId: 0\n}", b"  firstEntryId: 0"),
        (b"length: 65", b"65"),
        (b"length: 65", b"}"),
        (b"length: 65", b"length: 65 65"),
        (b"length: 65", b'length: "'),
        (b"ctime: 1700000000000\n", b"ctime:"),
    ],
)
def test_malformed_text_node_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(CorruptLog):
        LedgerMetadata.decode_node(TEXT.replace(old, new, 1))


def test_other_node_versions_are_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="version 1"):
        LedgerMetadata.decode_node(b"BookieMetadataFormatVersion\t1\n2\n3\n")
    for text in (b"", b"BookieMetadataFormatVersion\tx\n", b"something else\n"):
        with pytest.raises(CorruptLog):
            LedgerMetadata.decode_node(text)


@pytest.mark.parametrize("codec", list(PulsarCodec))
def test_topic_node_round_trips_in_each_codec(codec: PulsarCodec) -> None:
    node = wrapped(INFO.encode(), codec)
    assert ManagedLedgerInfo.decode_node(node) == INFO
    assert (node[:2] == b"\x47\x78") == (codec is not PulsarCodec.NONE)
    if codec:
        for cut in range(2, len(node)):
            try:
                found = unwrapped(node[:cut])
            except CorruptLog:
                continue
            assert found == INFO.encode()  # only the final flush of a zlib stream may be missing


def test_malformed_compressed_node_is_refused() -> None:
    for head in (b"", b"\xff\xff\xff\xff", b"\x00\x00\x10\x00", b"\x00\x00\x00\x02\x08\x01"):
        with pytest.raises(CorruptLog):
            unwrapped(b"\x47\x78" + head)
    head = put(1, 3) + put(2, (1 << 31) - 1)
    with pytest.raises((CorruptLog, OutOfMemoryBudget)):
        unwrapped(b"\x47\x78" + len(head).to_bytes(4, "big") + head + b"xx")
    head = put(1, 9) + put(2, 1)
    with pytest.raises(UnsupportedFormat):
        unwrapped(b"\x47\x78" + len(head).to_bytes(4, "big") + head + b"xx")


def test_topic_node_lists_its_ledgers() -> None:
    first, second, last = INFO.ledgers
    assert first.is_closed and not last.is_closed
    assert (
        not LedgerInfo(ledger=1, entries=0, closed_ms=0).is_closed
        and LedgerInfo(ledger=1, entries=0).is_closed
    )
    assert first.offloaded_as == UUID(int=((1 << 64) - 62_000_000_000_000) << 64 | 1 << 62)
    assert second.offload is not None and second.offload.uuid == ID and second.offloaded_as is None
    assert last.offloaded_as is None and OPEN.encode() == bytes.fromhex("080f")
    assert first.offload is not None and first.offload.segments[0].uuid == UUID(int=7)
    assert OffloadContext().uuid is None


def test_cursor_node_gives_the_horizon() -> None:
    found = PositionInfo.decode_node(EXAMPLES["P0"])
    assert (found.horizon, found.compacted_ledger) == (Position(10, 5), 77)
    assert found.encode() == EXAMPLES["P0"]
    assert PositionInfo.decode_node(wrapped(EXAMPLES["P0"], PulsarCodec.LZ4)) == found
    cursor = CursorInfo(
        cursors_ledger=-1,
        mark_delete_ledger=11,
        mark_delete_entry=-1,
        properties=(LongProperty(name="CompactedTopicLedger", value=77),),
    )
    assert CursorInfo.decode_node(cursor.encode()) == cursor
    assert (cursor.horizon, cursor.compacted_ledger) == (Position(11, -1), 77)
    assert (
        CursorInfo(cursors_ledger=20).horizon,
        CursorInfo(cursors_ledger=20).compacted_ledger,
    ) == (None, None)


# ---------------------------------------------------------------- JSON


def test_json_with_protobuf_names_is_decoded() -> None:
    document = {
        "ledgerInfo": [
            {
                "ledgerId": "10",
                "entries": "3",
                "size": 200,
                "timestamp": T,
                "offloadContext": {
                    "uidMsb": "-62000000000000",
                    "uidLsb": str(1 << 62),
                    "complete": True,
                    "bookkeeperDeleted": False,
                    "timestamp": T,
                    "driverMetadata": {
                        "name": "S3",
                        "properties": [{"key": "bucket", "value": "b"}],
                    },
                    "offloadSegment": [
                        {"uidMsb": 0, "uidLsb": 7, "complete": True, "endEntryId": 2}
                    ],
                },
                "properties": [{"key": "p", "value": "v"}],
            },
            {
                "ledgerId": 12,
                "entries": 1,
                "size": 40,
                "timestamp": T + 1,
                "offloadContext": {
                    "uidMsb": (ID.int >> 64) - (1 << 64),
                    "uidLsb": (ID.int & (1 << 64) - 1) - (1 << 64),
                    "complete": False,
                },
            },
            {"ledgerId": 15},
        ],
        "terminatedPosition": {"ledgerId": 12, "entryId": 0},
        "properties": {"owner": "me"},
    }
    found = from_json(json.dumps(document))
    assert found.info == INFO
    assert (found.horizon, found.compacted_ledger, found.last_confirmed) == (None, None, None)


def test_json_of_info_internal_is_decoded() -> None:
    document = {
        "version": 3,
        "creationDate": "2026-11-21T18:00:00Z",
        "modificationDate": "2026-11-21T18:00:00Z",
        "ledgers": [
            {
                "ledgerId": 10,
                "entries": 3,
                "size": 200,
                "timestamp": T,
                "isOffloaded": True,
                "offloadedContextUuid": str(ID),
            },
            {"ledgerId": 15, "isOffloaded": False},
        ],
        "cursors": {
            "__compaction": {
                "version": 1,
                "cursorsLedgerId": -1,
                "markDelete": {"ledgerId": 10, "entryId": 2},
                "properties": {"CompactedTopicLedger": 77},
            }
        },
    }
    found = from_json(json.dumps(document))
    assert [(one.ledger, one.entries, one.offloaded_as) for one in found.info.ledgers] == [
        (10, 3, ID),
        (15, None, None),
    ]
    assert (found.horizon, found.compacted_ledger) == (Position(10, 2), 77)
    assert [one.is_closed for one in found.info.ledgers] == [True, False]


def test_json_of_stats_internal_is_decoded() -> None:
    document = {
        "entriesAddedCounter": 9,
        "numberOfEntries": 9,
        "currentLedgerEntries": 5,
        "currentLedgerSize": 90,
        "lastConfirmedEntry": "15:4",
        "state": "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": 10,
                "entries": 4,
                "size": 100,
                "offloaded": True,
                "underReplicated": False,
            },
            {"ledgerId": 15, "entries": 0, "size": 0, "offloaded": False, "underReplicated": False},
        ],
        "cursors": {
            "__compaction": {
                "markDeletePosition": "11:-1",
                "cursorLedger": 16,
                "properties": {"CompactedTopicLedger": 77},
            },
            "reader": {"markDeletePosition": "15:4", "properties": {}},
        },
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": 77,
            "entries": 2,
            "size": 50,
            "offloaded": False,
            "underReplicated": False,
        },
    }
    found = from_json(json.dumps(document))
    assert [(one.ledger, one.entries, one.is_closed) for one in found.info.ledgers] == [
        (10, 4, True),
        (15, None, False),
    ]
    assert (found.horizon, found.compacted_ledger) == (Position(11, -1), 77)
    assert found.last_confirmed == Position(15, 4)
    # the export has no closing time
    assert [one.closed_ms for one in found.info.ledgers] == [None, None]
    closed = from_json(json.dumps({**document, "state": "ClosedLedger", "cursors": {}}))
    assert closed.info.ledgers[1].is_closed and closed.horizon is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", CorruptLog),
        ("{", CorruptLog),
        ("[" * 100_000, CorruptLog),
        ("[]", InvalidConfig),
        ("{}", InvalidConfig),
        ('{"ledgers": 3}', CorruptLog),
        ('{"ledgers": [3]}', CorruptLog),
        ('{"ledgers": [{}]}', CorruptLog),
        ('{"ledgers": [{"ledgerId": null}]}', CorruptLog),
        ('{"ledgers": [{"ledgerId": 1.5}]}', CorruptLog),
        ('{"ledgers": [{"ledgerId": 1e999}]}', CorruptLog),
        ('{"ledgers": [{"ledgerId": 9223372036854775808}]}', CorruptLog),
        ('{"ledgers": [{"ledgerId": 1, "offloadedContextUuid": "x"}]}', CorruptLog),
        ('{"ledgers": [], "lastConfirmedEntry": "x"}', InvalidConfig),
        ('{"ledgerInfo": [{"ledgerId": "x"}]}', CorruptLog),
        ('{"ledgerInfo": [{"ledgerId": 1, "offloadContext": 3}]}', CorruptLog),
        ('{"ledgerInfo": [], "cursors": 3}', CorruptLog),
    ],
)
def test_other_json_is_refused(text: str, error: type[LogError]) -> None:
    with pytest.raises(error):
        from_json(text)
