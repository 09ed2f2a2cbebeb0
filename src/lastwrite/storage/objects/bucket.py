"""A bucket as a store, accessed by obstore: S3 and compatible stores, Google's and Azure's.

Four properties of the client explain this module:

- The client retries a conditional write whose response was lost. If the first attempt succeeded,
  the retry reports that the object exists. The result None is therefore ambiguous (see
  ``ObjectStore``).
- The client resumes a response that breaks off, except for small objects and listings. This module
  reads these again.
- Ctrl-C does not interrupt a call. The main thread therefore makes its calls in another thread.
- Calls hang in a process that was forked after the first request. This module refuses such calls.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from queue import SimpleQueue
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from lastwrite.errors import CommitConflict, InvalidConfig, LogError, RemoteFailed, missing_extra
from lastwrite.model.columns import ByteArray
from lastwrite.model.stores import StoreSettings
from lastwrite.storage import files
from lastwrite.storage.objects.refusal import Refusal, no_bucket
from lastwrite.storage.objects.store import ObjectInfo, Requests, Version, check_key

T = TypeVar("T")

# bytes per read request, few enough to arrive on a slow connection before the timeout
RANGE_BYTES = 8 << 20
_ENDPOINTS = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL_S3",
    "GOOGLE_BASE_URL",
    "AZURE_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
)  # environment variables with the address of a store
LEAST_PART_BYTES = 5 << 20  # minimum size of a part of an upload in S3
AT_ONCE = 1000  # maximum number of objects that one request lists or deletes
_CONNECT = timedelta(seconds=3)
_ALL_TRIES = timedelta(minutes=3)
_AGAIN = (
    "nothing was changed; stop the program that writes to the bucket, then run the command again"
)

_TRIES = 3  # number of attempts if the response to a read breaks off

_asked_in: int | None = None  # id of the process that sent the first request to a store


class BucketStore:
    """The bucket at ``address``: ``s3://``, ``gs://`` or ``az://`` and its name.

    Raises:
        EnvironmentUnfit: the client is not installed.
        RemoteFailed: the settings are not usable.
    """

    def __init__(self, address: str, settings: StoreSettings | None = None) -> None:
        self.address = address
        elsewhere = settings is not None and settings.endpoint
        self.is_providers = not (elsewhere or any(map(os.environ.get, _ENDPOINTS)))
        self.requests = Requests()
        self._scheme, _, bucket = address.partition("://")
        self._lock = threading.Lock()
        self._is_there = False  # whether a response has shown that the bucket exists
        self._client = _client(address)
        self._errors = (OSError, ValueError, self._client.exceptions.BaseError)
        try:
            self._store = _open(self._scheme, bucket, settings or StoreSettings())
        except LogError:
            raise
        # the client sent no request, because an account or a key is missing
        except Exception as error:
            raise replace(Refusal.of(error), is_nobody=True).error(address, "get") from None

    def head(self, key: str) -> ObjectInfo | None:
        self._count(key, gets=1)
        answer = self._request(lambda: self._client.head(self._store, key))
        if isinstance(answer, Refusal):
            self._check_absent(answer, key)
            return None
        return self._found(answer)

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        def read() -> tuple[bytes, ObjectInfo]:
            answer = self._client.get(self._store, key)
            return bytes(answer.bytes()), self._found(answer.meta)

        self._count(key, gets=1)
        answer = self._request(read)
        if isinstance(answer, Refusal):
            self._check_absent(answer, key)
            return None
        self._count(bytes_read=len(answer[0]))
        return answer

    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        view = memoryview(target)
        for start in range(0, len(view), RANGE_BYTES):
            part = view[start : start + RANGE_BYTES]
            part[:] = self._range(key, position + start, len(part), etag)

    def _range(self, key: str, position: int, size_bytes: int, etag: str) -> memoryview:
        options: dict[str, Any] = {"range": (position, position + size_bytes)}
        if etag:
            options["if_match"] = etag
        self._count(key, gets=1)
        answer = self._request(
            lambda: memoryview(self._client.get(self._store, key, options=options).bytes())
        )
        if not isinstance(answer, Refusal):
            self._count(bytes_read=len(answer))
            if len(answer) == size_bytes:
                return answer
            changed = "another program shortened the object during the command"
        elif answer.is_condition:
            changed = "another program replaced the object during the command"
        elif answer.status == 416:
            changed = "another program shortened the object during the command"
        else:
            self._check_absent(answer, key)
            changed = "another program deleted the object during the command"
        raise CommitConflict(changed, position, self._url(key), _AGAIN)

    def create(self, key: str, content: bytes) -> Version | None:
        return self._put(key, content, "create")

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        mode = {"e_tag": version.etag}
        if version.generation is not None:
            mode["version"] = version.generation
        return self._put(key, content, mode)

    def _put(self, key: str, content: bytes, mode: str | Mapping[str, str]) -> Version | None:
        self._count(key, puts=1, bytes_written=len(content))
        was_there = self._is_there
        files.faults.reach("put", self._url(key))
        answer = self._request(
            lambda: self._client.put(self._store, key, content, mode=mode), tries=1
        )
        if not isinstance(answer, Refusal):
            return self._version(answer)
        # If the result is None, the caller checks the object. That check would fail too if the
        # store has never responded, so in this case the error is raised here.
        if answer.is_condition or (answer.is_passing and was_there):
            return None
        raise answer.error(self._url(key), "put")

    def _put_new(self, key: str, content: bytes) -> ObjectInfo:
        """Write a small object under a unique key. The client may retry."""
        self._count(key, puts=1, bytes_written=len(content))
        answer = self._request(lambda: self._client.put(self._store, key, content))
        if isinstance(answer, Refusal):
            raise answer.error(self._url(key), "put")
        return ObjectInfo(key, len(content), self._version(answer), 0)

    def writer(self, key: str, part_bytes: int = RANGE_BYTES) -> BucketWriter:
        check_key(key, self.address)
        return BucketWriter(self, key, max(part_bytes, LEAST_PART_BYTES))

    def remove(self, keys: Iterable[str]) -> None:
        waiting = iter(keys)
        while batch := list(islice(waiting, AT_ONCE)):
            if not self._remove(batch) and len(batch) > 1:
                # Delete the objects one by one: Google's and Azure's stores stop a batch at a
                # missing object.
                for key in batch:
                    self._remove([key])

    def _remove(self, batch: Iterable[str]) -> bool:
        keys = [*batch]
        for key in keys:
            check_key(key, self.address)
        self._count(deletes=1)
        files.faults.reach("remove", self._url(keys[0]))
        answer = self._request(lambda: self._client.delete(self._store, keys))
        if isinstance(answer, Refusal):
            self._check_absent(answer, keys[0], "delete")
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        above, slash, name = prefix.rpartition("/")
        # The client lists whole folders. For a partial name, the listing starts just before that
        # name.
        after = prefix[:-1] if name else ""
        pages, seen, tries = self._pages(above + slash, after), 0, _TRIES
        while True:
            page = self._request(partial(next, pages, None), tries=1)
            if isinstance(page, Refusal):
                tries -= 1
                if not (tries and page.is_broken):
                    raise page.error(self._url(prefix), "list")
                pages = self._pages(above + slash, after)
                continue
            if page is None:
                return
            seen, tries = seen + len(page), _TRIES
            if seen > AT_ONCE:
                self._count(lists=1)
            for each in page:
                after = each["path"]
                if after.startswith(prefix):
                    yield self._found(each)
                elif after > prefix:
                    return

    def _pages(self, folder: str, after: str) -> Any:
        self._count(lists=1)
        return self._client.list(
            self._store, folder or None, offset=after or None, chunk_size=AT_ONCE
        )

    def remove_unfinished(self, prefix: str, older_than_ms: int) -> None:
        """Do nothing: the bucket's lifecycle rules abort unfinished uploads."""

    def folders(self, prefix: str) -> Sequence[str]:
        self._count(lists=1)
        answer = self._request(
            lambda: self._client.list_with_delimiter(self._store, prefix.rstrip("/") or None)
        )
        if isinstance(answer, Refusal):
            raise answer.error(self._url(prefix), "list")
        found = [each.rstrip("/").rpartition("/")[2] for each in answer["common_prefixes"]]
        pages = math.ceil((len(found) + len(answer["objects"])) / AT_ONCE)
        self._count(lists=max(0, pages - 1))
        return sorted(found)

    def _request(self, do: Callable[[], T], tries: int = _TRIES) -> T | Refusal:
        """Send a request. Returns the response, or the refusal of the last attempt."""
        _reject_forked()
        while True:
            try:
                answer = _interruptibly(do)
            except self._errors as error:
                refusal = Refusal.of(error)
                # a failed condition shows that the bucket exists
                self._is_there |= refusal.is_condition
                tries -= 1
                if not (tries and refusal.is_broken):
                    return refusal
            else:
                self._is_there = True
                return answer

    def _check_absent(self, refusal: Refusal, key: str, action: str = "get") -> None:
        """Raise the error, unless it only means that the object does not exist."""
        if not refusal.is_absent:
            raise refusal.error(self._url(key), action)
        if not self._is_there:
            # Send a second request: to HEAD, a missing object and a missing bucket give the same
            # response.
            self._count(lists=1)
            listed = self._request(
                lambda: next(self._client.list(self._store, "_lastwrite/none/", chunk_size=1), None)
            )
            if isinstance(listed, Refusal) and listed.status == 404:
                raise listed.error(self.address, "list") if listed.code else no_bucket(self.address)

    def _url(self, key: str) -> str:
        return f"{self.address}/{key}"

    def _version(self, meta: Mapping[str, Any]) -> Version:
        # Ignore the versions of S3 and Azure, because conditional requests do not use them.
        generation = meta["version"] if self._scheme == "gs" else None
        return Version(meta["e_tag"] or "", generation)

    def _found(self, meta: Mapping[str, Any]) -> ObjectInfo:
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectInfo(meta["path"], meta["size"], self._version(meta), modified_ms)

    def _count(self, key: str | None = None, **asked: int) -> None:
        """Add to the count of requests. Thread-safe. With ``key``, also check the key."""
        if key is not None:
            check_key(key, self.address)
        with self._lock:
            for name, number in asked.items():
                setattr(self.requests, name, getattr(self.requests, name) + number)


