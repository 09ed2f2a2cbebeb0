"""Targets for ``serve``: damaged requests of every kind and version, made with kio's schemas.

An input is a connection with a few requests, before or after authentication. Each answer must be a
complete one of the request's version. The clock jumps, so that no request waits for group members.
"""

from __future__ import annotations

import atexit
import random
import shutil
import struct
import tempfile
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from kio.serial import entity_reader

from lastwrite.config.system import SettingSources
from lastwrite.encoding.varint import encode_unsigned
from lastwrite.engine.system import system_named
from lastwrite.errors import CorruptLog
from lastwrite.kafka.look.served import ByteRange
from lastwrite.kafka.network.messages import schema, skip_tags
from lastwrite.kafka.network.size_limits import _Kind, _Struct, _struct_of
from lastwrite.kafka.system import KafkaSystem
from lastwrite.server import messages
from lastwrite.server.acls import AclEntry, AclTable, Operation, ResourceType
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.catalog import Catalog, ServedSource
from lastwrite.server.cluster_files import ClusterFiles
from lastwrite.server.files import Files
from lastwrite.server.group_handlers import Coordinator
from lastwrite.server.groups import Groups
from lastwrite.server.handlers import ServerContext, ServerIdentity
from lastwrite.server.listener import ServeLimits, Server
from lastwrite.server.listener_security import ListenerSecurity
from lastwrite.server.messages import APIS, ClientRequest
from lastwrite.server.metrics import ServerMetrics
from lastwrite.server.offsets import Offsets
from lastwrite.server.session import Session
from lastwrite.server.users import User, Users
from tests.fuzz.mutate import harm
from tests.fuzz.target import READ, REFUSED, Target
from tests.support.kafka.logs import SCRATCH

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
TOPICS = ("client-zstd", "transactional", "keyless")
_NAMES = (*TOPICS, "missing", "a/b", "", "g", "consumer", "range", "PLAIN", "SCRAM-SHA-256", "é")
_EXTREMES = (0, 0, 1, 2, -1, 3, 10, 100, 5000, 60_000, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 62)
_TOKENS = (b"", b"\0alice\0secret", b"\0alice\0wrong", b"n,,n=alice,r=abc", b"c=biws,r=abc,p=AAAA")
_SHOWN = Users({"alice": User.of("secret", ["SCRAM-SHA-256"])})


def targets() -> list[Target]:
    return [
        Target("serve frames", _made, _checked),
        Target("serve frames of strangers", _made, _met, share=0.3),
    ]


# ---------------------------------------------------------------------- requests


