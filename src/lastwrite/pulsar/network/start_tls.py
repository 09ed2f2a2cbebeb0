"""Start TLS on a connection to a bookie.

The client sends a request of BookKeeper's third protocol without TLS and reads the response. The
TLS handshake follows. The connection then uses the second protocol over TLS.

Source: BookKeeper 4.17.3 ``PerChannelBookieClient.initiateTLS``, ``BookieRequestProcessor``,
``BookkeeperProtocol.proto``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from lastwrite.errors import LogError, RemoteFailed
from lastwrite.pulsar.format.protobuf import INT32, UINT64, ProtoField, ProtoMessage

_VERSION = 3
_START_TLS = 9
_OK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(ProtoMessage):
    version: Annotated[int, ProtoField(1, INT32, required=True)] = _VERSION
    operation: Annotated[int, ProtoField(2, INT32, required=True)] = _START_TLS
    number: Annotated[int, ProtoField(3, UINT64, required=True)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTls(ProtoMessage):
    """The request to start TLS, a message without fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieRequest(ProtoMessage):
    header: Annotated[Header, ProtoField(1, Header, required=True)] = field(default_factory=Header)
    start: Annotated[StartTls | None, ProtoField(106, StartTls)] = field(default_factory=StartTls)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieResponse(ProtoMessage):
    header: Annotated[Header, ProtoField(1, Header, required=True)]
    status: Annotated[int, ProtoField(2, INT32, required=True)]


def request_tls(exchange: Callable[[bytes], bytes], address: str) -> None:
    """Ask the bookie at ``address`` to start TLS.

    ``exchange`` sends a frame and returns the next received frame.

    Raises:
        RemoteFailed: the bookie has no TLS, or the server is not a bookie.
    """
    answer = exchange(BookieRequest().encode())
    try:
        status = BookieResponse.decode(answer).status
    except LogError as error:
        raise RemoteFailed(
            f"the answer is not a bookie's: {error.problem}",
            path=address,
            remedy="check that this address is a bookie's",
        ) from error
    if status != _OK:
        raise RemoteFailed(
            f"the bookie does not support TLS (status {status})",
            path=address,
            remedy="set tlsProviderFactoryClass in the bookie's configuration, or leave out "
            "bookkeeperTLSClientAuthentication",
        )
