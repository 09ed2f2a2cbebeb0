"""Read the state of a topic's compaction in its broker's memory, and its policies, over HTTP.

The broker's memory may be newer than the metadata store, because by default a broker stores a
cursor at most once a second.

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
from lastwrite.pulsar.network.identity import ANONYMOUS, PulsarCredentials
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS

_MOST_BYTES = 64 << 20  # maximum bytes of an answer
_MOST_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class TopicInMemory:
    """The state of a topic in its broker's memory."""

    last_confirmed: Position  # the last written entry; entry -1 in an empty ledger
    mark_delete: Position | None  # position of the subscription __compaction; None if there is none
    ledger: int | None  # the compacted ledger; None if never compacted
    # the compacted ledger that readers use; it differs from ``ledger`` after the broker has
    # rejected a horizon
    served: int | None


def topic_in_memory(
    admin: str,
    topic: TopicName,
    identity: PulsarCredentials = ANONYMOUS,
    timeout: float = TIMEOUT_SECONDS,
) -> TopicInMemory:
    """The state of the topic in the broker that serves it.

    ``admin`` is any broker's ``http://HOST:PORT`` or ``https://HOST:PORT``.

    Raises:
        RemoteFailed: no answer, or an unusable answer.
    """
    tenant, namespace, _, local = topic.managed_ledger.split("/")
    path = f"/admin/v2/persistent/{quote(tenant)}/{quote(namespace)}/{local}/internalStats"
    doing = f"reading the state of {topic}"
    known = _get(admin, path, identity, timeout, doing)
    if not isinstance(known, dict):
        raise RemoteFailed(f"{doing}: the answer is not a JSON object", path=admin)
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


class RetentionPolicy(NamedTuple):
    """The retention of raw ledgers in a broker's policy. -1 means no limit."""

    minutes: int
    megabytes: int


def retention(
    admin: str,
    topic: TopicName,
    identity: PulsarCredentials = ANONYMOUS,
    timeout: float = TIMEOUT_SECONDS,
) -> RetentionPolicy | None:
    """The retention of a topic's raw ledgers.

    The setting is from the topic's policy, the namespace's policy or the brokers' setting. Returns
    None if it is not set. ``admin`` as in ``topic_in_memory``.

    Raises:
        RemoteFailed: no answer, or an unusable answer.
    """
    doing = f"reading the retention of {topic}"
    found = _policy(admin, topic, "retention", identity, timeout, doing)
    if not isinstance(found, dict):
        return None
    minutes, megabytes = found.get("retentionTimeInMinutes"), found.get("retentionSizeInMB")
    if not isinstance(minutes, int) or not isinstance(megabytes, int):
        return None
    return RetentionPolicy(minutes, megabytes)


def compaction_threshold(
    admin: str,
    topic: TopicName,
    identity: PulsarCredentials = ANONYMOUS,
    timeout: float = TIMEOUT_SECONDS,
) -> int | None:
    """The backlog in bytes from which brokers compact the topic.

    The setting is from the topic's policy, the namespace's policy, or the brokers' setting. 0 means
    never. Returns None if none of them sets it. ``admin`` as in ``topic_in_memory``.

    Raises:
        RemoteFailed: no answer, or an unusable answer.
    """
    doing = f"reading the compaction threshold of {topic}"
    found = _policy(admin, topic, "compactionThreshold", identity, timeout, doing)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def _policy(
    admin: str, topic: TopicName, name: str, identity: PulsarCredentials, timeout: float, doing: str
) -> Any:
    """A policy of a topic. For a broker without topic policies, the policy of its namespace."""
    place = f"{quote(topic.tenant)}/{quote(topic.namespace)}"
    try:
        path = f"/admin/v2/persistent/{place}/{encode_local(topic.local)}/{name}?applied=true"
        return _get(admin, path, identity, timeout, doing)
    except RemoteFailed as error:
        if isinstance(error.__cause__, OSError):
            raise
        return _get(admin, f"/admin/v2/namespaces/{place}/{name}", identity, timeout, doing)


def _get(admin: str, path: str, identity: PulsarCredentials, timeout: float, doing: str) -> Any:
    """The JSON at ``path`` of the broker that ``admin`` redirects to. None for an empty answer."""
    for _ in range(_MOST_REDIRECTS):
        url = urlsplit(admin)
        if url.scheme not in ("http", "https") or not url.hostname:
            remedy = "give webServiceUrl=http://HOST:PORT or webServiceUrl=https://HOST:PORT"
            raise RemoteFailed(
                f"{doing}: {admin!r} is not an HTTP address", path=admin, remedy=remedy
            )
        # A redirect may lead to an address without TLS. No token is sent there.
        if url.scheme == "http" and identity.requires_tls:
            remedy = (
                "set webServicePortTls on the brokers, and give webServiceUrl=https://HOST:PORT"
            )
            raise RemoteFailed(
                f"{doing}: {admin} is an address without TLS, but the configuration requires TLS",
                path=admin,
                remedy=remedy,
            )
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
                remedy="check that the broker is running at this address, and that this machine "
                "can reach it",
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
            words = f"{doing}: the broker answered with HTTP status {answer.status}"
            raise RemoteFailed(words, path=admin, remedy="see the broker's log")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RemoteFailed(f"{doing}: the answer is not JSON", path=admin) from error
    raise RemoteFailed(
        f"{doing}: the brokers redirect to each other in a circle",
        path=admin,
        remedy="run the command again",
    )


def parse_admin_urls(urls: str) -> Iterator[str]:
    """The addresses in ``http://HOST:PORT,HOST:PORT`` or ``https://…``, each with its scheme."""
    scheme, separator, hosts = urls.strip().rpartition("://")
    for host in hosts.split(","):
        if host.strip(" /"):
            yield f"{scheme or 'http'}{separator or '://'}{host.strip(' /')}"
