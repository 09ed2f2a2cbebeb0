"""Tests of an archive's manifest, of its commit, and of sweeps."""

from __future__ import annotations

import msgspec
import pytest

from lastwrite.archive import manifest as manifests
from lastwrite.archive import partition_store as places
from lastwrite.archive.manifest import FORMER, DataObject, Manifest, Unused, decode, encode
from lastwrite.archive.partition_store import (
    ABANDONED_MS,
    GRACE_MS,
    PINNED_MS,
    RENEW_MS,
    PartitionStore,
    SweepResult,
    VersionedManifest,
    WriteTransaction,
    clear_unused,
)
from lastwrite.errors import (
    CommitConflict,
    CorruptLog,
    LogError,
    NotALog,
    RemoteFailed,
    UnsupportedFormat,
)
from lastwrite.storage.objects.store import Requests, Version
from tests.support.objects import MemoryStore

PREFIX = "kafka/orders/0"
WHOLE = Manifest(
    system="kafka",
    topic="orders",
    partition=0,
    generation=3,
    nonce="c" * 32,
    former=("b" * 32, "a" * 32),
    round="d" * 32,
    written_ms=1_795_339_463_000,
    writer="lastwrite 1 host:1",
    objects=(
        DataObject(key="data/c-0/00.log", bytes=600, etag="e1"),
        DataObject(key="s3://other/1.log", bytes=5, etag="e2", is_foreign=True),
    ),
    unused=(
        Unused(key="data/a-0/00.log", bytes=7, since_ms=0, generation=3),
        Unused(key="data/a-0/01.log", bytes=8, since_ms=5_000, generation=2),
    ),
    log=msgspec.Raw(b'{"start":600}'),
)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_waits", lambda: [0.0] * 20)


def test_manifest_round_trips_with_its_fields_in_order() -> None:
    content = encode(WHOLE)
    assert decode(content, "m") == WHOLE
    fields = msgspec.json.decode(content)
    assert [*fields] == [*Manifest.__struct_fields__, "checksum"]
    assert fields["objects"][0] == {"key": "data/c-0/00.log", "bytes": 600, "etag": "e1"}


def test_every_flipped_bit_and_every_cut_of_a_manifest_is_detected() -> None:
    content = encode(WHOLE)
    for at in range(len(content)):
        with pytest.raises(CorruptLog) as cut:
            decode(content[:at], "m")
        assert cut.value.at is not None
        for bit in (0, 3, 7):
            spoilt = bytearray(content)
            spoilt[at] ^= 1 << bit
            with pytest.raises(CorruptLog) as garbled:
                decode(bytes(spoilt), "m")
            assert garbled.value.at is not None


def test_later_manifest_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="version 3.*upgrade"):
        decode(encode(msgspec.structs.replace(WHOLE, version=3)), "m")


@pytest.mark.parametrize(
    "key", ["manifest.json", "data/../manifest.json", "data/", "/data/x", "data//x"]
)
def test_manifest_with_a_key_outside_data_is_refused(key: str) -> None:
    unused = Unused(key=key, bytes=1, since_ms=1, generation=1)
    for changed in (
        msgspec.structs.replace(WHOLE, unused=(unused,)),
        msgspec.structs.replace(WHOLE, objects=(DataObject(key=key, bytes=1),)),
    ):
        with pytest.raises(CorruptLog, match="not below data/"):
            decode(encode(changed), "m")


def test_manifest_above_the_size_limit_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifests, "LIMIT_BYTES", 500)
    with pytest.raises(LogError, match="at most 500"):
        encode(WHOLE)


