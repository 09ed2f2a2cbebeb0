"""Tests of a real broker's tiered segments (KIP-405), compared with its consumer.

``tests/corpus/make_tiered.py`` makes the segments.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import CorruptLog, InvalidConfig
from lastwrite.kafka.cluster.remote_log_metadata import FINISHED, decode_segment_state
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store import tier_and_root
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects.bucket import BucketStore
from tests.support.files import contents
from tests.support.kafka.logs import headers_of
from tests.support.kafka.metadata import write_metadata
from tests.support.objects import BUCKET, S3

CORPUS = Path(__file__).parent.parent / "corpus" / "tiered"
TIER = CORPUS / "tier"
TOPICS = ("orders", "forked")


def consumed(name: str, topic: str) -> list[dict[str, Any]]:
    """The records that a consumer of the broker read, with the fields of ``read``."""
    rows = map(json.loads, gzip.decompress((CORPUS / f"{name}.jsonl.gz").read_bytes()).splitlines())
    return [row for row in rows if row.pop("topic") == topic]


def seen(rows: Any) -> list[dict[str, Any]]:
    """The rows of ``read`` with the same fields."""
    return [
        {
            "offset": row["offset"],
            "timestamp": row["timestamp"],
            "timestamp_type": "create" if row["timestamp_type"] == "CreateTime" else "append",
            "key": row["key"],
            "value": row["value"],
            "headers": row["headers"],
        }
        for row in rows
    ]


def folder(topic: str, tier: Path = TIER) -> Path:
    (found,) = tier.glob(f"{topic}-0-*")
    return found


def tier_end(topic: str) -> int:
    return read_partition(str(folder(topic))).end_offset


def table_of(rows: list[dict[str, Any]]) -> dict[bytes, bytes]:
    """The last write of each key, without deletes."""
    found = {row["key"]: row["value"] for row in rows}
    return {
        base64.b64decode(key): base64.b64decode(value)
        for key, value in found.items()
        if value is not None
    }


def below_end(rows: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    end = tier_end(topic)
    return [row for row in rows if row["offset"] < end]


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TIER, tmp_path / "tier"))


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", ["committed", "plain"])
def test_records_equal_those_of_a_consumer(topic: str, isolation: str) -> None:
    wanted = consumed(isolation, topic)
    level = "read_committed" if isolation == "committed" else "read_uncommitted"
    first = wanted[0]["offset"]
    rows = lastwrite.read(str(TIER), topic=topic, offset=first, isolation_level=level)
    assert seen(rows) == below_end(wanted, topic)
    local = read_partition(str(CORPUS / "local" / f"{topic}-0"))
    assert tier_end(topic) == local.segments[0].base_offset
    dumped = lastwrite.dump(str(folder(topic)), offset=first)
    assert [row["offset"] for row in dumped if row["control"] is None] == [
        row["offset"] for row in below_end(consumed("plain", topic), topic)
    ]


@pytest.mark.parametrize("topic", TOPICS)
def test_latest_equals_the_table_of_a_consumer(topic: str) -> None:
    # The tier still has the records of orders below offset 40, which were deleted on the broker.
    rows = below_end(consumed("committed", topic), topic)
    table = lastwrite.latest(str(TIER), topic)
    wanted = table_of(rows)
    assert {key: table[key] for key in wanted} == wanted
    if topic == "forked":
        assert dict(table) == wanted
    assert table.end_offsets == {0: tier_end(topic)}


def test_segments_of_a_deposed_leader_are_ignored() -> None:
    log = read_partition(str(folder("forked")))
    bases = [segment.base_offset for segment in log.segments]
    there = sorted(int(each.name[:20]) for each in folder("forked").glob("*.log"))
    assert len(there) == 7 and len(bases) == 5 and bases == sorted(set(bases))
    assert not log.problems


def test_read_commands_accept_a_tier() -> None:
    report = lastwrite.inspect(str(TIER), spark=INLINE)
    assert [(each.topic, each.status) for each in report.partitions] == [
        ("forked", "whole"),
        ("orders", "whole"),
    ]
    proof = lastwrite.verify(str(TIER), spark=INLINE)
    assert [each.status for each in proof.partitions] == ["verified", "verified"]
    why = lastwrite.explain(str(TIER), topic="orders")
    assert [each.topic for each in why.partitions] == ["orders"]
    index = list(lastwrite.dump(str(folder("orders")), index=True))
    assert {row["index"] for row in index} >= {"offset", "time", "transaction"}


def test_single_file_of_a_tier_is_read() -> None:
    log = next(folder("orders").glob("*.log"))
    rows = list(lastwrite.dump(str(log)))
    assert rows[0]["topic"] == "orders" and rows[0]["offset"] == int(log.name[:20])
    epochs = log.with_suffix(".leader_epoch_checkpoint")
    report = lastwrite.inspect([str(epochs)])
    assert report.files[0].topic == "orders" and not report.files[0].problems


def test_gap_is_damage_with_its_offsets(tier: Path) -> None:
    (lost,) = folder("orders", tier).glob("00000000000000000130-*.log")
    lost.unlink()
    (problem,) = read_partition(str(folder("orders", tier))).problems
    assert problem.message == "offsets 130 to 203 are in no segment of the tier"
    with pytest.raises(CorruptLog, match="offsets 130 to 203"):
        lastwrite.latest(str(tier), "orders")
    report = lastwrite.inspect(str(tier), topic="orders", spark=INLINE)
    assert report.exit_status == 3


def test_last_segment_without_its_log_is_damage(
    tier: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last = max(folder("orders", tier).glob("*.log"))
    base = int(last.name[:20])
    last.unlink()
    assert run(["read", str(tier), "--topic", "orders"]) == 3
    said = " ".join("".join(capfd.readouterr()).split())
    assert f"offsets from {base} on are in no segment of the tier" in said
    with pytest.raises(CorruptLog, match=f"offsets from {base} on"):
        lastwrite.latest(str(tier), "orders")
    chunks = Path(shutil.copytree(CHUNKS / "zstd", tmp_path / "chunks"))
    max(chunks.rglob("*.log")).unlink()
    with pytest.raises(CorruptLog, match="on are in no segment of the tier"):
        lastwrite.latest(str(chunks))


def test_last_segment_without_files_is_found_by_the_metadata(tier: Path, local: Path) -> None:
    last = max(folder("orders", tier).glob("*.log"))
    for file in folder("orders", tier).glob(f"{last.stem}*"):
        file.unlink()
    write_metadata(local, {"orders": {}})
    shutil.rmtree(local / "orders-0")
    (found,) = lastwrite.inspect(
        str(tier), topic="orders", metadata=str(local), spark=INLINE
    ).partitions
    assert found.status != "whole" and last.name[21:43] in str(found.problems[0])
    (found,) = lastwrite.inspect(str(tier), topic="orders", spark=INLINE).partitions
    assert found.status == "whole"  # without the metadata, the loss is not noticed


@pytest.mark.parametrize(
    "command",
    [
        ["dump"],
        ["read"],
        ["inspect"],
        ["explain"],
        ["plan"],
        ["compact", "--to", "{0}/../archive"],
        ["verify"],
        ["fetch", "--to", "{0}/../archive"],
        ["table", "--to", "{0}/../table", "--as", "parquet"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_names_a_gap(
    tier: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (lost,) = folder("orders", tier).glob("00000000000000000130-*.log")
    lost.unlink()
    name, *options = [each.format(tier) for each in command]
    if name in ("plan", "compact"):
        options += ["--topic-config", "orders:cleanup.policy=compact"]
    capfd.readouterr()
    assert run([name, str(tier), "--topic", "orders", *options]) == 3
    said = " ".join("".join(capfd.readouterr()).split())
    assert "offsets 130 to 203 are in no segment of the tier" in said


def test_incomplete_copy_is_ignored(tier: Path) -> None:
    (whole,) = folder("orders", tier).glob("00000000000000000130-*.log")
    part = whole.with_name("00000000000000000130-AAAAAAAAAAAAAAAAAAAAAA.log")
    part.write_bytes(whole.read_bytes()[:1000])
    before = read_partition(str(folder("orders")))
    assert read_partition(str(folder("orders", tier))).end_offset == before.end_offset
    assert len(read_partition(str(folder("orders", tier))).segments) == len(before.segments)
    # The leader epoch file is written last. With it the copy is complete, and the longer copy is
    # used.
    epochs = whole.with_suffix(".leader_epoch_checkpoint")
    shutil.copy(epochs, part.with_suffix(".leader_epoch_checkpoint"))
    log = read_partition(str(folder("orders", tier)))
    assert part.name not in {Path(segment.path).name for segment in log.segments}
    assert not log.problems


def test_damage_is_named_by_file_and_byte(tier: Path) -> None:
    (log,) = folder("orders", tier).glob("00000000000000000060-*.log")
    content = bytearray(log.read_bytes())
    content[200] ^= 1
    log.write_bytes(content)
    report = lastwrite.verify(str(tier), topic="orders", spark=INLINE)
    assert report.exit_status == 3
    (problem,) = report.partitions[0].problems
    assert problem.path == str(log)
    with pytest.raises(CorruptLog):
        lastwrite.latest(str(tier), "orders")


def test_tier_is_read_only(tier: Path) -> None:
    before = contents(tier)
    for path in (tier, folder("orders", tier)):
        with pytest.raises(InvalidConfig, match="fetch .* --to ARCHIVE"):
            lastwrite.compact(str(path), spark=INLINE)
    with pytest.raises(InvalidConfig, match="fetch .* --to ARCHIVE"):
        lastwrite.clean([str(tier)], once=True)
    assert lastwrite.plan(str(tier), topic="orders", spark=INLINE).exit_status == 0
    assert contents(tier) == before


def test_recreated_topic_is_ambiguous(tier: Path) -> None:
    shutil.copytree(folder("orders", tier), tier / "orders-0-AAAAAAAAAAAAAAAAAAAAAA")
    with pytest.raises(InvalidConfig, match="two topic ids"):
        lastwrite.latest(str(tier), "orders")
    assert lastwrite.latest(str(tier), "forked")
    assert lastwrite.latest(str(tier / "orders-0-AAAAAAAAAAAAAAAAAAAAAA"))


def test_topic_of_a_log_root_may_have_the_name_of_a_tier_folder(tmp_path: Path) -> None:
    name = "foo-1-aaaaaaaaaaaaaaaaaaa-0"
    shutil.copytree(CORPUS / "local" / "forked-0", tmp_path / name)
    assert read_partition(str(tmp_path / name)).name.topic == name[:-2]


# ---------------------------------------------------------------------- fetch into an archive

COMPACT = {"cleanup.policy": "compact"}


def manifest(archive: Path, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((archive / "kafka" / topic / "0/manifest.json").read_bytes())
    return found


def data_files(archive: Path) -> set[str]:
    return {each.suffix for each in (archive / "kafka").glob("*/0/data/*/*")}


def test_fetch_references_segments_in_place(tier: Path, tmp_path: Path) -> None:
    before, archive = contents(tier), tmp_path / "archive"
    report = lastwrite.fetch([str(tier)], str(archive))
    assert [(each.is_new, each.size_bytes) for each in report.partitions] == [(True, 0)] * 2
    assert data_files(archive) == {".snapshot"}
    for each in report.partitions:
        log = read_partition(str(folder(each.topic, tier)))
        assert each.foreign_bytes == log.size_bytes
        own = [o["key"] for o in manifest(archive, each.topic)["objects"] if not o.get("foreign")]
        assert len(own) == 1 and own[0].endswith(".snapshot")
        rows = lastwrite.read(str(archive), topic=each.topic, isolation_level="read_committed")
        wanted = below_end(consumed("committed", each.topic), each.topic)
        assert seen(rows)[-len(wanted) :] == wanted
    proof = lastwrite.verify(str(archive), str(tier), spark=INLINE)
    assert [each.status for each in proof.partitions] == ["verified", "verified"]
    again = lastwrite.fetch([str(tier)], str(archive))
    assert [each.segments for each in again.partitions] == [0, 0]
    assert contents(tier) == before


def test_compact_leaves_the_tier_unchanged_and_the_table_correct(
    tier: Path, tmp_path: Path
) -> None:
    before, archive = contents(tier), str(tmp_path / "archive")
    lastwrite.fetch([str(tier)], archive)
    report = lastwrite.compact(archive, topic_config={"*": COMPACT}, spark=INLINE)
    assert [each.status for each in report.partitions] == ["cleaned", "cleaned"]
    lastwrite.sweep(archive, older_than_ms=0, everything=True)
    assert contents(tier) == before
    for topic in TOPICS:
        assert not any(each.get("foreign") for each in manifest(Path(archive), topic)["objects"])
        assert not manifest(Path(archive), topic)["unused"]
        wanted = table_of(below_end(consumed("committed", topic), topic))
        table = dict(lastwrite.latest(archive, topic))
        assert {key: table[key] for key in wanted} == wanted
        assert table == dict(lastwrite.latest(str(tier), topic))
    proof = lastwrite.verify(archive, str(tier), spark=INLINE)
    assert [each.status for each in proof.partitions] == ["verified", "verified"]


def test_fetch_adds_segments_copied_since(tier: Path, tmp_path: Path) -> None:
    source, archive = folder("orders", tier), str(tmp_path / "archive")
    later = [each for each in source.iterdir() if int(each.name[:20]) >= 210]
    aside = tmp_path / "aside"
    aside.mkdir()
    for each in later:
        each.rename(aside / each.name)
    first = lastwrite.fetch([str(tier)], archive, topic="orders").partitions[0]
    assert (first.first_offset, first.end_offset) == (0, 210)
    for each in later:
        (aside / each.name).rename(each)
    second = lastwrite.fetch([str(tier)], archive, topic="orders").partitions[0]
    assert (second.first_offset, second.end_offset) == (210, tier_end("orders"))
    assert second.size_bytes == 0 and second.foreign_bytes
    proof = lastwrite.verify(archive, str(tier), topic="orders", spark=INLINE)
    assert [each.status for each in proof.partitions] == ["verified"]


def overlapping(tier: Path) -> int:
    """Add the copy of a next leader that rolled its segment inside the previous one.

    Returns the offset at which that leader's segment begins.
    """
    source = folder("orders", tier)
    (first,), (second,) = source.glob(f"{0:020d}-*.log"), source.glob(f"{60:020d}-*.log")
    place, header = headers_of(first)[-2]
    name = f"{header.base_offset:020d}-AAAAAAAAAAAAAAAAAAAAAA"
    (source / f"{name}.log").write_bytes(first.read_bytes()[place:] + second.read_bytes())
    for kind in (".leader_epoch_checkpoint", ".snapshot"):
        shutil.copy(second.with_suffix(kind), source / f"{name}{kind}")
    return header.base_offset


def test_overlapping_segment_is_cut_and_written(tier: Path, tmp_path: Path) -> None:
    at = overlapping(tier)
    log = read_partition(str(folder("orders", tier)))
    assert [segment.base_offset for segment in log.segments][:3] == [0, at, 130]
    assert not log.problems
    rows = lastwrite.read(str(tier), topic="orders")
    assert seen(rows) == seen(lastwrite.read(str(TIER), topic="orders"))
    archive = str(tmp_path / "archive")
    found = lastwrite.fetch([str(tier)], archive, topic="orders").partitions[0]
    assert found.size_bytes == log.segments[0].size_bytes
    assert found.foreign_bytes == log.size_bytes - found.size_bytes
    assert seen(lastwrite.read(archive, topic="orders")) == seen(
        lastwrite.read(str(TIER), topic="orders")
    )
    proof = lastwrite.verify(archive, str(tier), topic="orders", spark=INLINE)
    assert [each.status for each in proof.partitions] == ["verified"]


def test_segment_is_cut_at_a_batch_boundary(tier: Path) -> None:
    source = folder("orders", tier)
    at = overlapping(tier)
    for each in source.glob(f"{at:020d}-*"):
        each.rename(each.with_name(f"{at + 1:020d}{each.name[20:]}"))
    problems = read_partition(str(source)).problems
    assert any(f"no batch ends at offset {at}," in each.message for each in problems)


def test_copies_option_copies_all_segments(tier: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    report = lastwrite.fetch([str(tier)], str(archive), topic="forked", copies=True)
    assert report.partitions[0].foreign_bytes == 0
    assert not any(each.get("foreign") for each in manifest(archive, "forked")["objects"])
    shutil.rmtree(tier)
    assert seen(lastwrite.read(str(archive), topic="forked")) == below_end(
        consumed("plain", "forked"), "forked"
    )


def test_fetch_refuses_forked_and_missing_offsets(tier: Path, tmp_path: Path) -> None:
    source, archive = folder("forked", tier), str(tmp_path / "archive")
    won = [
        part
        for epochs in source.glob("*.leader_epoch_checkpoint")
        if epochs.read_text().endswith("\n4 120\n")
        for part in source.glob(f"{epochs.stem}.*")
    ]
    aside = tmp_path / "aside"
    aside.mkdir()
    for each in won:
        each.rename(aside / each.name)
    first = lastwrite.fetch([str(tier)], archive, topic="forked").partitions[0]
    assert first.reason is None and first.end_offset == 230
    for each in won:
        (aside / each.name).rename(each)
    second = lastwrite.fetch([str(tier)], archive, topic="forked").partitions[0]
    assert second.reason is not None and "a leader election truncated the log" in second.reason
    for each in folder("orders", tier).glob(f"{130:020d}-*"):
        each.unlink()
    gap = lastwrite.fetch([str(tier)], archive, topic="orders")
    assert gap.exit_status == 3 and "offsets 130 to 203" in str(gap.partitions[0].reason)


def test_compact_to_writes_a_compacted_copy_at_once(tier: Path, tmp_path: Path) -> None:
    before, archive = contents(tier), str(tmp_path / "archive")
    lastwrite.compact(str(tier), to=archive, config=COMPACT, spark=INLINE)
    for topic in TOPICS:
        assert dict(lastwrite.latest(archive, topic)) == dict(lastwrite.latest(str(tier), topic))
    assert contents(tier) == before


# ---------------------------------------------------------------------- a tier and a log root


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CORPUS / "local", tmp_path / "local"))


@pytest.mark.parametrize("topic", TOPICS)
def test_local_segments_continue_the_tier(topic: str, tmp_path: Path) -> None:
    both, archive = [str(TIER), str(CORPUS / "local")], str(tmp_path / "archive")
    report = lastwrite.inspect(both, topic=topic, spark=INLINE)
    assert [(each.topic, each.status) for each in report.partitions] == [(topic, "whole")]
    wanted = consumed("committed", topic)
    # the log start, which the tier does not record
    assert report.partitions[0].log_start == wanted[0]["offset"]
    lastwrite.fetch(both, archive, topic=topic, include_active=True)
    rows = lastwrite.read(archive, topic=topic, isolation_level="read_committed")
    assert seen(rows) == wanted
    assert seen(lastwrite.read(archive, topic=topic)) == consumed("plain", topic)
    lastwrite.compact(archive, topic_config={"*": COMPACT}, spark=INLINE)
    assert dict(lastwrite.latest(archive, topic)) == table_of(wanted)
    assert lastwrite.fetch(both, archive, topic=topic).exit_status == 0


def test_gap_between_tier_and_log_root_is_damage(tier: Path) -> None:
    for each in folder("orders", tier).glob(f"{331:020d}-*"):
        each.unlink()
    assert not read_partition(str(folder("orders", tier))).problems
    both = [str(tier), str(CORPUS / "local")]
    (found,) = lastwrite.inspect(both, topic="orders", spark=INLINE).partitions
    assert "offsets 331 to 381 are in no segment" in str(found.problems[0])


def test_tier_metadata_excludes_unfinished_copies(tier: Path, local: Path) -> None:
    (first,) = folder("orders", tier).glob(f"{60:020d}-*.log")
    (second,) = folder("orders", tier).glob(f"{130:020d}-*.log")
    longer = folder("orders", tier) / f"{60:020d}-AAAAAAAAAAAAAAAAAAAAAA.log"
    longer.write_bytes(first.read_bytes() + second.read_bytes())
    for kind in (".leader_epoch_checkpoint", ".snapshot"):
        shutil.copy(second.with_suffix(kind), longer.with_suffix(kind))

    def files_read(*paths: Path) -> list[str]:
        report = lastwrite.inspect(list(map(str, paths)), topic="orders", spark=INLINE)
        return [Path(each.file).name for each in report.partitions[0].segments]

    assert longer.name in files_read(tier)
    assert longer.name not in files_read(tier, local)
    shutil.rmtree(local / "__remote_log_metadata-0")
    assert longer.name in files_read(tier, local)


def note(root: Path, copy: Path, state: int) -> None:
    """Append a later state of a copy to the log root's metadata topic, as a broker does."""
    metadata = read_partition(str(root / "__remote_log_metadata-0"))
    id = base64.urlsafe_b64decode(copy.name[21:43] + "==")
    (update,) = [
        value
        for segment in metadata.segments
        for value in tier_and_root._values(segment)
        if value[1] == 1 and id in value
    ]  # its last two bytes are the state and the empty list of tags
    record = Record(metadata.end_offset, 1_700_000_000_000, None, update[:-2] + bytes([state, 0]))
    with open(metadata.segments[-1].path, "ab") as file:
        file.write(encode_batch([record]))


