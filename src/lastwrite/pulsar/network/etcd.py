"""The metadata store in etcd, accessed by etcd's JSON gateway.

A node's key is its path, and no parent node is needed. Versions count from 1 in etcd and from 0 in
Pulsar; this module uses etcd's. Each writer that needs a unique number rewrites the folder's key
and uses the new version as the number.

Source: Pulsar 4.2.4 ``EtcdMetadataStore``; etcd 3.4 ``rpc.proto``, its gateway.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.pulsar.network.nodes import MetadataTimeout, Node, NodeExists, VersionMismatch
from lastwrite.pulsar.network.tls import tls_context
from lastwrite.pulsar.network.zookeeper import digest_of_user
from lastwrite.pulsar.rules.live_settings import TlsFiles

_SCHEME = "etcd:"
_MOST_BYTES = 256 << 20  # maximum bytes of an answer
_RETRY_SECONDS = 0.2
_UNREACHED = "check that etcd is running at this address, and that this machine can reach it"
_REFUSED = (401, 403)


class _Refused(Exception):
    """Raised if etcd rejects a request. ``status`` is the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Etcd:
    """A metadata store in etcd; implements ``nodes.Nodes``.

    ``url`` is ``etcd:http://HOST:PORT,http://HOST:PORT``, or ``https`` with the files of ``tls``.
    ``auth`` is ``digest:USER:PASSWORD`` if etcd requires a login.

    Raises:
        InvalidConfig: the address is invalid, or a file of ``tls`` cannot be read.
    """

    read_only = ""

    def __init__(self, url: str, timeout: float, auth: str, tls: TlsFiles) -> None:
        self.address = url
        self._timeout = timeout
        parts = [urlsplit(part.strip()) for part in url.removeprefix(_SCHEME).split(",")]
        if not all(part.scheme in ("http", "https") and part.hostname for part in parts):
            raise InvalidConfig(
                f"{url!r} is not an etcd address",
                remedy="give metadataStoreUrl=etcd:http://HOST:PORT,http://HOST:PORT, or the same "
                "with https",
            )
        self._servers = [(p.scheme == "https", p.hostname or "", p.port or 2379) for p in parts]
        self._tls = tls_context(tls) if any(is_tls for is_tls, _, _ in self._servers) else None
        self._login = digest_of_user(auth)
        self._token = ""
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ reading

    def find(self, path: str, doing: str) -> Node | None:
        found = self._request("kv/range", {"key": _text(path)}, doing).get("kvs") or []
        return Node(_bytes(found[0].get("value")), int(found[0]["version"])) if found else None

    def children(self, path: str, doing: str) -> list[str]:
        prefix = f"{path.rstrip('/')}/"
        end = prefix[:-1] + chr(ord("/") + 1)
        asked = {"key": _text(prefix), "range_end": _text(end), "keys_only": True}
        found = self._request("kv/range", asked, doing).get("kvs") or []
        names = (_bytes(each["key"]).decode()[len(prefix) :] for each in found)
        return sorted({name.partition("/")[0] for name in names if name})

    # ------------------------------------------------------------------ changes

    def create(self, path: str, data: bytes, doing: str) -> int:
        if not self._done(_if_version(path, 0, _put(path, data)), doing):
            raise NodeExists
        return 1

    def replace(self, path: str, data: bytes, version: int, doing: str) -> None:
        if not self._done(_if_version(path, version, _put(path, data)), doing):
            raise VersionMismatch

    def delete(self, path: str, doing: str) -> None:
        self._request("kv/deleterange", {"key": _text(path)}, doing)

    def number(self, prefix: str, doing: str) -> str:
        folder = prefix.rpartition("/")[0]
        asked = {
            "success": [_put(folder, b""), {"request_range": {"key": _text(folder)}}],
        }
        answer = self._request("kv/txn", asked, doing)
        try:
            (found,) = answer["responses"][1]["response_range"]["kvs"]
            return f"{int(found['version']) - 1:010d}"
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._strange(doing) from error

    def _done(self, asked: Mapping[str, object], doing: str) -> bool:
        """Request a change once. Returns whether etcd made the change."""
        try:
            return bool(self._once("kv/txn", asked, doing).get("succeeded"))
        except RemoteFailed as error:
            raise MetadataTimeout(error) from error

    # ------------------------------------------------------------------ requests

    def _request(self, what: str, asked: Mapping[str, object], doing: str) -> dict[str, Any]:
        """Send a request to one of the servers, and repeat it with the others until the timeout."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._once(what, asked, doing)
            except RemoteFailed as error:
                if not isinstance(error.__cause__, OSError | http.client.HTTPException):
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _once(self, what: str, asked: Mapping[str, object], doing: str) -> dict[str, Any]:
        """Send a request once.

        Raises:
            RemoteFailed: no answer, or a refusal.
        """
        try:
            if self._login is not None and not self._token:
                self._log_in(doing)
            try:
                return self._exchange(what, asked)
            except _Refused as error:
                if "invalid auth token" not in str(error) or self._login is None:
                    raise
                self._log_in(doing)
                return self._exchange(what, asked)
        except _Refused as error:
            refuses = error.status in _REFUSED or "permission denied" in str(error)
            refuses = refuses or "user name is empty" in str(error)
            remedy = (
                "set metadataStoreAuth=digest:USER:PASSWORD to a user that may read and write "
                "the cluster's metadata"
                if refuses
                else None
            )
            words = f"{doing}: etcd refuses the request: {error}"
            raise RemoteFailed(words, path=self.address, remedy=remedy) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._servers.append(self._servers.pop(0))  # the next request goes to the next server
            words = f"{doing}: {str(error) or type(error).__name__}"
            raise RemoteFailed(words, path=self.address, remedy=_UNREACHED) from error
        except ValueError as error:
            self.close()
            raise self._strange(doing) from error

    def _log_in(self, doing: str) -> None:
        assert self._login is not None
        user, _, password = self._login[1].partition(":")
        self._token = ""
        asked = {"name": user, "password": password}
        self._token = str(self._exchange("auth/authenticate", asked).get("token") or "")

    def _exchange(self, what: str, asked: Mapping[str, object]) -> dict[str, Any]:
        if self._connection is None:
            is_tls, host, port = self._servers[0]
            self._connection = (
                http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)
                if is_tls
                else http.client.HTTPConnection(host, port, timeout=self._timeout)
            )
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        self._connection.request("POST", f"/v3/{what}", json.dumps(asked), headers)
        answer = self._connection.getresponse()
        body = answer.read(_MOST_BYTES)
        found = json.loads(body)
        if not isinstance(found, dict):
            raise ValueError
        if answer.status != http.HTTPStatus.OK:
            said = found.get("message") or found.get("error") or f"HTTP status {answer.status}"
            raise _Refused(answer.status, str(said))
        return found

    def _strange(self, doing: str) -> RemoteFailed:
        return RemoteFailed(
            f"{doing}: the answer is not etcd's",
            path=self.address,
            remedy="check that this address is etcd's",
        )


def _text(path: str | bytes) -> str:
    return base64.b64encode(path.encode() if isinstance(path, str) else path).decode()


def _bytes(text: object) -> bytes:
    with contextlib.suppress(TypeError):
        return base64.b64decode(str(text or ""), validate=True)
    return b""


def _put(path: str, data: bytes) -> dict[str, object]:
    return {"request_put": {"key": _text(path), "value": _text(data)}}


def _if_version(path: str, version: int, change: dict[str, object]) -> dict[str, object]:
    """A transaction that makes a change if the key has this version.

    Version 0 means that the key does not exist.
    """
    compare = {"key": _text(path), "target": "VERSION", "result": "EQUAL", "version": str(version)}
    return {"compare": [compare], "success": [change]}