class Archive:
    """An archive's partition in memory. Each round writes one object."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.store.now_ms = 1_000
        self.place = PartitionStore(self.store, PREFIX)

    def begin(self) -> WriteTransaction:
        return self.place.begin(self.place.read())

    def write(self, begun: WriteTransaction, name: str = "00.log") -> DataObject:
        key = f"{begun.prefix}0/{name}"
        version = self.store.create(self.place.key(key), name.encode())
        assert version is not None
        return DataObject(key=key, bytes=len(name), etag=version.etag)

    def commit(self, begun: WriteTransaction, *objects: DataObject) -> VersionedManifest:
        made = Manifest(system="kafka", topic="orders", partition=0, objects=objects)
        return self.place.commit(begun, made)

    def run(self) -> VersionedManifest:
        """Run a round that replaces all objects by one."""
        begun = self.begin()
        self.commit(begun, self.write(begun))
        return self.seen()

    def seen(self) -> VersionedManifest:
        found = self.place.read()
        assert found is not None
        return found

    def names(self) -> list[str]:
        return [each.key.removeprefix(PREFIX + "/") for each in self.store.list("")]

    def pass_ms(self, ms: int) -> None:
        self.store.now_ms += ms


def test_commit_replaces_objects_and_deletes_its_journal() -> None:
    archive = Archive()
    assert archive.place.read() is None
    first = archive.begin()
    assert archive.names() == [f"rounds/{first.id}.json"]
    archive.commit(first, archive.write(first))
    one = archive.seen()
    assert one.manifest.generation == 1
    two = archive.run()
    assert (two.manifest.generation, two.manifest.former) == (2, (one.manifest.nonce,))
    old = one.manifest.objects[0].key
    assert two.manifest.unused == (Unused(key=old, bytes=6, since_ms=0, generation=2),)
    assert archive.names() == sorted(["manifest.json", old, two.manifest.objects[0].key])


def test_manifest_remembers_the_last_64_nonces() -> None:
    archive = Archive()
    nonces = [archive.run().manifest.nonce for _ in range(FORMER + 3)]
    now = archive.run().manifest
    assert list(now.former) == nonces[: -FORMER - 1 : -1]
    assert not now.has_committed(nonces[2])
    assert all(now.has_committed(each) for each in [*nonces[3:], now.nonce])


def test_first_of_two_commits_wins_and_the_other_leaves_no_objects() -> None:
    archive = Archive()
    archive.run()
    slow, quick = archive.begin(), archive.begin()
    lost = archive.write(slow)
    archive.commit(quick, archive.write(quick))
    won = archive.seen()
    with pytest.raises(CommitConflict, match="run the command again"):
        archive.commit(slow, lost)
    assert archive.seen() == won
    assert not [name for name in archive.names() if slow.id in name]


def test_commit_refuses_objects_that_its_round_neither_read_nor_wrote() -> None:
    archive = Archive()
    seen = archive.run()
    archive.run()
    with pytest.raises(LogError, match="does not belong to this round"):
        archive.commit(archive.begin(), *seen.manifest.objects)


class Mute(MemoryStore):
    """A store that answers the first ``tries`` manifest writes with a conflict.

    ``does`` is whether it nevertheless writes them.
    """

    def __init__(self, tries: int, *, does: bool) -> None:
        super().__init__()
        self.tries, self.does, self.is_on = tries, does, False

    def _put(self, key: str, content: bytes, seen: Version | None) -> Version | None:
        if not self.is_on or not key.endswith("manifest.json") or self.tries == 0:
            return super()._put(key, content, seen)
        self.tries -= 1
        if self.does:
            super()._put(key, content, seen)
        return None


@pytest.mark.parametrize("does", [True, False])
@pytest.mark.parametrize("rounds_before", [0, 1])
def test_lost_response_to_a_commit_is_resolved_by_reading(does: bool, rounds_before: int) -> None:
    store = Mute(3, does=does)
    archive = Archive(store)
    for _ in range(rounds_before):
        archive.run()
    store.is_on = True
    begun = archive.begin()
    archive.commit(begun, archive.write(begun))
    assert archive.seen().manifest.round == begun.id


def test_commit_with_a_lost_response_returns_a_later_generation_built_on_it() -> None:
    """The caller's next round replaces the later generation. ``commit`` must not return its own."""
    store = Mute(1, does=True)
    archive = Archive(store)
    first = archive.begin()
    made = archive.write(first)
    real_read = archive.place.read

    def late() -> VersionedManifest | None:
        archive.place.read = real_read  # type: ignore[method-assign]
        archive.run()
        return archive.place.read()

    store.is_on = True
    archive.place.read = late  # type: ignore[method-assign]
    assert archive.commit(first, made) == archive.seen()
    assert archive.seen().manifest.generation == 2