@pytest.mark.parametrize("is_joined", [True, False])
def test_copy_under_deletion_is_ignored(tier: Path, local: Path, is_joined: bool) -> None:
    """The log root has the partition, or only the metadata of the copies."""
    copies = sorted(folder("orders", tier).glob("*.log"))[:2]
    if not is_joined:
        shutil.rmtree(local / "orders-0")
    end = 412 if is_joined else 382
    (before,) = lastwrite.inspect([str(tier), str(local)], topic="orders", spark=INLINE).partitions
    assert before.status == "whole" and before.log_start < 130
    for copy, state in zip(copies, (3, 2), strict=True):
        note(local, copy, state)
    copies[0].unlink()  # the other copy is truncated
    copies[1].write_bytes(copies[1].read_bytes()[:2000])
    (found,) = lastwrite.inspect([str(tier), str(local)], topic="orders", spark=INLINE).partitions
    assert (found.status, found.log_start, found.end_offset) == ("whole", 130, end)
    rows = [row for row in consumed("committed", "orders") if 130 <= row["offset"] < end]
    archive = str(tier.with_name("archive"))
    lastwrite.fetch([str(tier), str(local)], archive, topic="orders", include_active=True)
    found_rows = lastwrite.read(archive, topic="orders", isolation_level="read_committed")
    assert [row for row in seen(found_rows) if row["offset"] >= 130] == rows


