"""Tests of the guarantees of every store (``storage/objects/store.py``).

The stores are a folder, one in memory, a real S3 server, and that server behind a network with
faults.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastwrite.errors import CommitConflict, LogError, RemoteFailed
from lastwrite.model.stores import StoreSettings
from lastwrite.storage import files
from lastwrite.storage.machine import mount_of
from lastwrite.storage.objects.bucket import BucketStore
from lastwrite.storage.objects.folder import FolderStore
from lastwrite.storage.objects.store import ObjectStore, Version
from tests.support.objects import BUCKET, S3, FaultProxy, MemoryStore

MIB = 1 << 20
ADDRESS = f"s3://{BUCKET}"


class Below:
    """A store with a prefix of its own, so that tests can share a bucket."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.store, self.prefix = store, prefix

    def key(self, name: str) -> str:
        return self.prefix + name

    def keys(self, prefix: str = "") -> list[str]:
        found = self.store.list(self.prefix + prefix)
        return [each.key.removeprefix(self.prefix) for each in found]


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.broker)])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Below:
    prefix = f"{request.node.name.translate(str.maketrans('[]', '--'))}/"
    if request.param == "folder":
        return Below(FolderStore(str(tmp_path / "root")), prefix)
    if request.param == "memory":
        return Below(MemoryStore(), prefix)
    return Below(BucketStore(ADDRESS, request.getfixturevalue("s3").settings), prefix)


def read(store: ObjectStore, key: str, start: int, size: int, etag: str = "") -> bytes:
    target = np.zeros(size, np.uint8)
    store.read_into(key, target, start, etag)
    return target.tobytes()