def test_commit_with_an_unknown_outcome_deletes_nothing() -> None:
    store = Mute(1_000, does=False)
    archive = Archive(store)
    begun = archive.begin()
    made = archive.write(begun)
    store.is_on = True
    with pytest.raises(RemoteFailed, match="nothing was deleted"):
        archive.commit(begun, made)
    assert archive.names() == [made.key, f"rounds/{begun.id}.json"]


class Refusing(MemoryStore):
    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        raise RemoteFailed("s3:PutObject is forbidden (403)")


def test_refused_commit_raises_its_reason_at_once() -> None:
    archive = Archive()
    archive.run()
    begun = archive.begin()
    made = archive.write(begun)
    archive.store.__class__ = Refusing
    with pytest.raises(RemoteFailed, match="PutObject is forbidden"):
        archive.commit(begun, made)
    assert made.key in archive.names()


def test_unused_object_is_deleted_after_the_grace_period_of_the_stores_clock() -> None:
    archive = Archive()
    old = archive.run().manifest.objects[0].key
    archive.pass_ms(5 * GRACE_MS)
    archive.run()
    archive.pass_ms(GRACE_MS - 1)
    kept = archive.run().manifest
    assert old in archive.names()
    since_ms = 1_000 + 5 * GRACE_MS
    assert kept.unused[0] == Unused(key=old, bytes=6, since_ms=since_ms, generation=2)
    archive.pass_ms(1)
    now = archive.run().manifest
    assert old not in archive.names()
    assert [each.generation for each in now.unused] == [3, 4]


def test_object_replaced_by_the_same_process_gets_the_full_grace_period() -> None:
    """A process has the manifest that it wrote, but not its time by the store's clock."""
    archive = Archive()
    archive.run()
    archive.pass_ms(9 * GRACE_MS)
    begun = archive.begin()
    known = archive.commit(begun, archive.write(begun))
    again = archive.place.begin(known)
    archive.commit(again, archive.write(again))
    assert len(archive.seen().manifest.unused) == 2
    assert all(each.key in archive.names() for each in archive.seen().manifest.unused)


def test_pin_keeps_the_objects_of_its_generation() -> None:
    archive = Archive()
    seen = archive.run()
    with archive.place.pin(seen) as renew:
        archive.run()
        for _ in range(3):
            archive.pass_ms(PINNED_MS - 1)
            renew()
            archive.run()
            archive.place.sweep()
        assert seen.manifest.objects[0].key in archive.names()
    archive.run()
    assert seen.manifest.objects[0].key not in archive.names()


@pytest.mark.parametrize("others", [1, 7])  # with few partitions, each listing has its own request
def test_concurrent_rounds_delete_with_one_request_and_keep_pinned_objects(others: int) -> None:
    store = MemoryStore()
    archives = [Archive(store) for _ in range(others + 1)]
    for number, archive in enumerate(archives):
        archive.place = PartitionStore(store, f"kafka/orders/{number}")
    seen = [archive.run() for archive in archives]
    old = [each.manifest.objects[0].key for each in seen]
    with archives[0].place.pin(seen[0]):
        for archive in archives:
            archive.run()
        store.now_ms += GRACE_MS
        rounds = [
            (archive.place, archive.place.begin(archive.seen(), clears=False))
            for archive in archives
        ]
        store.requests = Requests()
        with pytest.MonkeyPatch.context() as patch:
            calls: list[list[str]] = []
            real = store.remove
            patch.setattr(store, "remove", lambda keys: (calls.append([*keys]), real(calls[-1])))
            clear_unused(rounds)
    assert len(calls) == 1 and len(calls[0]) == others
    assert (store.requests.gets, store.requests.lists) == (1, 1 if others > 2 else others + 1)
    left = {each.key for each in store.list("")}
    kept = [archive.place.key(key) in left for key, archive in zip(old, archives, strict=True)]
    assert kept == [True, *[False] * others]
    for archive, (_, begun) in zip(archives, rounds, strict=True):
        unused = archive.commit(begun, archive.write(begun)).manifest.unused
        there = {each.key for each in store.list("")}
        assert unused and all(archive.place.key(each.key) in there for each in unused)