class BucketWriter:
    """An upload of one object, which exists after ``close``.

    Sends one part while the next is filled. Data that fits into one part takes one request.
    """

    def __init__(self, store: BucketStore, key: str, part_bytes: int) -> None:
        self._store, self._key, self._part_bytes = store, key, part_bytes
        self._written = 0
        self._small: list[bytes] = []  # all data so far; used while the data fits into one part
        self._file: Any = None
        _reject_forked()

    def write(self, data: bytes | ByteArray) -> None:
        files.faults.reach("write", self._store._url(self._key))
        # copied, because the caller may change ``data`` before it is sent
        kept = data if isinstance(data, bytes) else bytes(data)
        self._written += len(kept)
        if self._file is None and self._written <= self._part_bytes:
            self._small.append(kept)
            return
        if self._file is None:
            self._file = self._store._client.open_writer(
                self._store._store, self._key, buffer_size=self._part_bytes, max_concurrency=1
            )
            waiting, self._small = self._small, []
            for part in waiting:
                self._send(part)
        self._send(kept)

    def _send(self, part: bytes) -> None:
        answer = self._store._request(lambda: self._file.write(part), tries=1)
        if isinstance(answer, Refusal):
            self._fail(answer)

    def close(self) -> ObjectInfo:
        files.faults.reach("finish", self._store._url(self._key))
        if self._file is None:
            return self._store._put_new(self._key, b"".join(self._small))
        answer = self._store._request(self._file.close, tries=1)
        if isinstance(answer, Refusal):
            # The response may be lost, or the client may have retried after a completed upload. The
            # object shows whether the upload completed, because its key is unique.
            may_be = answer.is_passing or answer.code == "NoSuchUpload"
            made = self._store.head(self._key) if may_be else None
            if made is None or made.size_bytes != self._written:
                self._fail(answer)
        parts = math.ceil(self._written / self._part_bytes)
        # An upload of several parts needs one more request at its start and at its end.
        puts = parts + 2 if parts > 1 else 1
        self._store._count(puts=puts, bytes_written=self._written)
        found = self._store.head(self._key)
        if found is None or found.size_bytes != self._written:
            raise RemoteFailed(
                f"the store has only {found.size_bytes if found else 0} of the "
                f"{self._written} bytes that it acknowledged",
                path=self._store._url(self._key),
                remedy="use another store: this one loses acknowledged data",
            )
        return found

    def abandon(self) -> None:
        self._small = []
        if self._file is None:
            return
        # the client aborts the upload, as after an error in a with-block
        error = KeyboardInterrupt()
        self._store._request(lambda: self._file.__exit__(type(error), error, None), tries=1)

    def _fail(self, refusal: Refusal) -> NoReturn:
        self.abandon()
        raise refusal.error(self._store._url(self._key), "put")