def test_segments_expired_at_the_start_are_not_damage(tier: Path) -> None:
    """Nothing records an expiry beside the segments.

    A gap after the first segment is still damage.
    """
    for copy in folder("orders", tier).glob(f"{0:020d}-*"):
        copy.unlink()
    log = read_partition(str(folder("orders", tier)))
    assert log.log_start == 60 and not log.problems
    assert lastwrite.latest(str(tier), "orders")


def test_copy_of_which_only_the_start_is_recorded_is_ignored(tier: Path, local: Path) -> None:
    """At the end of a tier, a copy counts only if the metadata record its end."""
    write_metadata(local, {"orders": {}})
    note(local, max(folder("orders", tier).glob("*.log")), 0)
    report = lastwrite.inspect(str(tier), topic="orders", metadata=str(local), spark=INLINE)
    (found,) = report.partitions
    assert found.end_offset == 331 and found.status == "whole"


def test_topic_with_another_id_is_not_joined(tier: Path, local: Path) -> None:
    (local / "orders-0" / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    )
    report = lastwrite.inspect([str(tier), str(local)], topic="orders", spark=INLINE)
    assert sorted(each.end_offset for each in report.partitions) == [382, 412]


def test_tier_metadata_record_is_decoded() -> None:
    """The first metadata record of a segment in a broker's log, and its fields."""
    value = bytes.fromhex(
        "010000076f7264657273942dc220266941f1b60191bca1d6675c0000000000415cd4322b924faa862eb56a1d7a"
        "1c7d00000000000000000000000000000000c700000001000001a2027e48a7000001a2027e4dfc020000000000"
        "000000000000000000004a96000001000101"
    )
    found = decode_segment_state(value)
    assert found is not None
    assert (found.topic_id, found.partition) == ("lC3CICZpQfG2AZG8odZnXA", 0)
    assert (found.segment_id, found.state) == ("QVzUMiuST6qGLrVqHXocfQ", 0)
    known = tier_and_root.states_in(str(CORPUS / "local"))
    for topic in TOPICS:
        there = {each.name[21:43] for each in folder(topic).glob("*.log")}
        states = known[(folder(topic).name[-22:], 0)]
        assert {id: each.state for id, each in states.items()} == dict.fromkeys(there, FINISHED)
    ends = [each.end_offset for each in states.values()]
    assert max(ends) == tier_end(topic) and min(ends) > 0