def whole(store: ObjectStore, key: str) -> tuple[bytes, Version] | None:
    found = store.get(key)
    return None if found is None else (found[0], found[1].version)


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    answers: list[Any] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(number: int) -> None:
        barrier.wait()
        answers[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


# ---------------------------------------------------------------------- every store


def test_created_object_is_visible_at_once(at: Below) -> None:
    key = at.key("a/b.json")
    assert at.store.head(key) is None
    assert at.store.get(key) is None
    made = at.store.create(key, b"first")
    assert made is not None
    assert whole(at.store, key) == (b"first", made)
    found = at.store.head(key)
    assert found is not None
    assert (found.key, found.size_bytes, found.version) == (key, 5, made)
    (listed,) = at.store.list(at.prefix)
    assert (listed.key, listed.size_bytes, listed.version) == (key, 5, made)


def test_second_create_keeps_the_first_object(at: Below) -> None:
    key = at.key("a")
    made = at.store.create(key, b"first")
    assert at.store.create(key, b"second") is None
    assert whole(at.store, key) == (b"first", made)


def test_replace_needs_the_current_version(at: Below) -> None:
    key = at.key("manifest.json")
    first = at.store.create(key, b"one")
    assert first is not None
    second = at.store.replace(key, b"two", first)
    assert second is not None and second != first
    assert at.store.replace(key, b"three", first) is None
    assert whole(at.store, key) == (b"two", second)
    assert at.store.replace(key, b"three", second) is not None


def test_replace_of_a_missing_object_is_refused(at: Below) -> None:
    seen = at.store.create(at.key("a"), b"one")
    assert seen is not None
    at.store.remove([at.key("a")])
    assert at.store.replace(at.key("a"), b"two", seen) is None
    assert at.store.get(at.key("a")) is None


def test_one_of_many_concurrent_replaces_wins(at: Below) -> None:
    key = at.key("manifest.json")
    version = at.store.create(key, b"start")
    for turn in range(5):
        assert version is not None
        contents = [f"{turn}-{number}".encode() for number in range(8)]
        won = together([lambda c=c, v=version: at.store.replace(key, c, v) for c in contents])
        (winner,) = [number for number, answer in enumerate(won) if answer is not None]
        assert whole(at.store, key) == (contents[winner], won[winner])
        version = won[winner]


def test_one_of_many_concurrent_creates_wins(at: Below) -> None:
    contents = [f"{number}".encode() for number in range(8)]
    won = together([lambda c=c: at.store.create(at.key("a"), c) for c in contents])
    (winner,) = [number for number, answer in enumerate(won) if answer is not None]
    assert whole(at.store, at.key("a")) == (contents[winner], won[winner])
    assert at.keys() == ["a"]


def test_ranges_are_read_from_the_given_version(at: Below) -> None:
    key = at.key("a")
    seen = at.store.create(key, b"0123456789")
    assert seen is not None
    assert read(at.store, key, 0, 10) == b"0123456789"
    assert read(at.store, key, 3, 4, seen.etag) == b"3456"
    assert read(at.store, key, 5, 0) == b""
    for start, size in ((8, 3), (10, 1), (100, 1)):
        with pytest.raises(CommitConflict):
            read(at.store, key, start, size)
    assert at.store.replace(key, b"abcdefghij", seen) is not None
    with pytest.raises(CommitConflict):
        read(at.store, key, 3, 4, seen.etag)
    at.store.remove([key])
    with pytest.raises(CommitConflict):
        read(at.store, key, 3, 4)


@pytest.mark.parametrize("size", [1000, 12 * MIB])
def test_writer_copies_its_input(at: Below, size: int) -> None:
    buffer = np.zeros(size, np.uint8)
    writer = at.store.writer(at.key("a"), 5 * MIB)
    for value in (1, 2):
        buffer[:] = value
        writer.write(buffer)
    buffer[:] = 3
    writer.close()
    found = at.store.get(at.key("a"))
    assert found is not None
    assert found[0] == b"\1" * size + b"\2" * size


def test_written_object_appears_completely_or_not_at_all(at: Below) -> None:
    key = at.key("data/1.log")
    content = np.random.default_rng(1).integers(0, 256, 19 * MIB + 7).astype(np.uint8)
    writer = at.store.writer(key, 5 * MIB)
    for start in range(0, len(content), 3 * MIB):
        writer.write(content[start : start + 3 * MIB])
        assert at.store.head(key) is None
        assert at.keys() == []
    found = writer.close()
    assert found == at.store.head(key)
    assert read(at.store, key, 0, len(content), found.version.etag) == content.tobytes()


@pytest.mark.parametrize("content", [b"", b"x"])
def test_small_object_is_written(at: Below, content: bytes) -> None:
    writer = at.store.writer(at.key("a"))
    if content:
        writer.write(content)
    assert writer.close().size_bytes == len(content)
    found = at.store.get(at.key("a"))
    assert found is not None and found[0] == content


@pytest.mark.parametrize("size", [0, 10, 12 * MIB])
def test_abandoned_object_leaves_nothing(at: Below, size: int, tmp_path: Path) -> None:
    writer = at.store.writer(at.key("data/1.log"), 5 * MIB)
    if size:
        writer.write(bytes(size))
    writer.abandon()
    assert at.keys() == []
    assert at.store.folders(at.prefix) == []
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []


def test_keys_are_listed_in_order_by_any_prefix(at: Below) -> None:
    names = ["a-b", "a.b", "a/b", "a/b-c", "ab", "b/5e-1.log", "b/5e-2.log", "b/5f-1.log", "c/d/e"]
    for name in reversed(names):
        assert at.store.create(at.key(name), b"") is not None
    assert at.keys() == names
    for prefix in ("a", "a/", "a/b", "b/5e-", "b/5e-1.log", "c/d", "nothing/", "b/6"):
        assert at.keys(prefix) == [name for name in names if name.startswith(prefix)]
    assert list(at.store.folders(at.prefix)) == ["a", "b", "c"]
    assert list(at.store.folders(at.key("c/"))) == ["d"]
    assert list(at.store.folders(at.key("nothing/"))) == []


def test_many_objects_are_listed_and_removed(at: Below) -> None:
    # Only buckets list and delete at most 1,000 objects in a request.
    many = range(1100) if isinstance(at.store, BucketStore) else range(980, 1010)
    names = [f"many/{number:04}" for number in many]
    for name in names:
        at.store.create(at.key(name), b"")
    assert at.keys() == names
    assert at.keys("many/10") == [name for name in names if name.startswith("many/10")]
    at.store.remove(map(at.key, names))
    assert at.keys() == []


def test_remove_ignores_missing_objects_and_deletes_empty_folders(
    at: Below,
) -> None:
    at.store.create(at.key("a/1"), b"")
    at.store.create(at.key("b/1"), b"")
    at.store.remove([at.key("a/0"), at.key("a/1"), at.key("none/1")])
    assert at.keys() == ["b/1"]
    assert list(at.store.folders(at.prefix)) == ["b"]
    at.store.remove([])


@pytest.mark.parametrize("key", ["", "/etc/x", "a//b", "../x", "a/../../x", "a/", "./a", "a\0b"])
def test_invalid_key_is_refused(at: Below, key: str) -> None:
    seen = Version("1")
    for call in (
        lambda: at.store.get(key),
        lambda: at.store.head(key),
        lambda: at.store.create(key, b""),
        lambda: at.store.replace(key, b"", seen),
        lambda: read(at.store, key, 0, 1),
        lambda: at.store.writer(key),
    ):
        with pytest.raises(LogError, match="is not a valid object key"):
            call()


# ---------------------------------------------------------------------- folders


def test_leftovers_of_a_crash_are_not_listed(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    store.writer("data/1.log").write(b"half")
    version = store.create("manifest.json", b"1")
    assert version is not None
    assert store.replace("manifest.json", b"2", version) is not None
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
    assert [found.key for found in store.list("")] == ["manifest.json"]
    assert list(store.folders("")) == []


def test_object_of_a_folder_is_written_once(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    store.create("a", b"first")
    writer = store.writer("a")
    writer.write(b"second")
    with pytest.raises(CommitConflict, match="another program created"):
        writer.close()
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_version_of_a_folder_object_is_never_reused(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    version = store.create("a", b"same")
    seen = {version}
    for _ in range(50):
        assert version is not None
        version = store.replace("a", b"same", version)
        assert version not in seen
        seen.add(version)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_folder_without_locks_is_refused_with_its_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = FolderStore(str(tmp_path))
    seen = store.create("manifest.json", b"1")
    assert seen is not None

    def flock(handle: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(LogError, match="does not support locks") as caught:
        store.replace("manifest.json", b"2", seen)
    assert f"the file system at {mount_of(str(tmp_path))} does not support" in caught.value.problem
    assert whole(store, "manifest.json") == (b"1", seen)


def test_folder_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    store = FolderStore(str(tmp_path))
    with pytest.raises(LogError, match="has no hard links"):
        store.create("a", b"1")
    assert os.listdir(tmp_path) == []


def upload(store: FolderStore) -> None:
    writer = store.writer("data/1.log")
    writer.write(b"1234")
    writer.write(b"5678")
    writer.close()


CHANGES: dict[str, Callable[[FolderStore, Version], Any]] = {
    "create": lambda store, seen: store.create("data/new", b"12345678"),
    "replace": lambda store, seen: store.replace("manifest.json", b"12345678", seen),
    "write": lambda store, seen: upload(store),
    "remove": lambda store, seen: store.remove(["manifest.json"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_interrupted_change_leaves_complete_objects(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in range(1, 100):
        store = FolderStore(str(tmp_path / str(point)))
        before = store.create("manifest.json", b"old")
        assert before is not None
        faults = files.FaultPoints(point, errno.EIO)
        monkeypatch.setattr(files, "faults", faults)
        is_done = False
        with contextlib.suppress(LogError, OSError):
            CHANGES[change](store, before)
            is_done = True
        monkeypatch.setattr(files, "faults", files.FaultPoints())
        for found in store.list(""):
            content = whole(store, found.key)
            assert content is not None
            is_old = found.key == "manifest.json" and content[0] == b"old"
            assert is_old or content[0] == b"12345678"
        # The next writer is not blocked.
        now = whole(store, "manifest.json")
        if now is not None:
            assert store.replace("manifest.json", b"next", now[1]) is not None
        assert store.create("data/new", b"12345678") is not None or whole(store, "data/new")
        if is_done:
            assert point > 2
            return
    raise AssertionError("the change has no end")


# ---------------------------------------------------------------------- buckets


@pytest.mark.broker
def test_abandoned_upload_leaves_no_parts(s3: S3) -> None:
    writer = BucketStore(ADDRESS, s3.settings).writer("upload/1.log", 5 * MIB)
    for _ in range(6):
        writer.write(bytes(3 * MIB))
    # an upload in progress may finish after ``abandon``
    while len(s3.unfinished("upload/1.log")) < 3:
        time.sleep(0.01)
    writer.abandon()
    assert s3.unfinished("upload/1.log") == []


@pytest.mark.broker
def test_requests_are_counted(s3: S3) -> None:
    store = BucketStore(ADDRESS, s3.settings)
    store.create("counted/a", b"12345")
    store.get("counted/a")
    store.head("counted/a")
    read(store, "counted/a", 1, 2)
    list(store.list("counted/"))
    store.folders("counted/")
    store.remove(["counted/a"])
    asked = store.requests
    assert (asked.gets, asked.puts, asked.lists, asked.deletes) == (3, 1, 2, 1)
    assert (asked.bytes_read, asked.bytes_written) == (7, 5)


@pytest.mark.broker
def test_forked_process_is_refused_without_hanging(s3: S3) -> None:
    store = BucketStore(ADDRESS, s3.settings)
    store.get("a")
    child = os.fork()
    if not child:
        try:
            BucketStore(ADDRESS, s3.settings).get("a")
        except LogError as error:
            os._exit(7 if "forked" in error.problem else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    store.get("a")


NOBODY = StoreSettings("http://127.0.0.1:1", allows_http=True, timeout_ms=2000, retries=1)


def refused(store: ObjectStore, call: str) -> RemoteFailed:
    with pytest.raises(RemoteFailed) as caught:
        match call:
            case "create":
                store.create("some/key", b"1")
            case "replace":
                store.replace("some/key", b"1", Version('"1"'))
            case "read":
                read(store, "some/key", 0, 1)
            case "list":
                list(store.list("some/"))
            case "remove":
                store.remove(["some/key"])
            case "write":
                writer = store.writer("some/key")
                writer.write(bytes(9 * MIB))
                writer.close()
            case "folders":
                store.folders("some/")
            case "get" | "head":
                getattr(store, call)("some/key")
    return caught.value


CALLS = ["get", "head", "create", "replace", "read", "list", "folders", "remove", "write"]


@pytest.mark.broker
@pytest.mark.parametrize("call", CALLS)
class TestRefused:
    """Each error states the problem and a remedy, without secrets."""

    def test_missing_bucket_is_named(self, s3: S3, call: str) -> None:
        error = refused(BucketStore("s3://nothing-here", s3.settings), call)
        assert error.problem == "the bucket does not exist"
        assert error.path == "s3://nothing-here"

    def test_wrong_secret_key_is_reported(
        self, s3: S3, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-one")
        error = refused(BucketStore(ADDRESS, s3.settings), call)
        assert "is forbidden (403" in error.problem
        assert "s3:" in error.problem
        text = f"{error}{error.__cause__}"
        assert os.environ["AWS_ACCESS_KEY_ID"] not in text
        assert "Signature=" not in text and "StringToSign" not in text

    def test_unknown_credentials_are_reported(
        self, s3: S3, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        for is_known in (False, True):
            store = BucketStore(ADDRESS, s3.settings)
            store._is_there = is_known  # the credentials have expired since the first request
            if is_known and call == "head":
                continue  # the answer to a HEAD has no body, and looks like a missing object
            error = refused(store, call)
            assert "is forbidden (404 XAdminUserNotFound)" in error.problem
            assert "AWS_ACCESS_KEY_ID" in str(error.remedy)

    def test_missing_credentials_are_reported(
        self, s3: S3, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_PROFILE", "")
        error = refused(BucketStore(ADDRESS, s3.settings), call)
        assert "no credentials were found" in error.problem
        assert "AWS_ACCESS_KEY_ID" in str(error.remedy)

    def test_wrong_region_is_reported(
        self, s3: S3, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_REGION", "eu-north-7")
        error = refused(BucketStore(ADDRESS, s3.settings), call)
        assert "another region" in error.problem or "400" in error.problem
        assert "storage.region" in str(error.remedy) or call == "head"

    def test_refused_connection_is_reported(self, s3: S3, call: str) -> None:
        error = refused(BucketStore(ADDRESS, NOBODY), call)
        assert "the connection was refused" in error.problem
        assert "storage.endpoint" in str(error.remedy)

    def test_http_must_be_allowed(self, s3: S3, call: str) -> None:
        error = refused(BucketStore(ADDRESS, StoreSettings(s3.endpoint)), call)
        assert "storage.allowHttp" in str(error.remedy)


@pytest.mark.broker
@pytest.mark.parametrize("call", CALLS)
def test_wrong_clock_is_named(spoilt: BucketStore, proxy: FaultProxy, call: str) -> None:
    proxy.spoil({"do": "503", "code": 403, "name": "RequestTimeTooSkewed"})
    error = refused(spoilt, call)
    # The answer to a HEAD has no body with this error.
    assert "clock is wrong" in error.problem or (call == "head" and "forbidden" in error.problem)


@pytest.mark.broker
def test_interrupt_does_not_wait_for_a_response(spoilt: BucketStore, proxy: FaultProxy) -> None:
    proxy.spoil({"method": "GET", "do": "hang", "seconds": 4})
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        spoilt.get("hangs")
    timer.join()
    assert proxy.gets(0) == []  # there is no answer yet: the interrupt ended the wait
    proxy.spoil()
    assert spoilt.get("hangs") is None


# ---------------------------------------------------------------------- buckets with faults


PASSING = {
    "503": {"do": "503", "times": 2},
    "lost": {"do": "lost", "times": 1},
    "drop": {"do": "drop", "times": 2},
    "drop at the start": {"do": "drop", "times": 2, "bytes": 1},
    "late": {"do": "late", "times": 1},
    "refuse": {"do": "refuse", "times": 2},
}


@pytest.fixture
def spoilt(s3: S3, proxy: FaultProxy) -> Iterator[BucketStore]:
    proxy.spoil()
    settings = StoreSettings(proxy.endpoint, allows_http=True, timeout_ms=5000)
    yield BucketStore(ADDRESS, settings)
    proxy.spoil()


@pytest.mark.broker
@pytest.mark.parametrize("fault", PASSING)
def test_reads_survive_network_faults(
    spoilt: BucketStore, proxy: FaultProxy, fault: str, request: pytest.FixtureRequest
) -> None:
    key = f"faults/{request.node.name.translate(str.maketrans('[] ', '---'))}"
    content = np.random.default_rng(2).integers(0, 256, 9 * MIB).astype(np.uint8).tobytes()
    small = spoilt.create(key + "/small", b"small")
    writer = spoilt.writer(key + "/large", 5 * MIB)
    writer.write(content)
    large = writer.close().version
    for question, answer in (
        (lambda: whole(spoilt, key + "/small"), (b"small", small)),
        (lambda: read(spoilt, key + "/large", 5, 9 * MIB - 5, large.etag), content[5:]),
        (lambda: [each.key for each in spoilt.list(key + "/")], [key + "/large", key + "/small"]),
        (lambda: spoilt.folders(key[: key.index("/") + 1]).count(key[7:]), 1),
    ):
        proxy.spoil({"method": "GET", **PASSING[fault]})
        assert question() == answer
        assert proxy.used()
    proxy.spoil({"method": "POST", "query": "delete", **PASSING[fault]})
    spoilt.remove([key + "/small"])
    assert proxy.used()
    assert spoilt.get(key + "/small") is None


@pytest.mark.broker
@pytest.mark.parametrize("fault", [*PASSING, "cutput"])
def test_upload_survives_network_faults(spoilt: BucketStore, proxy: FaultProxy, fault: str) -> None:
    rule = PASSING.get(fault, {"do": "cutput", "times": 1, "bytes": 100})
    content = np.random.default_rng(3).integers(0, 256, 13 * MIB).astype(np.uint8)
    for method, query in (("PUT", ""), ("POST", "uploadId")):
        key = f"uploads/{fault.replace(' ', '-')}-{method}"
        proxy.spoil({"method": method, "path": "uploads", "query": query, **rule})
        writer = spoilt.writer(key, 5 * MIB)
        writer.write(content)
        found = writer.close()
        assert proxy.used()
        assert read(spoilt, key, 0, len(content), found.version.etag) == content.tobytes()


@pytest.mark.broker
def test_failed_upload_leaves_no_parts(spoilt: BucketStore, proxy: FaultProxy, s3: S3) -> None:
    proxy.spoil({"method": "PUT", "path": "failing", "query": "partNumber=2", "do": "503"})
    writer = spoilt.writer("failing/1.log", 5 * MIB)
    with pytest.raises(RemoteFailed, match="s3:PutObject was refused at every retry: 503"):
        for _ in range(4):
            writer.write(bytes(4 * MIB))
        writer.close()
    assert s3.unfinished("failing/1.log") == []
    assert spoilt.head("failing/1.log") is None


# Rule, and whether the object is written in the end. None means that a read must find out.
CONDITIONAL = {
    "503": ({"do": "503", "times": 2}, True),
    "lost": ({"do": "lost", "times": 1}, True),
    "lost for good": ({"do": "lost"}, True),
    "late": ({"do": "late", "times": 1}, True),
    "late for good": ({"do": "late"}, True),
    "cutput": ({"do": "cutput", "times": 1, "bytes": 2}, True),
    "refuse": ({"do": "refuse", "times": 1}, True),
    "503 for good": ({"do": "503"}, False),
    "cutput for good": ({"do": "cutput", "bytes": 2}, False),
    "412": ({"do": "412"}, False),
    "409 for good": ({"do": "409"}, False),
}


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["create", "replace"])
@pytest.mark.parametrize("fault", CONDITIONAL)
def test_write_with_a_lost_response_is_resolved_by_reading(
    spoilt: BucketStore, proxy: FaultProxy, kind: str, fault: str
) -> None:
    rule, is_made = CONDITIONAL[fault]
    key = f"questions/{kind}-{fault.replace(' ', '-')}"
    assert spoilt.get(key) is None  # a round reads before it writes
    before = spoilt.create(key, b"before") if kind == "replace" else None

    def write() -> Version | None:
        if before is None:
            return spoilt.create(key, b"by us")
        return spoilt.replace(key, b"by us", before)

    proxy.spoil({"method": "PUT", "path": "questions", **rule})
    answer = write()
    assert proxy.used()
    proxy.spoil()
    found = whole(spoilt, key)
    if is_made:
        assert found is not None and found[0] == b"by us"
        assert answer in (None, found[1])
    else:
        assert answer is None
        assert found == (None if before is None else (b"before", before))
        assert write() is not None


@pytest.mark.broker
def test_conflict_response_for_a_missing_object_is_not_success(
    spoilt: BucketStore, proxy: FaultProxy
) -> None:
    spoilt.get("conflict/a")
    proxy.spoil({"method": "PUT", "path": "conflict", "do": "409", "times": 1})
    answer = spoilt.create("conflict/a", b"by us")
    found = whole(spoilt, "conflict/a")
    assert answer == (None if found is None else found[1])