class _Helper:
    """A thread that makes the main thread's client calls, so that Ctrl-C can interrupt them."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="lastwrite-store", daemon=True).start()

    def begin(self, do: Callable[[], T]) -> Future[T]:
        answer: Future[T] = Future()
        self._calls.put((do, answer))
        return answer

    def _run(self) -> None:
        while True:
            do, answer = self._calls.get()
            try:
                answer.set_result(do())
            except BaseException as error:
                answer.set_exception(error)
            del do, answer  # delete the references, so that only the caller has the result


_helpers: list[_Helper] = []


def _interruptibly(do: Callable[[], T]) -> T:
    if threading.current_thread() is not threading.main_thread():
        return do()  # no helper is needed, because Ctrl-C interrupts only the main thread
    helper = _helpers.pop() if _helpers else _Helper()
    answer = helper.begin(do)
    try:
        return answer.result()
    finally:
        if answer.done():  # reuse the helper, unless its call was interrupted
            _helpers.append(helper)


def _client(address: str) -> ModuleType:
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise missing_extra("an archive in a bucket", "obstore", "objects", path=address) from None


def _open(scheme: str, bucket: str, settings: StoreSettings) -> Any:
    empty = next((name for name in _ENDPOINTS if os.environ.get(name) == ""), None)
    if empty is not None:  # the client would use this variable's empty value as an address
        raise InvalidConfig(
            f"the environment variable {empty} is empty",
            remedy=f"unset {empty}, or give it a value",
        )
    stores = importlib.import_module("obstore.store")
    timeout = timedelta(milliseconds=settings.timeout_ms)
    given: dict[str, Any] = {
        "client_options": {
            "timeout": timeout,
            "connect_timeout": min(timeout, _CONNECT),
            "allow_http": settings.allows_http or _is_set("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"),
        },
        "retry_config": {"max_retries": settings.retries, "retry_timeout": _ALL_TRIES},
    }
    if scheme == "gs":
        return stores.GCSStore(bucket, **_stated(base_url=settings.endpoint), **given)
    if scheme == "az":
        return stores.AzureStore(bucket, **_stated(endpoint=settings.endpoint), **given)
    return stores.S3Store(
        bucket,
        **_stated(endpoint=settings.endpoint, region=settings.region),
        virtual_hosted_style_request=not settings.is_path_style,
        credential_provider=_profile(),
        **given,
    )


def _stated(**given: str) -> dict[str, str]:
    return {name: value for name, value in given.items() if value}


def _is_set(*names: str) -> bool:
    return any(os.environ.get(name, "").lower() in ("1", "true") for name in names)


def _profile() -> Any:
    """A boto3 credential provider for the profile in ``~/.aws``.

    None without a profile, or if the environment has an access key.
    """
    folder = os.path.expanduser("~/.aws")
    has_profile = "AWS_PROFILE" in os.environ or any(
        os.path.exists(os.path.join(folder, name)) for name in ("credentials", "config")
    )
    if not has_profile or "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    if importlib.util.find_spec("boto3") is None:
        return None
    try:
        session = importlib.import_module("boto3").session.Session()
        if session.get_credentials() is None:
            return None
    except Exception as error:
        raise RemoteFailed(
            f"boto3 found no credentials in ~/.aws: {type(error).__name__}",
            remedy="check AWS_PROFILE, and the profile of this name in ~/.aws",
        ) from None
    return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider(session)


def _reject_forked() -> None:
    """Check that this process is not a fork of one that used a store: its requests would hang.

    Raises:
        LogError: this process was forked from one that has used a store.
    """
    global _asked_in
    if _asked_in is None:
        _asked_in = os.getpid()
    elif _asked_in != os.getpid():
        raise LogError(
            "this process was forked after its parent had used an object store, so requests "
            "would hang",
            remedy="report this as a bug; in your own program, start processes with the method "
            "spawn",
        )
