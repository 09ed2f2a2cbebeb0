"""Find out what kind of server is at an address where ZooKeeper should be.

Three requests are sent, each over a separate connection and all at once. The first answer that
identifies the server counts::

    srvr                      ZooKeeper answers its version, that it is not serving, or a refusal
    CONNECT of a client       a Pulsar broker answers CONNECTED, or the reason why not
    GET /admin/v2/clusters    a broker's admin port answers its clusters, other servers anything

The answers are only shown, never acted on, because an address may lead anywhere.

Source: ZooKeeper 3.9 ``FourLetterCommands``, ``AbstractFourLetterCommand``; Pulsar 4.2.4
``ServerCnx``, ``MetadataLookup``.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lastwrite.config.address import parse_address
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.pulsar.network.commands import BaseCommand, Connect, decode_command, encode_command

_SECONDS = 2.0  # timeout of one request
_MORE_SECONDS = 0.5  # extra time for name resolution, which cannot be interrupted
_STALLED_SECONDS = 4.5  # seconds to wait for a server that does not answer, because it may be busy
_MOST_BYTES = 4096
_SHOWN_BYTES = 24

_CONNECT = encode_command(BaseCommand(kind=2, connect=Connect(client_version="lastwrite")))
_QUESTIONS = (
    b"srvr",
    len(_CONNECT).to_bytes(4, "big") + _CONNECT,
    b"GET /admin/v2/clusters HTTP/1.0\r\nAccept: application/json\r\n\r\n",
)
_PLAIN = "give the address of a listener without TLS"
_WHERE = "give metadataStoreUrl as in the brokers' broker.conf, usually zk:HOST:2181"
# A standalone has no ZooKeeper by default.
_PULSARS = (
    f"clients connect to this port; {_WHERE}. The metadata of a standalone are in RocksDB, "
    "which can only be read: metadataStoreUrl=rocksdb://PATH of its data/metadata. To "
    "publish, start a new standalone with PULSAR_STANDALONE_USE_ZOOKEEPER=1"
)


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A description of the server at an address.

    ``worth_seconds`` is how long it is useful to repeat attempts, counted from the first, because
    the server may still start.
    """

    description: str
    worth_seconds: float = 0
    remedy: str = _WHERE


_SILENT = ProbeResult(
    f"no answer within {_SECONDS:g} s",
    worth_seconds=_STALLED_SECONDS,
    remedy="check that this machine can reach the address: a firewall or another network may "
    "block it",
)


def probe_addresses(addresses: Sequence[str]) -> dict[str, ProbeResult]:
    """Describe the server at each ``HOST:PORT``. Waits at most three seconds for all of them."""
    asked = [partial(_identify, address) for address in addresses]
    found = _run_parallel(asked, _SECONDS + 2 * _MORE_SECONDS)
    return {
        address: _SILENT if answer is None else answer
        for address, answer in zip(addresses, found, strict=True)
    }


def _run_parallel(works: Sequence[Callable[[], _T]], seconds: float) -> list[_T | None]:
    """The results of the functions ``works``, run in parallel.

    None for a function that does not return in time.
    """
    found: list[_T | None] = [None] * len(works)

    def do(place: int, work: Callable[[], _T]) -> None:
        found[place] = work()

    threads = [threading.Thread(target=do, args=each, daemon=True) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    return found


def _identify(address: str) -> ProbeResult:
    try:
        host, port = parse_address(address)
    except InvalidConfig as error:
        return ProbeResult(error.problem)
    found = _run_parallel(
        [partial(_exchange, host, port, each) for each in _QUESTIONS], _SECONDS + _MORE_SECONDS
    )
    failed = next((each for each in found if isinstance(each, ProbeResult)), None)
    if failed is not None:
        return failed
    said = [each if isinstance(each, bytes) else b"" for each in found]
    for each in (_zookeeper(said[0]), _broker(said[1]), *map(_anybody, (said[2], *said))):
        if each is not None:
            return each
    words = "a server accepts connections at this address, but does not answer a ZooKeeper client"
    return ProbeResult(words, worth_seconds=_STALLED_SECONDS)


def _exchange(host: str, port: int, question: bytes) -> bytes | ProbeResult:
    """The first bytes of the answer to ``question``. Empty without an answer.

    Returns a ``ProbeResult`` if the connection failed.
    """
    deadline = time.monotonic() + _SECONDS
    try:
        connection = socket.create_connection((host, port), _SECONDS)
    except socket.gaierror:
        return ProbeResult(
            f"the host name {host} cannot be resolved", remedy="check the spelling of the host name"
        )
    except TimeoutError:
        return _SILENT
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return ProbeResult(
            why,
            remedy="check that ZooKeeper is running at this address and accepts connections from "
            "other machines",
        )
    received = b""
    with connection:
        try:
            connection.sendall(question)
            while len(received) < _MOST_BYTES and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                part = connection.recv(_MOST_BYTES)
                if not part:
                    break
                received += part
                if not received.startswith(b"HTTP/") or received.partition(b"\r\n\r\n")[2]:
                    break
        except OSError:  # the server closed the connection, or did not answer
            pass
    return received


def _zookeeper(said: bytes) -> ProbeResult | None:
    if said.startswith(b"Zookeeper version") or b"not in the whitelist" in said:
        return ProbeResult(
            "the server is a ZooKeeper, but does not answer clients",
            worth_seconds=math.inf,
            remedy="see ZooKeeper's log",
        )
    if said.startswith(b"This ZooKeeper instance is not currently serving"):
        words = "the server is a ZooKeeper that serves no requests at the moment"
        return ProbeResult(
            words,
            worth_seconds=math.inf,
            remedy="check that a majority of the ZooKeeper ensemble is running",
        )
    return None


def _broker(said: bytes) -> ProbeResult | None:
    try:
        command = decode_command(said[4:])
    except LogError:
        return None
    if command.connected is not None:
        return ProbeResult(
            f"the address is a Pulsar broker's service port ({command.connected.server_version})",
            remedy=_PULSARS,
        )
    if command.error is not None or command.auth_challenge is not None:
        return ProbeResult("the address is a Pulsar broker's service port", remedy=_PULSARS)
    return None


def _anybody(said: bytes) -> ProbeResult | None:
    """Describe an unknown server by the first bytes of its answer."""
    if said.startswith(b"HTTP/"):
        head, _, body = said.partition(b"\r\n\r\n")
        status = head.split(b"\r\n")[0]
        if b" 200" in status and body.startswith(b"[") and b'"' in body:
            return ProbeResult(
                "the address is a Pulsar broker's admin port (HTTP)", remedy=_PULSARS
            )
        return ProbeResult(f"the address is an HTTP server's ({_shown(status)})")
    if said[:1] == b"\x15" and said[1:2] == b"\x03":
        return ProbeResult("the server requires TLS", remedy=_PLAIN)
    return (
        ProbeResult(f"the server is not a ZooKeeper: its answer begins with {_shown(said)}")
        if said
        else None
    )


def _shown(said: bytes) -> str:
    text = said[:_SHOWN_BYTES].decode("ascii", "replace")
    return text if text.isprintable() and text.isascii() else said[:_SHOWN_BYTES].hex(" ")