def test_sweep_deletes_the_pin_of_a_dead_reader() -> None:
    archive = Archive()
    archive.place.pin(archive.run()).__enter__()
    archive.pass_ms(ABANDONED_MS)
    archive.place.sweep()
    assert not [name for name in archive.names() if "rounds/" in name]


def test_foreign_object_is_never_deleted() -> None:
    archive = Archive()
    archive.store.create("ledger-1", b"x")
    archive.commit(
        archive.begin(), DataObject(key="memory/ledger-1", bytes=1, etag="1", is_foreign=True)
    )
    assert archive.run().manifest.unused == ()


def test_journal_is_renewed_every_ten_minutes_and_a_swept_round_fails() -> None:
    archive = Archive()
    archive.run()
    begun = archive.begin()
    before = archive.store.requests.puts
    archive.place.renew(begun)
    assert archive.store.requests.puts == before
    begun.renewed_s -= RENEW_MS / 1000
    archive.place.renew(begun)
    assert archive.store.requests.puts == before + 1
    archive.pass_ms(ABANDONED_MS)
    archive.place.sweep()
    begun.renewed_s -= RENEW_MS / 1000
    with pytest.raises(CommitConflict, match="sweep"):
        archive.place.renew(begun)


def test_sweep_deletes_objects_of_a_dead_round_after_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = Archive()
    archive.run()
    dead = archive.begin()
    made = archive.write(dead)
    archive.pass_ms(ABANDONED_MS - 1)
    assert archive.place.sweep() == SweepResult()
    archive.pass_ms(1)
    before = archive.names()
    monkeypatch.setattr(places, "_now_ms", lambda: archive.store.now_ms)
    dry = archive.place.sweep(dry_run=True)
    assert archive.names() == before
    swept = archive.place.sweep()
    assert swept == SweepResult(journals=1, objects=1, bytes=6)
    assert dry == swept
    assert not [name for name in archive.names() if dead.id in name or "rounds/" in name]
    # The paused round continues. Its objects are gone, so it cannot commit.
    with pytest.raises(CommitConflict):
        archive.commit(dead, made)


def test_sweep_does_not_make_a_running_round_fail() -> None:
    archive = Archive()
    archive.run()
    dead = archive.begin()
    archive.write(dead)
    archive.pass_ms(ABANDONED_MS)
    running = archive.begin()
    assert archive.place.sweep() == SweepResult(is_waiting=True)
    archive.commit(running, archive.write(running))
    assert archive.place.sweep().objects == 1


def test_sweep_deletes_unused_objects_and_updates_the_manifest_once() -> None:
    archive = Archive()
    archive.run()
    archive.run()
    archive.pass_ms(GRACE_MS)
    assert archive.place.sweep() == SweepResult(objects=1, bytes=6)
    seen = archive.seen()
    assert (seen.manifest.unused, seen.manifest.generation) == ((), 3)
    assert archive.place.sweep() == SweepResult()
    assert archive.seen() == seen


def test_sweep_deletes_nothing_without_a_manifest() -> None:
    archive = Archive()
    archive.write(archive.begin())
    archive.pass_ms(ABANDONED_MS)
    before = archive.names()
    with pytest.raises(NotALog, match="unused objects cannot be identified"):
        archive.place.sweep(everything=True)
    assert archive.names() == before
    archive.run()
    assert archive.place.sweep().objects == 1


def test_damaged_manifest_stops_a_sweep() -> None:
    archive = Archive()
    archive.write(archive.begin())
    archive.store.create(f"{PREFIX}/manifest.json", b"{}")
    archive.pass_ms(ABANDONED_MS)
    before = archive.names()
    with pytest.raises(CorruptLog, match=f"memory/{PREFIX}/manifest.json, byte 2"):
        archive.place.sweep(everything=True)
    assert archive.names() == before


def test_sweep_of_everything_finds_objects_without_a_journal() -> None:
    archive = Archive()
    archive.run()
    stray = archive.write(archive.begin())
    archive.store.remove([each.key for each in archive.store.list(f"{PREFIX}/rounds/")])
    archive.pass_ms(ABANDONED_MS)
    assert archive.place.sweep().objects == 0
    assert archive.place.sweep(everything=True).objects == 1
    assert stray.key not in archive.names()
