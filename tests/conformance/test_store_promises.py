"""Tests of ``doctor --store``: it detects a store that breaks a guarantee."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lastwrite.errors import LogError, RemoteFailed
from lastwrite.model.columns import ByteArray
from lastwrite.storage.objects import promises
from lastwrite.storage.objects.bucket import BucketStore
from lastwrite.storage.objects.folder import FolderStore
from lastwrite.storage.objects.promises import FOLDER, PromiseResult, are_kept, probe_store
from lastwrite.storage.objects.store import ObjectInfo, Version
from tests.support.objects import BUCKET, S3, MemoryStore, s3proxy_server

PROMISES = ["create", "listing", "ranges", "replace", "at once", "clock", "removal"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_number = iter(range(1000))


def asked(store: MemoryStore, prefix: str = "") -> dict[str, PromiseResult]:
    # a new address, because results are remembered by address
    store.address = f"memory {next(_number)}"
    store.now_ms += now_ms()
    return {finding.promise: finding for finding in probe_store(store, prefix, now_ms)}


def test_store_that_keeps_all_promises_is_left_unchanged() -> None:
    store = MemoryStore()
    store.create("mine", b"1")
    found = asked(store, "some/prefix")
    assert list(found) == PROMISES
    assert all(finding.is_met for finding in found.values())
    assert [each.key for each in store.list("")] == ["mine"]


def test_store_is_tested_once_per_process() -> None:
    store = MemoryStore()
    store.address = "memory asked twice"
    first = probe_store(store, "", now_ms)
    puts = store.requests.puts
    assert probe_store(store, "", now_ms) is first
    assert store.requests.puts == puts


class CreatesAgain(MemoryStore):
    def create(self, key: str, content: bytes) -> Version | None:
        there = self.get(key)
        return self._put(key, content, None if there is None else there[1].version)


class ReplacesAnything(MemoryStore):
    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        there = self.get(key)
        return self._put(key, content, None if there is None else there[1].version)


class LetsTwoWin(MemoryStore):
    """A store that, like s3proxy, sometimes lets two writers replace the same version."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Version, Version] | None = None

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        made = super().replace(key, content, version)
        if made is not None:
            self._last = version, made
        elif content.endswith(b" 7") and self._last is not None and self._last[0] == version:
            return Version("another")
        elif content.endswith(b" 6") and self._last is not None and self._last[0] == version:
            return Version("another")
        return made


class SaysYesAndDoesNothing(MemoryStore):
    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        return version


class ListsLate(MemoryStore):
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())


class ListsWhatIsGone(MemoryStore):
    def remove(self, keys: Iterable[str]) -> None: ...


class ReadsAnyVersion(MemoryStore):
    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        super().read_into(key, target, position)


class ReadsFromTheStart(MemoryStore):
    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        super().read_into(key, target, 0, etag)


@pytest.mark.parametrize(
    ("store", "promise"),
    [
        (CreatesAgain, "create"),
        (ReplacesAnything, "replace"),
        (LetsTwoWin, "at once"),
        (SaysYesAndDoesNothing, "replace"),
        (ListsLate, "listing"),
        (ListsWhatIsGone, "removal"),
        (ReadsAnyVersion, "ranges"),
        (ReadsFromTheStart, "ranges"),
    ],
)
def test_broken_promise_is_named(store: type[MemoryStore], promise: str) -> None:
    found = asked(store())
    assert promise in [name for name, finding in found.items() if finding.is_met is False]
    assert found[promise].remedy
    assert not are_kept(tuple(found.values()))


@pytest.mark.parametrize(("apart_ms", "way"), [(3_600_000, "ahead of"), (-3_600_000, "behind")])
def test_wrong_clock_is_reported(apart_ms: int, way: str) -> None:
    store = MemoryStore()
    store.now_ms = apart_ms
    found = asked(store)
    assert found["clock"].is_met is None
    assert f"3600 s {way}" in found["clock"].found or f"3599 s {way}" in found["clock"].found
    assert are_kept(tuple(found.values()))


class Forbidden(MemoryStore):
    def create(self, key: str, content: bytes) -> Version | None:
        raise RemoteFailed("s3:PutObject is forbidden (403)", path=f"s3://b/{key}", remedy="allow")


