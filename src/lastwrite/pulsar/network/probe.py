"""What answers at an address that was given for a ZooKeeper's, in words.

Each of three questions goes over a connection of its own, all at once; the first answer that says
whose it is counts::

    srvr                      a ZooKeeper says its version, that it does not serve, or may not say
    CONNECT of a client       a Pulsar broker says CONNECTED, or why not
    GET /admin/v2/clusters    a broker's admin port says its clusters, another HTTP server anything

What comes is looked at, never obeyed: an address may lead anywhere.

Source: ZooKeeper 3.9 ``FourLetterCommands``, ``AbstractFourLetterCommand``; Pulsar 4.2.4
``ServerCnx``, ``Clusters``.
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

_SECONDS = 2.0  # for one question
_MORE_SECONDS = 0.5  # for a name that nobody resolves: a question cannot be broken off there
_STALLED_SECONDS = 4.5  # for what says nothing: it may be busy
_MOST_BYTES = 4096
_SHOWN_BYTES = 24

_CONNECT = encode_command(BaseCommand(kind=2, connect=Connect(client_version="lastwrite")))
_QUESTIONS = (
    b"srvr",
    len(_CONNECT).to_bytes(4, "big") + _CONNECT,
    b"GET /admin/v2/clusters HTTP/1.0\r\nAccept: application/json\r\n\r\n",
)
_PLAIN = "give a listener without TLS"
_WHERE = "metadataStoreUrl in the brokers' broker.conf names it, zk:HOST:2181 as a rule"
# A standalone has no ZooKeeper unless it is told to.
_PULSARS = (
    f"that is where clients connect; {_WHERE}; a standalone keeps its metadata in RocksDB, which "
    "can only be read (metadataStoreUrl=rocksdb://PATH of its data/metadata), unless it was first "
    "started with PULSAR_STANDALONE_USE_ZOOKEEPER=1"
)


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one address leads to; ``worth_seconds``: how long it may yet turn out to serve, from the
    first try on.
    """

    words: str
    worth_seconds: float = 0
    remedy: str = _WHERE


_SILENT = Answer(
    f"no answer within {_SECONDS:g} s",
    worth_seconds=_STALLED_SECONDS,
    remedy="see whether this machine may reach it (a firewall, a network of its own)",
)


def who_answers(addresses: Sequence[str]) -> dict[str, Answer]:
    """What answers at each of ``addresses``, ``HOST:PORT``; all together within three seconds."""
    asked = [partial(_who_answers, address) for address in addresses]
    found = _at_once(asked, _SECONDS + 2 * _MORE_SECONDS)
    return {
        address: _SILENT if answer is None else answer
        for address, answer in zip(addresses, found, strict=True)
    }


def _at_once(works: Sequence[Callable[[], _T]], seconds: float) -> list[_T | None]:
    """What the ``works`` give; None: not done in time, as where nobody resolves a name."""
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


def _who_answers(address: str) -> Answer:
    try:
        host, port = parse_address(address)
    except InvalidConfig as error:
        return Answer(error.problem)
    found = _at_once(
        [partial(_ask, host, port, each) for each in _QUESTIONS], _SECONDS + _MORE_SECONDS
    )
    failed = next((each for each in found if isinstance(each, Answer)), None)
    if failed is not None:
        return failed
    said = [each if isinstance(each, bytes) else b"" for each in found]
    for each in (_zookeeper(said[0]), _broker(said[1]), *map(_anybody, (said[2], *said))):
        if each is not None:
            return each
    words = "something accepts connections there, and has no answer to a ZooKeeper's client"
    return Answer(words, worth_seconds=_STALLED_SECONDS)


def _ask(host: str, port: int, question: bytes) -> bytes | Answer:
    """The first bytes of the answer, none where it says nothing; or why nobody could be asked."""
    deadline = time.monotonic() + _SECONDS
    try:
        connection = socket.create_connection((host, port), _SECONDS)
    except socket.gaierror:
        return Answer(f"no machine is known by the name of {host}", remedy="see to its spelling")
    except TimeoutError:
        return _SILENT
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return Answer(
            why, remedy="see whether a ZooKeeper runs there, and listens to other machines"
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
        except OSError:  # it hung up, or says nothing
            pass
    return received


def _zookeeper(said: bytes) -> Answer | None:
    if said.startswith(b"Zookeeper version") or b"not in the whitelist" in said:
        return Answer(
            "a ZooKeeper, which answers nothing else", worth_seconds=math.inf, remedy="see its log"
        )
    if said.startswith(b"This ZooKeeper instance is not currently serving"):
        words = "a ZooKeeper that serves nobody just now"
        return Answer(
            words, worth_seconds=math.inf, remedy="see whether most of its ensemble is up"
        )
    return None


def _broker(said: bytes) -> Answer | None:
    try:
        command = decode_command(said[4:])
    except LogError:
        return None
    if command.connected is not None:
        return Answer(
            f"a Pulsar broker's own port ({command.connected.server_version})", remedy=_PULSARS
        )
    if command.error is not None or command.auth_challenge is not None:
        return Answer("a Pulsar broker's own port", remedy=_PULSARS)
    return None


def _anybody(said: bytes) -> Answer | None:
    """By what protocols begin with."""
    if said.startswith(b"HTTP/"):
        head, _, body = said.partition(b"\r\n\r\n")
        status = head.split(b"\r\n")[0]
        if b" 200" in status and body.startswith(b"[") and b'"' in body:
            return Answer("a Pulsar broker's admin port (HTTP)", remedy=_PULSARS)
        return Answer(f"an HTTP server ({_shown(status)})")
    if said[:1] == b"\x15" and said[1:2] == b"\x03":
        return Answer("a server that wants TLS", remedy=_PLAIN)
    return Answer(f"no ZooKeeper: it says {_shown(said)}") if said else None


def _shown(said: bytes) -> str:
    text = said[:_SHOWN_BYTES].decode("ascii", "replace")
    return text if text.isprintable() and text.isascii() else said[:_SHOWN_BYTES].hex(" ")