# ---------------------------------------------------------------------- Aiven's plugin

CHUNKS = CORPUS / "chunks"


def keys(*ids: str) -> dict[str, object]:
    """The setting with the private keys of these key pairs. Without arguments, of both pairs."""
    pytest.importorskip("Crypto")
    files = (f"{each}:{CHUNKS}/keys/{each}.pem" for each in ids or ("one", "two"))
    return {"storage.encryptionKeys": ",".join(files)}


@pytest.mark.parametrize("kind", ["zstd", "plain", "encrypted", "encrypted-plain"])
def test_chunked_tier_is_read_and_compacted(kind: str, tmp_path: Path) -> None:
    source, before = CHUNKS / kind, contents(CHUNKS / kind)
    config = keys() if "encrypted" in kind else None
    partition = next(source.glob("orders-*/0"))
    for path in (source, partition.parent, partition):
        rows = lastwrite.read(
            str(path), topic="orders", isolation_level="read_committed", config=config
        )
        wanted = below_end(consumed("committed", "orders"), "orders")
        assert seen(rows)[-len(wanted) :] == wanted
    table = dict(lastwrite.latest(str(TIER), "orders"))
    assert dict(lastwrite.latest(str(source), config=config)) == table
    assert list(lastwrite.dump(str(partition), config=config)) == list(
        lastwrite.dump(str(folder("orders")))
    )
    report = lastwrite.inspect(str(source), spark=INLINE, config=config)
    assert [(each.topic, each.status) for each in report.partitions] == [("orders", "whole")]
    proof = lastwrite.verify(str(source), str(folder("orders")), spark=INLINE, config=config)
    assert [each.status for each in proof.partitions] == ["verified"]
    with pytest.raises(InvalidConfig, match="fetch .* --to ARCHIVE"):
        lastwrite.compact(str(source), spark=INLINE, config=config)
    archive = str(tmp_path / "archive")
    found = lastwrite.fetch([str(source)], archive, config=config).partitions[0]
    assert found.size_bytes == 0 and found.segments == 9
    named = {each["key"]: each["bytes"] for each in manifest(Path(archive), "orders")["objects"]}
    assert {key: size for key, size in named.items() if not key.startswith("data/")} == {
        str(source / path): len(content) for path, content in before.items()
    }
    assert dict(lastwrite.latest(archive, config=config)) == table
    lastwrite.compact(archive, topic_config={"*": COMPACT}, spark=INLINE, config=config)
    lastwrite.sweep(archive, older_than_ms=0, everything=True)
    assert dict(lastwrite.latest(archive)) == table  # readable without keys
    assert contents(source) == before


