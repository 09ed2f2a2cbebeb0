"""What a broker says of a topic over HTTP: how its compaction stands in the broker's memory.

The metadata store may lag behind it: a broker writes a cursor down at most once a second, by
default.

Source: Pulsar 4.2.4 ``PersistentTopicInternalStats``; docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.pulsar.format.names import (
    COMPACTION_CURSOR,
    LEDGER_PROPERTY,
    TopicName,
    encode_local,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network.identity import ANONYMOUS, Identity
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS

_MOST_BYTES = 64 << 20  # of an answer
_MOST_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class TopicInMemory:
    """A topic as its broker goes by it."""

    last_confirmed: Position  # the last entry that is written; entry -1 of a ledger without any
    mark_delete: Position | None  # of its compaction; None: it has no such subscription
    ledger: int | None  # the compacted one; None: it was never compacted
    served: int | None  # the one that readers get: another only after a horizon that was refused


def topic_in_memory(
    admin: str, topic: TopicName, identity: Identity = ANONYMOUS, timeout: float = TIMEOUT_SECONDS
) -> TopicInMemory:
    """What the broker that serves the topic says; ``admin`` is any broker's ``http://HOST:PORT``
    or ``https://HOST:PORT``.

    Raises:
        RemoteFailed: no answer, or none that tells.
    """
    tenant, namespace, _, local = topic.managed_ledger.split("/")
    path = f"/admin/v2/persistent/{quote(tenant)}/{quote(namespace)}/{local}/internalStats"
    doing = f"asking for the state of {topic}"
    known = _get(admin, path, identity, timeout, doing)
    if not isinstance(known, dict):
        raise RemoteFailed(f"{doing}: the answer is no object", path=admin)
    cursors = known.get("cursors")
    cursor = cursors.get(COMPACTION_CURSOR) if isinstance(cursors, dict) else None
    try:
        last = Position.parse(str(known.get("lastConfirmedEntry")))
        if not isinstance(cursor, dict):
            return TopicInMemory(last, None, None, None)
        mark_delete = Position.parse(str(cursor.get("markDeletePosition")))
    except InvalidConfig as error:
        raise RemoteFailed(f"{doing}: {error.problem}", path=admin) from error
    properties = cursor.get("properties")
    ledger = properties.get(LEDGER_PROPERTY) if isinstance(properties, dict) else None
    compacted = known.get("compactedLedger")
    served = compacted.get("ledgerId") if isinstance(compacted, dict) else None
    served = served if isinstance(served, int) and served >= 0 else None
    return TopicInMemory(last, mark_delete, ledger if isinstance(ledger, int) else None, served)


class Retention(NamedTuple):
    """Of raw ledgers, as a broker's policy has it; -1: without end."""

    minutes: int
    megabytes: int


def retention(
    admin: str, topic: TopicName, identity: Identity = ANONYMOUS, timeout: float = TIMEOUT_SECONDS
) -> Retention | None:
    """The retention that holds for a topic: by its own policy, else its namespace's, else the
    broker's setting; None: that is said nowhere. ``admin``: as of ``topic_in_memory``.

    Raises:
        RemoteFailed: no answer, or none that tells.
    """
    doing = f"asking for the retention of {topic}"
    found = _policy(admin, topic, "retention", identity, timeout, doing)
    if not isinstance(found, dict):
        return None
    minutes, megabytes = found.get("retentionTimeInMinutes"), found.get("retentionSizeInMB")
    if not isinstance(minutes, int) or not isinstance(megabytes, int):
        return None
    return Retention(minutes, megabytes)


def compaction_threshold(
    admin: str, topic: TopicName, identity: Identity = ANONYMOUS, timeout: float = TIMEOUT_SECONDS
) -> int | None:
    """From how many bytes on brokers compact the topic by themselves: by its own policy, else its
    namespace's, else their setting; 0: never; None: that is said nowhere. ``admin``: as of
    ``topic_in_memory``.

    Raises:
        RemoteFailed: no answer, or none that tells.
    """
    doing = f"asking from when on {topic} is compacted"
    found = _policy(admin, topic, "compactionThreshold", identity, timeout, doing)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def _policy(
    admin: str, topic: TopicName, name: str, identity: Identity, timeout: float, doing: str
) -> Any:
    """What holds for a topic; of a broker without policies of topics, what its namespace says."""
    place = f"{quote(topic.tenant)}/{quote(topic.namespace)}"
    try:
        path = f"/admin/v2/persistent/{place}/{encode_local(topic.local)}/{name}?applied=true"
        return _get(admin, path, identity, timeout, doing)
    except RemoteFailed as error:
        if isinstance(error.__cause__, OSError):
            raise
        return _get(admin, f"/admin/v2/namespaces/{place}/{name}", identity, timeout, doing)


def _get(admin: str, path: str, identity: Identity, timeout: float, doing: str) -> Any:
    """The JSON at ``path`` of the broker that ``admin`` sends us to; None: an empty answer."""
    for _ in range(_MOST_REDIRECTS):
        url = urlsplit(admin)
        if url.scheme not in ("http", "https") or not url.hostname:
            remedy = "give webServiceUrl=http://HOST:PORT or https://HOST:PORT"
            raise RemoteFailed(f"{doing}: {admin!r} cannot be asked", path=admin, remedy=remedy)
        if url.scheme == "http" and identity.wants_tls:  # a redirection, say: no token in the clear
            remedy = "give webServiceUrl=https://HOST:PORT, and brokers a webServicePortTls"
            raise RemoteFailed(f"{doing}: {admin} has no TLS", path=admin, remedy=remedy)
        connection = (
            http.client.HTTPConnection(url.hostname, url.port or 80, timeout=timeout)
            if url.scheme == "http"
            else http.client.HTTPSConnection(
                url.hostname, url.port or 443, timeout=timeout, context=identity.tls
            )
        )
        try:
            with contextlib.closing(connection):
                headers = {"Accept": "application/json", **identity.headers()}
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                body = answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise RemoteFailed(
                f"{doing}: {str(error) or type(error).__name__}",
                path=admin,
                remedy="see whether the broker runs there, and whether this machine may reach it",
            ) from error
        location = answer.getheader("Location")
        if answer.status in (302, 307) and location:
            target = urlsplit(location)
            query = f"?{target.query}" if target.query else ""
            admin, path = f"{target.scheme}://{target.netloc}", target.path + query
            continue
        if answer.status == 204 or (answer.status == 200 and not body):
            return None
        if answer.status != 200:
            words = f"{doing}: HTTP status {answer.status}"
            raise RemoteFailed(words, path=admin, remedy="see the broker's log")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RemoteFailed(f"{doing}: the answer is not JSON", path=admin) from error
    raise RemoteFailed(f"{doing}: brokers send us round", path=admin, remedy="ask again")


def parse_admin_urls(urls: str) -> Iterator[str]:
    """The addresses of ``http://HOST:PORT,HOST:PORT`` or ``https://…``, each with its scheme."""
    scheme, separator, hosts = urls.strip().rpartition("://")
    for host in hosts.split(","):
        if host.strip(" /"):
            yield f"{scheme or 'http'}{separator or '://'}{host.strip(' /')}"