def test_forbidden_write_is_reported_and_tested_again() -> None:
    store = Forbidden()
    store.address = "memory forbidden"
    (finding,) = probe_store(store, "", now_ms)
    assert finding.promise == "store" and finding.is_met is False
    assert "s3:PutObject is forbidden" in finding.found and finding.remedy == "allow"
    assert probe_store(store, "", now_ms) is not probe_store(store, "", now_ms)


def test_folder_keeps_its_promises(tmp_path: Path) -> None:
    found = probe_store(FolderStore(str(tmp_path)), "", now_ms)
    assert [finding.promise for finding in found] == PROMISES
    assert are_kept(found)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.broker
def test_real_server_keeps_its_promises(s3: S3) -> None:
    store = BucketStore(f"s3://{BUCKET}", s3.settings)
    found = probe_store(store, "below", now_ms)
    assert [finding.promise for finding in found] == [*PROMISES, "unfinished uploads"]
    assert are_kept(found)
    assert found[-1].is_met is None
    assert list(store.list(f"below/{FOLDER}")) == []


def doctor(*given: str) -> tuple[int, dict[str, tuple[str, str, str | None]]]:
    command = [sys.executable, "-m", "lastwrite", "doctor", "--json", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {
        each["name"]: (each["verdict"], each["found"], each["remedy"])
        for each in findings
        if each["name"].startswith("store")
    }


@pytest.mark.broker
def test_doctor_tests_a_bucket(s3: S3) -> None:
    config = [f"--config={name}={value}" for name, value in s3.config.items()]
    status, found = doctor("--store", f"s3://{BUCKET}/some/prefix", *config)
    assert status == 0
    assert list(found) == [f"store: {name}" for name in (*PROMISES, "unfinished uploads")]
    assert {verdict for verdict, _, _ in found.values()} == {"ok", "warning"}
    status, found = doctor("--store", "s3://no-such-bucket", *config)
    assert status == 1
    assert found["store"][:2] == ("missing", "s3://no-such-bucket: the bucket does not exist")
    status, found = doctor("--store", f"s3://{BUCKET}", "--config=storage.endpoint=http://[::1]:1")
    assert status == 1
    assert "storage.allowHttp" in str(found["store"][2])


@pytest.mark.broker
def test_doctor_detects_a_server_with_two_winners(tmp_path: Path) -> None:
    with s3proxy_server(tmp_path) as settings:
        config = [f"--config={name}={value}" for name, value in settings.items()]
        for _ in range(5):  # by chance, the server may answer correctly
            status, found = doctor("--store", f"s3://{BUCKET}/some/prefix", *config)
            if status:
                break
    assert status == 1
    verdict, said, remedy = found["store: at once"]
    assert verdict == "missing" and re.fullmatch(
        "[2-8] of 8 concurrent writers to the same version succeed", said
    )
    assert "--to" in str(remedy)
    for name in ("create", "listing", "ranges", "replace", "removal"):
        assert found[f"store: {name}"][0] == "ok"


def test_doctor_tests_a_folder(tmp_path: Path) -> None:
    status, found = doctor("--store", str(tmp_path))
    assert status == 0
    assert list(found) == [f"store: {name}" for name in PROMISES]
    status, found = doctor("--store", str(tmp_path / "none"))
    assert status == 1
    assert found["store"][1].endswith("none: no such folder")


@pytest.mark.parametrize("kind", [MemoryStore, ReplacesAnything, CreatesAgain])
def test_archive_in_a_store_that_breaks_a_promise_is_not_changed(
    kind: type[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kind()
    store.address = f"memory of an archive {next(_number)}"
    store.is_providers = False
    store.now_ms += now_ms()
    monkeypatch.setattr(promises, "store_at", lambda address: (store, "some/archive"))
    if kind is MemoryStore:
        for _ in range(2):
            promises.reject_if_broken("s3://bucket/some/archive", now_ms)
        puts = store.requests.puts
        promises.reject_if_broken("s3://bucket/some/archive", now_ms)
        assert store.requests.puts == puts  # the result is remembered
        return
    with pytest.raises(LogError, match="breaks a guarantee") as refused:
        promises.reject_if_broken("s3://bucket/some/archive", now_ms)
    assert refused.value.path == "s3://bucket/some/archive"
    assert "--to" in (refused.value.remedy or "")
    assert not list(store.list(""))