def test_encrypted_tier_without_its_keys_is_refused(tmp_path: Path) -> None:
    source, one = str(CHUNKS / "encrypted"), keys("one")
    with pytest.raises(InvalidConfig, match=r"key pair 'one'.*storage\.encryptionKeys=one:FILE"):
        lastwrite.latest(source)
    report = lastwrite.fetch([source], str(tmp_path / "archive"), config=one)
    reason = str(report.partitions[0].reason)
    assert report.exit_status == 1 and f"{266:020d}-" in reason
    assert "encryption.key.pairs.two.private.key.file" in reason


@pytest.mark.parametrize("kind", ["encrypted", "encrypted-plain"])
def test_changed_encrypted_tier_is_damage(kind: str, tmp_path: Path) -> None:
    source = Path(shutil.copytree(CHUNKS / kind, tmp_path / "tier"))
    (log,) = source.rglob(f"{60:020d}-*.log")
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptLog, match="the tag does not match"):
        lastwrite.latest(str(source), config=keys())
    report = lastwrite.verify(str(source), spark=INLINE, config=keys())
    assert report.exit_status == 3
    assert str(log.with_suffix(".rsm-manifest")) in str(report.partitions[0].reason)


def test_chunked_tier_continues_in_the_log_root(tmp_path: Path) -> None:
    both, archive = [str(CHUNKS / "zstd"), str(CORPUS / "local")], str(tmp_path / "archive")
    lastwrite.fetch(both, archive, topic="orders", include_active=True)
    rows = lastwrite.read(archive, topic="orders", isolation_level="read_committed")
    assert seen(rows) == consumed("committed", "orders")


