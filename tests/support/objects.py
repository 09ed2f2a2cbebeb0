"""Object stores for tests: one in memory, and a real S3 server, with or without a proxy of faults.

``LASTWRITE_PEERS`` names the folder of peers (default: ``shared/peers`` beside the repository).
``LASTWRITE_S3_HOME`` names a folder with the server's program. Without one, Go builds it once, in
the user's cache. Tests that need the server are skipped with the reason if it cannot be built.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lastwrite.errors import CommitConflict
from lastwrite.model.columns import ByteArray
from lastwrite.model.stores import StoreSettings
from lastwrite.storage.objects.store import ObjectInfo, Requests, Version, check_key
from tests.support.jars import Unavailable, alone, fetch_jars, free_ports, need_java

REPOSITORY = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("LASTWRITE_PEERS", REPOSITORY.parent / "shared" / "peers"))
PEER = PEERS / "objectstore"
BUCKET = "archive"


class MemoryStore:
    """A minimal object store in memory. Its clock is ``now_ms``, which tests set."""

    is_providers = True

    def __init__(self) -> None:
        self.address = "memory"
        self.requests = Requests()
        self.now_ms = 0
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._number = 0
        self._lock = threading.Lock()

    def head(self, key: str) -> ObjectInfo | None:
        check_key(key, self.address)
        self.requests.gets += 1
        found = self._objects.get(key)
        return None if found is None else found[1]

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        check_key(key, self.address)
        self.requests.gets += 1
        return self._objects.get(key)

    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        found = self.get(key)
        if found is None or (etag and found[1].version.etag != etag):
            raise CommitConflict("the object is another one now, or gone", path=key)
        part = found[0][position : position + len(target)]
        if len(part) < len(target):
            raise CommitConflict("the object is shorter than it was", position, key)
        memoryview(target)[:] = part

    def create(self, key: str, content: bytes) -> Version | None:
        return self._put(key, content, None)

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        return self._put(key, content, version)

    def _put(self, key: str, content: bytes, seen: Version | None) -> Version | None:
        check_key(key, self.address)
        with self._lock:
            self.requests.puts += 1
            there = self._objects.get(key)
            if (None if there is None else there[1].version) != seen:
                return None
            self._number += 1
            found = ObjectInfo(key, len(content), Version(str(self._number)), self.now_ms)
            self._objects[key] = content, found
            return found.version

    def writer(self, key: str, part_bytes: int = 8 << 20) -> MemoryWriter:
        check_key(key, self.address)
        return MemoryWriter(self, key)

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.requests.deletes += 1
            self._objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.requests.lists += 1
        for key in sorted(self._objects):
            if key.startswith(prefix):
                yield self._objects[key][1]

    def remove_unfinished(self, prefix: str, older_than_ms: int) -> None:
        """Do nothing: an upload to memory has no unfinished parts."""

    def folders(self, prefix: str) -> Any:
        below = [key[len(prefix) :] for key in self._objects if key.startswith(prefix)]
        return sorted({key.partition("/")[0] for key in below if "/" in key})


class MemoryWriter:
    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self._key, self._parts = store, key, bytearray()

    def write(self, data: bytes | ByteArray) -> None:
        self._parts += memoryview(data)

    def close(self) -> ObjectInfo:
        self._store.create(self._key, bytes(self._parts))
        found = self._store.head(self._key)
        assert found is not None
        return found

    def abandon(self) -> None:
        self._parts.clear()


@functools.cache
def s3_home() -> Path:
    """The folder with the server's program. Skips the test if it cannot be built."""
    if not (PEER / "setup.sh").exists():
        pytest.skip(f"no S3 peer at {PEER}; LASTWRITE_PEERS names the folder of peers")
    pytest.importorskip("obstore")
    given = os.environ.get("LASTWRITE_S3_HOME")
    if given and (Path(given) / "versitygw").exists():
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lastwrite" / "s3"
    with alone(cache):
        if not (cache / "versitygw").exists():
            if shutil.which("go") is None:
                pytest.skip("Go is missing, which builds the S3 server (LASTWRITE_S3_HOME has it?)")
            made = subprocess.run(
                [str(PEER / "setup.sh"), str(cache)], capture_output=True, text=True, check=False
            )
            if made.returncode:
                pytest.skip(f"the S3 server was not built: {made.stderr.strip()[-300:]}")
    return cache


