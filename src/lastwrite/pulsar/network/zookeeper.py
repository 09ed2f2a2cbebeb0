"""The metadata store in ZooKeeper, accessed by kazoo, with access lists of the scheme digest.

Reads are repeated until the timeout if the connection is interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL

from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.pulsar.network.nodes import MetadataTimeout, Node, NodeExists, VersionMismatch
from lastwrite.pulsar.network.probe import probe_addresses
from lastwrite.pulsar.rules.live_settings import path_of

DEFAULT_PORT = 2181

_RETRY_SECONDS = 0.2
_FIRST_SECONDS = 1.0  # seconds to wait for a connection before the addresses are probed
_START_AGAIN = "check the metadata store, then run the command again"
_UNREACHED = (
    "check that the metadata store is running at this address, and that this machine can reach it"
)
_AGAIN = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    KazooTimeoutError,
)
_SERVERS = re.compile(r"[\w.\-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?", re.ASCII)

# kazoo logs every change of a connection as a warning. These are not shown, because relevant
# changes raise errors.
_LOG = logging.getLogger("lastwrite.zookeeper")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False


class ZooKeeper:
    """A metadata store in ZooKeeper; implements ``nodes.Nodes``.

    The connection starts with the first request.

    ``url`` is ``zk:HOST:PORT,HOST:PORT/chroot`` as in the brokers' ``metadataStoreUrl``; the scheme
    is optional. ``like`` is a node whose access list new nodes get. ``auth`` is the user, as in
    ``LiveConfig``.

    Raises:
        InvalidConfig: the address is invalid.
    """

    read_only = ""

    def __init__(self, url: str, timeout: float, auth: str, like: str) -> None:
        self.address = parse_store_url(url)
        self._auth = digest_of_user(auth)
        self._timeout = timeout
        self._like = like
        self._client: Any = None

    def close(self) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None

    def find(self, path: str, doing: str) -> Node | None:
        try:
            data, stat = self._request(lambda client: client.get_async(path), doing)
        except NoNodeError:
            return None
        return Node(data or b"", stat.version)

    def children(self, path: str, doing: str) -> list[str]:
        try:
            return list(self._request(lambda client: client.get_children_async(path), doing))
        except NoNodeError:
            return []

    def create(self, path: str, data: bytes, doing: str) -> int:
        try:
            self._once(lambda client: client.create_async(path, data, makepath=True), doing)
        except NodeExistsError as error:
            raise NodeExists from error
        except _AGAIN as error:
            raise MetadataTimeout(self._no_answer(doing, error, _START_AGAIN)) from error
        return 0

    def replace(self, path: str, data: bytes, version: int, doing: str) -> None:
        try:
            self._once(lambda client: client.set_async(path, data, version=version), doing)
        except (BadVersionError, NoNodeError) as error:
            raise VersionMismatch from error
        except _AGAIN as error:
            raise MetadataTimeout(self._no_answer(doing, error, _START_AGAIN)) from error

    def delete(self, path: str, doing: str) -> None:
        with contextlib.suppress(NoNodeError, NotEmptyError):
            self._request(_delete(path), doing)

    def number(self, prefix: str, doing: str) -> str:
        how = {"ephemeral": True, "sequence": True, "makepath": True}
        # This request may be repeated, because a lost answer only leaves a number unused.
        made = str(self._request(lambda client: client.create_async(prefix, b"", **how), doing))
        with contextlib.suppress(NoNodeError, *_AGAIN):  # the node is deleted with the session
            self._once(_delete(made), doing)
        return made.removeprefix(prefix)

    def _request(self, ask: Callable[[Any], Any], doing: str) -> Any:
        """Send a request that may be repeated.

        Returns the answer, or raises kazoo's error for a missing node.

        Raises:
            RemoteFailed: no answer within the timeout, or access is refused.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._once(ask, doing)
            except _AGAIN as error:
                if time.monotonic() > deadline:
                    raise self._no_answer(doing, error) from error
                time.sleep(_RETRY_SECONDS)

    def _once(self, ask: Callable[[Any], Any], doing: str) -> Any:
        """Send a request once. Returns the answer, or raises kazoo's error."""
        client = self._connected(doing)
        try:
            return ask(client).get(timeout=self._timeout)
        except (NoAuthError, AuthFailedError) as error:
            raise RemoteFailed(
                f"{doing}: the metadata store refuses access",
                path=self.address,
                remedy="set metadataStoreAuth=digest:USER:PASSWORD to a user that the store's "
                "access lists permit",
            ) from error

    def _connected(self, doing: str) -> Any:
        if self._client is None:
            client = KazooClient(
                self.address,
                timeout=max(self._timeout, 10.0),
                logger=_LOG,
                auth_data=[self._auth] if self._auth else None,
            )
            try:
                self._connect(client, doing)
            except BaseException:
                # Stop the client in a thread, because it may wait long for an answer that never
                # arrives.
                threading.Thread(target=_end, args=(client,), daemon=True).start()
                raise
            self._client = client
            if self._auth:
                client.default_acl = self._siblings_access(client)
        return self._client

    def _siblings_access(self, client: Any) -> Any:
        """The access list that new nodes get.

        The list is copied from the ledgers' folder, so that brokers may change and delete the
        nodes. If that list cannot be read completely, only this user has access.
        """
        with contextlib.suppress(KazooException, *_AGAIN):
            found, _ = client.get_acls_async(self._like).get(timeout=self._timeout)
            if not any(each.id.scheme == "digest" and each.id.id.endswith(":x") for each in found):
                return found
        return CREATOR_ALL_ACL

    def _connect(self, client: Any, doing: str) -> None:
        """Connect. Fails at once if none of the servers can be a ZooKeeper.

        Raises:
            RemoteFailed: no server accepts the client.
        """
        begun = time.monotonic()
        connected = client.start_async()
        if connected.wait(min(self._timeout, _FIRST_SECONDS)):
            return self._check_root(client, doing)
        found = probe_addresses(self.address.partition("/")[0].split(","))
        until = begun + min(self._timeout, max(each.worth_seconds for each in found.values()))
        if connected.wait(max(until - time.monotonic(), 0)):
            return self._check_root(client, doing)
        several = len(found) > 1
        words = "; ".join(
            f"{address}: {answer.description}" if several else answer.description
            for address, answer in found.items()
        )
        raise RemoteFailed(
            f"{doing}: no ZooKeeper accepts the connection: {words}",
            path=self.address,
            remedy="; ".join(dict.fromkeys(answer.remedy for answer in found.values())),
        )

    def _check_root(self, client: Any, doing: str) -> None:
        """Check that the chroot exists. Without it every node would seem to be missing."""
        if client.chroot and client.exists_async("/").get(timeout=self._timeout) is None:
            raise RemoteFailed(
                f"{doing}: this ZooKeeper has no path {client.chroot}",
                path=self.address,
                remedy="give the metadataStoreUrl of a broker's broker.conf, with the path after "
                "its servers",
            )

    def _no_answer(
        self, doing: str, error: BaseException, remedy: str = _UNREACHED
    ) -> RemoteFailed:
        words = str(error) or type(error).__name__
        return RemoteFailed(f"{doing}: {words}", path=self.address, remedy=remedy)