def _made(rng: random.Random) -> tuple[bytes, Any]:
    """Requests, each after its size. One of them may be damaged."""
    frames = [_frame(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
    if rng.random() < 0.6:
        at = rng.randrange(len(frames))
        frames[at] = harm(rng, frames[at], frames)
    return b"".join(struct.pack(">i", len(each)) + each for each in frames), None


def _frame(rng: random.Random) -> bytes:
    name = rng.choice(list(APIS))
    api = APIS[name]
    version = rng.randint(api.oldest, api.newest)
    head = struct.pack(">hhi", api.key, version, rng.randrange(1 << 31))
    client = rng.choice([b"", b"rdkafka", b"\xff\xfe", b"x" * 300])
    head += struct.pack(">h", len(client)) + client if rng.random() < 0.95 else b"\xff\xff"
    head += b"\0" if version >= api.flexible else b""
    unknown = rng.choice((0, 0, 1))
    return head + struct_bytes(rng, _struct_of(messages._kind(name, version)), unknown)


def struct_bytes(rng: random.Random, struct_: _Struct, unknown: int, depth: int = 0) -> bytes:
    """An encoded structure with random values, and ``unknown`` tagged fields that no schema has.

    The random values do not depend on ``unknown``.
    """
    parts = [_value(rng, kind, struct_.is_flexible, unknown, depth) for kind in struct_.kinds]
    if struct_.is_flexible:
        tags = [tag for tag in sorted(struct_.tagged) if rng.random() < 0.2]
        parts.append(encode_unsigned(len(tags) + unknown))
        for tag in tags:
            body = _value(rng, struct_.tagged[tag], True, unknown, depth)
            parts += [encode_unsigned(tag), encode_unsigned(len(body)), body]
        parts += [encode_unsigned(100 + n) + b"\x03new" for n in range(unknown)]
    return b"".join(parts)


def _value(rng: random.Random, kind: _Kind, flexible: bool, unknown: int, depth: int) -> bytes:
    if not kind.is_list:
        return _one(rng, kind, flexible, unknown, depth)
    if kind.may_miss and rng.random() < 0.15:
        return _length(-1, flexible, ">i")
    size = rng.choice([0, 1, 1, 2, 5]) if depth < 3 else 0
    return _length(size, flexible, ">i") + b"".join(
        _one(rng, kind._replace(may_miss=False), flexible, unknown, depth + 1) for _ in range(size)
    )


def _one(rng: random.Random, kind: _Kind, flexible: bool, unknown: int, depth: int) -> bytes:
    is_missing = kind.may_miss and rng.random() < 0.2
    if kind.struct is not None:
        if is_missing:
            return b"\xff"
        whole = struct_bytes(rng, kind.struct, unknown, depth + 1)
        return b"\x01" + whole if kind.may_miss else whole
    if kind.lengths:
        form = ">h" if kind.lengths == "string" else ">i"
        if is_missing:
            return _length(-1, flexible, form)
        text = rng.choice(_NAMES).encode()
        if kind.lengths == "bytes" and rng.random() < 0.8:
            text = rng.choice(_TOKENS)
        return _length(len(text), flexible, form) + text
    if kind.size == 16:
        return rng.choice(_ids()) if rng.random() < 0.8 else rng.randbytes(16)
    number = rng.choice(_EXTREMES) if rng.random() < 0.7 else rng.randrange(20)
    if kind.size == 1:
        number &= 1
    return (number % (1 << 8 * kind.size)).to_bytes(kind.size, "big")


def _length(size: int, flexible: bool, form: str) -> bytes:
    return encode_unsigned(size + 1) if flexible else struct.pack(form, size)


# ---------------------------------------------------------------------- the server


class _Served:
    """A server without a socket, over a real broker's log."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="fuzz-serve-", dir=SCRATCH)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.files = Files(1 << 20)
        catalog = Catalog([ServedSource(str(CORPUS), system_named("kafka"))], TOPICS, self.files)
        catalog.read_all([catalog._topics[name] for name in TOPICS])
        self.ids = [catalog._topics[name].id for name in TOPICS]
        allowed, who = AuthorizedCatalog(catalog), ServerIdentity("localhost", 9092, "cluster")
        clock = count(0, 1_000_000)
        coordinator = Coordinator(
            allowed,
            who,
            Groups(lambda: float(next(clock)), allowed.numbers),
            Offsets(f"{folder}/state"),
        )
        system = KafkaSystem(SettingSources(roots=(str(CORPUS),), metadata=None))
        place = ServerContext(allowed, who, system, ClusterFiles((str(CORPUS),)))
        told: list[str] = []
        self.server = Server(
            None,  # type: ignore[arg-type]
            ListenerSecurity(),
            place,
            coordinator,
            self.files,
            ServeLimits(),
            ServerMetrics(told.append),
        )
        self.server._growth.close()  # no request waits
        rules = (
            AclEntry("User:alice", Operation.READ, ResourceType.TOPIC, "client-zstd"),
            AclEntry("User:alice", Operation.READ, ResourceType.GROUP, "g"),
        )
        users = _SHOWN, AclTable(rules)
        self.doors = (
            ListenerSecurity(),
            ListenerSecurity(
                users=lambda: users,  # type: ignore[arg-type]
                mechanisms=("SCRAM-SHA-256",),
                session_s=60.0,
            ),
        )


@cache
def _served() -> _Served:
    return _Served()


@cache
def _ids() -> list[bytes]:
    return [*_served().ids, bytes(16)]


def _met(data: bytes, _: Any, rng: random.Random) -> str:
    """Run the requests before authentication."""
    return _said(data, Session(_served().doors[1], "127.0.0.1", None), rng)


def _checked(data: bytes, _: Any, rng: random.Random) -> str:
    """Run the requests without access control, or as the user alice, who may do little."""
    if rng.random() < 0.5:
        return _said(data, Session(_served().doors[0], "127.0.0.1", None), rng)
    session = Session(_served().doors[1], "127.0.0.1", None)
    session._user, session._is_known = "alice", True
    return _said(data, session, rng)


def _said(data: bytes, session: Session, rng: random.Random) -> str:
    """Run a connection's requests as ``Server._serve_client`` does. Returns the outcome."""
    at, server = 0, _served().server
    while len(data) - at >= 4 and not session.is_over:
        size = int.from_bytes(data[at : at + 4], "big")
        frame = memoryview(data)[at + 4 : at + 4 + size]
        at += 4 + size
        try:
            if session.takes_tokens:
                session.handle_raw_token(bytes(frame))
                continue
            request = messages.decode_request(frame)
            answer = session.authenticate(request)
            whole = (
                [answer] if answer is not None else server._answer(request, session, "127.0.0.1")
            )
        except (CorruptLog, PermissionError):
            return REFUSED
        if whole is not None:
            _is_an_answer(request, whole)
    return READ


def _is_an_answer(request: ClientRequest, parts: list[bytes | ByteRange]) -> None:
    data = b"".join(
        part
        if not isinstance(part, ByteRange)
        else _served().files.read(part.segment, part.position, part.size)
        for part in parts
    )
    version = request.version
    if request.name == "api_versions" and not 0 <= version <= 5:
        version = 0
    kind = getattr(schema(request.name, version, "response"), _class_of(request.name))
    begin = skip_tags(data, 4) if kind.__flexible__ and request.name != "api_versions" else 4
    _, size = entity_reader(kind)(data, begin)
    assert begin + size == len(data), f"{len(data) - begin - size} bytes behind an answer"


def _class_of(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_")) + "Response"