@dataclass(frozen=True)
class S3:
    """A running S3 server. Its credentials are environment variables."""

    endpoint: str
    data: Path

    @property
    def settings(self) -> StoreSettings:
        return StoreSettings(self.endpoint, allows_http=True, timeout_ms=10_000)

    @property
    def config(self) -> dict[str, str]:
        """The same settings as configuration of a command."""
        return {"storage.endpoint": self.endpoint, "storage.allowHttp": "true"}

    def unfinished(self, key: str) -> list[Path]:
        """The uploaded parts of an object whose upload was neither completed nor aborted."""
        name = hashlib.sha256(key.encode()).hexdigest()
        parts = self.data.glob(f"*/.sgwtmp/multipart/{name}/**/*")
        return [path for path in parts if path.is_file()]


@contextlib.contextmanager
def s3_server(folder: Path, *buckets: str) -> Iterator[S3]:
    """An S3 server over ``folder`` with these buckets.

    Sets its credentials as environment variables.
    """
    home = s3_home()
    command = [str(PEER / "start.sh"), str(home), str(folder), "0", *(buckets or (BUCKET,))]
    started = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    said = dict(word.split("=", 1) for word in started.split() if "=" in word)
    told = {
        "AWS_ACCESS_KEY_ID": said["access_key"],
        "AWS_SECRET_ACCESS_KEY": said["secret_key"],
        "AWS_REGION": said["region"],
    }
    before = dict(os.environ)
    os.environ.update(told)
    try:
        yield S3(said["endpoint"], folder)
    finally:
        os.environ.clear()
        os.environ.update(before)
        subprocess.run([str(PEER / "stop.sh"), str(folder)], check=True)


@contextlib.contextmanager
def s3proxy_server(folder: Path) -> Iterator[dict[str, str]]:
    """The settings of an s3proxy over ``folder``, a store without atomic compare-and-swap.

    Two writers that replace the same version both succeed. Sets the credentials as environment
    variables. Skips the test if s3proxy cannot be fetched.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lastwrite"
    home = Path(os.environ.get("LASTWRITE_S3PROXY_HOME", cache / "s3proxy-4.1.0"))
    try:
        need_java()
        fetch_jars(home, "s3proxy", Path(__file__).parent / "s3proxy/pom.xml", "s3proxy-4.1.0.jar")
    except Unavailable as missing:
        pytest.skip(str(missing))
    (port,) = free_ports(1)
    (folder / "data" / BUCKET).mkdir(parents=True)
    told = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": "tester",
        "s3proxy.credential": "testersecret",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(folder / "data"),
    }
    settings, log = folder / "s3proxy.conf", folder / "s3proxy.log"
    settings.write_text("".join(f"{name}={value}\n" for name, value in told.items()))
    command = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/lib/*"]
    command += ["org.gaul.s3proxy.Main", "--properties", str(settings)]
    with (
        log.open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        try:
            for _ in range(1200):
                assert server.poll() is None, log.read_text()
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            patch.setenv("AWS_ACCESS_KEY_ID", "tester")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "testersecret")
            patch.setenv("AWS_REGION", "us-east-1")
            endpoint = told["s3proxy.endpoint"]
            yield {"storage.endpoint": endpoint, "storage.allowHttp": "true"}
        finally:
            server.terminate()


class FaultProxy:
    """A proxy before a server that applies fault rules. See the peer's ``faultproxy.py``."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def spoil(self, *rules: dict[str, Any]) -> None:
        self._send("PUT", "/_faults", json.dumps(rules).encode())
        self._send("DELETE", "/_log")

    def used(self) -> int:
        """How many requests a rule was applied to."""
        return sum(rule["used"] for rule in json.loads(self._send("GET", "/_faults")))

    def requests(self, count: int, method: str = "") -> list[dict[str, Any]]:
        """The logged requests.

        Waits until there are ``count``: each is logged a moment after its answer.
        """
        found: list[dict[str, Any]] = []
        for _ in range(200):
            lines = json.loads(self._send("GET", "/_log"))
            found = [line for line in lines if method in ("", line["method"])]
            if len(found) >= count:
                break
            time.sleep(0.01)
        return found

    def gets(self, count: int) -> list[dict[str, Any]]:
        """The logged GET requests. See ``requests``."""
        return self.requests(count, "GET")

    def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.endpoint + path, body, method=method)
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
            return content


@contextlib.contextmanager
def fault_proxy(endpoint: str) -> Iterator[FaultProxy]:
    process = subprocess.Popen(
        [sys.executable, str(PEER / "faultproxy.py"), endpoint], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        said = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        yield FaultProxy(said["endpoint"])
    finally:
        process.terminate()
        process.wait()