def _end(client: Any) -> None:
    with contextlib.suppress(Exception):  # an error of the shutdown has no effect on the results
        client.stop()
        client.close()


def _delete(path: str) -> Callable[[Any], Any]:
    return lambda client: client.delete_async(path)


def parse_store_url(url: str) -> str:
    """Convert a metadata store's address to kazoo's form, ``HOST:PORT,HOST:PORT/chroot``.

    Raises:
        InvalidConfig: the address is invalid, or of another kind of store.
    """
    text = url.strip()
    for scheme in ("metadata-store:", "zk+hierarchical://", "zk+null://", "zk://", "zk:"):
        text = text.removeprefix(scheme)
    servers, slash, chroot = text.partition("/")
    parts = [part for part in re.split("[,;]", servers) if part]
    if not parts or not all(_SERVERS.fullmatch(part) for part in parts):
        raise InvalidConfig(
            f"{url!r} is not the address of a supported metadata store",
            remedy="give metadataStoreUrl=zk:HOST:PORT, etcd:http://HOST:PORT or rocksdb://PATH",
        )
    ported = [part if re.search(r":\d+$", part) else f"{part}:{DEFAULT_PORT}" for part in parts]
    return ",".join(ported) + (f"/{chroot.rstrip('/')}" if slash and chroot.strip("/") else "")


def digest_of_user(text: str) -> tuple[str, str] | None:
    """Convert ``digest:USER:PASSWORD``, or a file with that text, to kazoo's form.

    None for an empty text.

    Raises:
        InvalidConfig: another text. The error does not contain it.
    """
    source = "metadataStoreAuth"
    if text.startswith("file:"):
        source = path_of(text)
        try:
            text = Path(source).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
            raise InvalidConfig(
                f"cannot read the file of metadataStoreAuth: {why}", path=source
            ) from error
    if not text:
        return None
    scheme, _, who = text.partition(":")
    if scheme != "digest" or not all(who.partition(":")[::2]):
        raise InvalidConfig(
            f"{source} is not of the form digest:USER:PASSWORD",
            remedy="give digest:USER:PASSWORD; Lastwrite supports the access list schemes digest, "
            "ip and world",
        )
    return scheme, who