def test_chunked_copy_without_a_manifest_is_a_gap(tmp_path: Path) -> None:
    source = Path(shutil.copytree(CHUNKS / "zstd", tmp_path / "tier"))
    (lost,) = source.rglob(f"{130:020d}-*.rsm-manifest")
    lost.unlink()
    with pytest.raises(CorruptLog, match="offsets 130 to 203"):
        lastwrite.latest(str(source))


def test_topic_of_an_archive_may_have_the_name_of_a_tier_folder(tmp_path: Path) -> None:
    name = "orders-AAAAAAAAAAAAAAAAAAAAAA"
    local = tmp_path / "local" / f"{name}-0"
    shutil.copytree(CORPUS / "local" / "orders-0", local)
    archive = str(tmp_path / "archive")
    lastwrite.fetch([str(local.parent)], archive, include_active=True)
    assert seen(lastwrite.read(archive)) == seen(lastwrite.read(str(local)))


def in_bucket(s3: S3, source: Path, prefix: str) -> str:
    store = BucketStore(f"s3://{BUCKET}", s3.settings)
    for path in source.rglob("*"):
        if path.is_file():
            assert store.create(f"{prefix}/{path.relative_to(source)}", path.read_bytes())
    return f"s3://{BUCKET}/{prefix}"


@pytest.mark.broker
def test_tier_in_a_bucket_is_read_and_fetched(s3: S3) -> None:
    root, config = in_bucket(s3, TIER, "tier"), s3.config
    for topic in TOPICS:
        found = lastwrite.latest(root, topic, config=config)
        assert dict(found) == dict(lastwrite.latest(str(TIER), topic))
    rows = lastwrite.read(root, topic="forked", config=config)
    assert seen(rows) == below_end(consumed("plain", "forked"), "forked")
    proof = lastwrite.verify(root, spark=INLINE, config=config)
    assert [each.status for each in proof.partitions] == ["verified", "verified"]
    with pytest.raises(InvalidConfig, match="fetch .* --to ARCHIVE"):
        lastwrite.compact(root, spark=INLINE, config=config)
    table = dict(lastwrite.latest(str(TIER), "orders"))
    chunks = in_bucket(s3, CHUNKS / "zstd", "kafka")  # in a folder of the bucket, like an archive
    assert dict(lastwrite.latest(chunks, config=config)) == table
    chunks = in_bucket(s3, CHUNKS / "encrypted", "encrypted")
    assert dict(lastwrite.latest(chunks, config=config | keys())) == table
    proof = lastwrite.verify(chunks, root, topic="orders", spark=INLINE, config=config | keys())
    assert [each.status for each in proof.partitions] == ["verified"]
    archive = f"s3://{BUCKET}/named"
    lastwrite.fetch([root], archive, config=config)
    lastwrite.compact(archive, topic_config={"*": COMPACT}, config=config, spark=INLINE)
    lastwrite.sweep(archive, older_than_ms=0, everything=True, config=config)
    for topic in TOPICS:
        found = lastwrite.latest(archive, topic, config=config)
        assert dict(found) == dict(lastwrite.latest(str(TIER), topic))
    proof = lastwrite.verify(archive, root, spark=INLINE, config=config)
    assert [each.status for each in proof.partitions] == ["verified", "verified"]
