"""Tests of each limit of ``serve``. Clients within the limits are served meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.server import listener, serve
from lastwrite.server.listener import ServeLimits
from lastwrite.server.serve import RunningServer
from tests.support.jars import free_ports
from tests.support.kafka.logs import write_segment
from tests.support.kafka.raw import Raw

pytestmark = pytest.mark.slow

TOPIC, BATCHES, VALUE_BYTES = "big", 40, 100_000  # more bytes than fit in small socket buffers
SMALL = ServeLimits(
    request_bytes=1 << 20,
    unknown_bytes=2000,
    work_bytes=300_000,
    connections=8,
    connections_of_address=4,
    idle_s=3.0,
    known_s=2.0,
    frame_s=2.0,
    send_s=2.0,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    batches = [
        encode_batch([Record(n, 1, b"k%d" % n, os.urandom(VALUE_BYTES))], leader_epoch=0)
        for n in range(BATCHES)
    ]
    write_segment(folder / f"{TOPIC}-0", 0, batches, 4096)
    return folder


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def serving(
    root: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    """A server with small limits."""
    monkeypatch.setattr(serve, "_limits", lambda _: SMALL)
    with serving_of(root, tmp_path, told) as found:
        yield found


def serving_of(root: Path, folder: Path, told: list[str], **more: Any) -> RunningServer:
    state = str(folder / "state")
    return lastwrite.serve(str(root), listen="127.0.0.1:0", state=state, tell=told.append, **more)


def connected(serving: RunningServer) -> socket.socket:
    host, _, port = serving.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def received(connection: socket.socket) -> bytes:
    """One complete response."""
    found = bytearray()
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
        more = connection.recv(1 << 20)
        if not more:
            raise ConnectionError("the server hung up")
        found += more
    return bytes(found)


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until ``holds`` returns true, at most ``seconds``."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def hung_up(connection: socket.socket) -> bool:
    """Whether the server closes the connection without sending anything."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_served(serving: RunningServer) -> bool:
    with Raw(serving.address, 30.0) as raw:
        return bool(raw.ask("api_versions", 0).api_keys)


def lazy(serving: RunningServer) -> socket.socket:
    """A connection with a small receive buffer."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
    made.settimeout(30)
    host, _, port = serving.address.rpartition(":")
    made.connect((host, int(port)))
    return made


def fetch(connection: socket.socket, max_bytes: int = 64 << 20, offset: int = 0) -> None:
    """Send a fetch of all batches from ``offset``, without reading the response."""
    body = struct.pack(">hhih", 1, 4, 1, 0)
    body += struct.pack(">iiiib", -1, 0, 0, max_bytes, 0)
    body += struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode()
    body += struct.pack(">iiqi", 1, 0, offset, max_bytes)
    connection.sendall(struct.pack(">i", len(body)) + body)


# ---------------------------------------------------------------------- connections


def test_number_of_connections_is_limited(serving: RunningServer, told: list[str]) -> None:
    with ExitStack() as held:
        for _ in range(SMALL.connections):
            held.enter_context(Raw(serving.address)).ask("api_versions", 0)
        with connected(serving) as one_more:
            assert hung_up(one_more)
    assert any("no more connections" in each for each in told)


def test_number_of_connections_of_a_remote_address_is_limited(
    serving: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_is_of_this_machine", lambda host: False)
    with ExitStack() as held:
        for _ in range(SMALL.connections_of_address):
            held.enter_context(Raw(serving.address)).ask("api_versions", 0)
        with connected(serving) as one_more:
            assert hung_up(one_more)


def test_slow_and_silent_connections_are_closed(serving: RunningServer) -> None:
    """Connections that send nothing, that never complete a frame, and that send it byte by byte."""
    with connected(serving) as silent, connected(serving) as half, connected(serving) as slow:
        half.sendall(struct.pack(">ih", 100, 3))
        slow.sendall(struct.pack(">i", 100))

        def drip() -> None:
            with suppress(OSError):
                for _ in range(100):
                    slow.sendall(b"x")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        assert hung_up(half) and hung_up(slow)
        assert is_served(serving)
        assert hung_up(silent)


_LIMIT, _IDLE, _READERS = 64, 100, 22


def test_idle_connections_are_closed_at_the_limit_of_open_files(root: Path, tmp_path: Path) -> None:
    """Reading clients continue, a new client is served, and the limit is reported once."""
    port = free_ports(1)[0]
    command = ["sh", "-c", f'ulimit -n {_LIMIT}; exec "$@"', "sh", sys.executable, "-m"]
    command += ["lastwrite.cli", "serve", str(root), "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [*command, "--state", str(tmp_path / "state")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
        address = "127.0.0.1", port
        with ExitStack() as held, ThreadPoolExecutor(_READERS) as threads:
            for _ in range(_IDLE):
                held.enter_context(socket.create_connection(address, timeout=60))
            reads = [threads.submit(read_to_the_end, address) for _ in range(_READERS)]
            assert [each.result(60) for each in reads] == [BATCHES] * _READERS
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        said = process.stdout.read()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 5  # it takes 0.1 s on an idle machine
    assert said.count("ulimit -n") == 1 and "cannot be served" not in said


def read_to_the_end(address: tuple[str, int]) -> int:
    """Read all batches by fetches of one batch each."""
    with socket.create_connection(address, timeout=60) as connection:
        for offset in range(BATCHES):
            fetch(connection, 1, offset)
            received(connection)
            time.sleep(0.01)
    return BATCHES


def test_client_of_another_protocol_is_named(serving: RunningServer, told: list[str]) -> None:
    """An HTTP client and a TLS client: each is closed and reported once, and others are served."""
    with connected(serving) as http:
        http.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert hung_up(http)
    with connected(serving) as plain, pytest.raises(OSError):  # noqa: PT011  of ssl, too
        ssl.create_default_context().wrap_socket(plain, server_hostname="here")
    assert is_served(serving)
    assert sum("an HTTP client" in each for each in told) == 1
    assert sum("a TLS client" in each for each in told) == 1


# ---------------------------------------------------------------------- frames


def test_frame_above_the_size_limit_is_refused(serving: RunningServer) -> None:
    for size in (SMALL.request_bytes + 1, (1 << 31) - 1, -1, 0):
        with connected(serving) as strange:
            strange.sendall(struct.pack(">i", size))
            assert hung_up(strange)


def test_number_of_parts_of_a_request_is_limited(serving: RunningServer) -> None:
    topics = struct.pack(">i", 250_000) + b"\0\0" * 250_000
    with Raw(serving.address) as raw, pytest.raises(ConnectionError):
        raw.send(struct.pack(">hhih", 3, 1, 1, 0) + topics)
        raw.receive()


def test_requests_share_a_memory_limit(serving: RunningServer) -> None:
    """Only one of two frames fits. The other waits, and small requests are answered meanwhile."""
    frame = bytes(200_000)
    with connected(serving) as one, connected(serving) as other:
        for each in (one, other):
            each.sendall(struct.pack(">i", len(frame)) + frame[:-1])
        assert is_served(serving)
        assert hung_up(one) and hung_up(other)  # neither frame was completed in time
    with Raw(serving.address) as raw, pytest.raises(ConnectionError):
        raw.send(struct.pack(">hhih", 999, 1, 1, 0) + frame)  # the memory is free again
        raw.receive()
    assert is_served(serving)


# ---------------------------------------------------------------------- readers


def test_reader_that_does_not_read_is_disconnected(serving: RunningServer) -> None:
    with lazy(serving) as connection:
        fetch(connection)
        assert is_served(serving)
        wait_until(lambda: not serving._server._open)
        assert is_served(serving)
        with pytest.raises(ConnectionError):
            received(connection)


def test_slow_reader_gets_the_complete_response(
    root: Path, tmp_path: Path, told: list[str]
) -> None:
    with serving_of(root, tmp_path, told) as serving, lazy(serving) as connection:
        fetch(connection)
        time.sleep(0.5)
        answer = received(connection)
    records = b"".join(path.read_bytes() for path in sorted((root / f"{TOPIC}-0").glob("*.log")))
    assert answer.endswith(records) and not told


@pytest.mark.parametrize(
    "readers", [100, pytest.param(1000, marks=[pytest.mark.long], id="a thousand")]
)
def test_slow_readers_do_not_delay_others(
    root: Path, tmp_path: Path, told: list[str], readers: int
) -> None:
    """The server does not buffer their unread responses, and answers other clients."""
    settings = {"max.connections": readers + 8}
    with serving_of(root, tmp_path, told, config=settings) as serving, ExitStack() as held:
        before = _resident_bytes()
        for _ in range(readers):
            fetch(held.enter_context(lazy(serving)))
        assert is_served(serving)
        with connected(serving) as healthy:
            for _ in range(5):
                fetch(healthy)
                assert len(received(healthy)) > BATCHES * VALUE_BYTES
        assert _resident_bytes() - before < 50_000_000 + readers * 200_000


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------- who is not known yet


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("users") / "users.json")
    lastwrite.users(path, add="alice", password="secret", topic="*")  # noqa: S106
    return path


@pytest.fixture
def asking(
    root: Path, tmp_path: Path, told: list[str], users: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    monkeypatch.setattr(serve, "_limits", lambda _: SMALL)
    with serving_of(root, tmp_path, told, users=users) as found:
        yield found


def known(serving: RunningServer) -> Raw:
    raw = Raw(serving.address)
    raw.ask("sasl_handshake", 1, mechanism="PLAIN")
    raw.ask("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
    return raw


def test_unauthenticated_connections_have_lower_limits(
    asking: RunningServer, told: list[str]
) -> None:
    with connected(asking) as large:
        large.sendall(struct.pack(">i", SMALL.unknown_bytes + 1))
        assert hung_up(large)
    for _ in range(2):  # versions may be requested only once
        with Raw(asking.address) as raw:
            raw.ask("api_versions", 0)
            with pytest.raises(ConnectionError):
                raw.ask("api_versions", 0)
    with Raw(asking.address) as raw, pytest.raises(ConnectionError):
        raw.ask("list_groups", 0)
    with Raw(asking.address) as raw, pytest.raises(ConnectionError):
        raw.ask("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
    with connected(asking) as silent:
        assert hung_up(silent)  # before authentication the limit is two seconds
    with known(asking) as raw:
        assert len(raw.ask("list_groups", 0).groups) == 0


def test_refusal_is_reported_once_and_without_the_secret(
    asking: RunningServer, told: list[str]
) -> None:
    with Raw(asking.address) as raw:
        answer = raw.ask("sasl_handshake", 1, mechanism="GSSAPI")
        assert answer.error_code == 33 and "PLAIN" in answer.mechanisms
        assert _is_over(raw)
    for _ in range(2):
        with Raw(asking.address) as raw:
            raw.ask("sasl_handshake", 1, mechanism="PLAIN")
            answer = raw.ask("sasl_authenticate", 1, auth_bytes=b"\0alice\0s3cr3t-guess")
            assert answer.error_code == 58
            assert _is_over(raw)
    with Raw(asking.address) as raw:
        raw.ask("sasl_handshake", 1, mechanism="PLAIN")
        with pytest.raises(ConnectionError):
            raw.send(struct.pack(">hhih", 36, 0, 1, 0) + struct.pack(">i", 99) + b"s3cr3t-guess")
            raw.receive()
    assert len([each for each in told if "refused" in each]) == 1
    assert "s3cr3t" not in str(told)


def test_unframed_sasl_tokens_are_accepted(asking: RunningServer) -> None:
    """Clients of before KIP-152 send tokens this way."""
    with Raw(asking.address) as raw:
        raw.ask("sasl_handshake", 0, mechanism="PLAIN")
        raw.send(b"\0alice\0secret")
        assert raw.receive() == b""
        assert not raw.ask("list_groups", 0).error_code
    with Raw(asking.address) as raw:
        raw.ask("sasl_handshake", 0, mechanism="PLAIN")
        raw.send(b"\0alice\0guess")
        assert _is_over(raw)


def _is_over(raw: Raw) -> bool:
    try:
        raw.receive()
    except ConnectionError:
        return True
    return False


def test_rules_and_users_are_reloaded_for_connected_clients(
    root: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastwrite.server.listener_security._LOOK_S", -1.0)
    path = str(tmp_path / "users.json")
    lastwrite.users(path, add="alice", password="secret")  # noqa: S106
    with serving_of(root, tmp_path, told, users=path) as serving, known(serving) as raw:
        values = {"topics": None, "allow_auto_topic_creation": False}
        assert not raw.ask("metadata", 4, **values).topics
        lastwrite.users(path, add="alice", password="secret", topic=TOPIC)  # noqa: S106
        assert [each.name for each in raw.ask("metadata", 4, **values).topics] == [TOPIC]
        Path(path).write_text("{")
        assert [each.name for each in raw.ask("metadata", 4, **values).topics] == [TOPIC]
        assert any("the previous one stays" in each for each in told)
        Path(path).write_text("{}")
        with pytest.raises(ConnectionError):
            raw.ask("metadata", 4, **values)


def test_sessions_end_without_reauthentication(
    root: Path, tmp_path: Path, told: list[str], users: str
) -> None:
    config = {"connections.max.reauth.ms": 1200}
    with serving_of(root, tmp_path, told, users=users, config=config) as serving:
        with Raw(serving.address) as raw:
            raw.ask("sasl_handshake", 1, mechanism="PLAIN")
            shown = raw.ask("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
            assert shown.session_lifetime == timedelta(seconds=1.2)
            # earlier than allowed
            assert raw.ask("sasl_handshake", 1, mechanism="PLAIN").error_code == 34
            time.sleep(1.3)
            with pytest.raises(ConnectionError):
                raw.ask("list_groups", 0)
        with known(serving) as raw:
            time.sleep(1.1)
            assert raw.ask("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
            raw.ask("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
            assert not raw.ask("list_groups", 0).error_code


# ---------------------------------------------------------------------- where it listens


def test_unprotected_listener_needs_an_option(root: Path, tmp_path: Path, users: str) -> None:
    pem = _certificate(tmp_path)
    tls = {"ssl.certificate.location": pem}
    more = {"users": users, "config": tls}
    for given in ({}, {"users": users}, {"config": tls}):
        with pytest.raises(InvalidConfig, match="--open"):
            lastwrite.serve(str(root), listen="0.0.0.0:0", state=str(tmp_path / "s"), **given)
    for allowed in ({"is_open": True}, more):
        lastwrite.serve(
            str(root),
            listen="0.0.0.0:0",
            state=str(tmp_path / "s"),
            **allowed,
        ).close()
    for words, config in {
        "cannot be read": {"ssl.certificate.location": str(tmp_path / "missing")},
        "ssl.client.auth": {"ssl.client.auth": "required"},
        "sasl.enabled.mechanisms is set, but no users file is given": {
            "sasl.enabled.mechanisms": "PLAIN"
        },
        "GSSAPI": {"sasl.enabled.mechanisms": "GSSAPI"},
    }.items():
        with pytest.raises(InvalidConfig, match=words):
            lastwrite.serve(
                str(root), listen="127.0.0.1:0", state=str(tmp_path / "s"), config=config
            )


def _certificate(folder: Path, name: str = "us") -> str:
    """A key and its certificate in one PEM file."""
    line = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key"
    more = ["-out", f"{name}.pem", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(
            ["openssl", *line.split(), *more],
            cwd=folder,
            check=True,
            timeout=60,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        pytest.skip("openssl is missing")
    both = folder / f"{name}.both"
    both.write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text())
    return str(both)


def test_changed_certificate_is_reloaded_and_an_invalid_one_ignored(
    root: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastwrite.server.listener_security._LOOK_S", -1.0)
    first, second = Path(_certificate(tmp_path, "one")), Path(_certificate(tmp_path, "two"))
    config = {"ssl.certificate.location": str(first)}

    def shown(serving: RunningServer) -> str:
        host, _, port = serving.address.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=30)

    with serving_of(root, tmp_path, told, config=config) as serving:
        one = shown(serving)
        first.write_text("no certificate")
        assert shown(serving) == one and any("the previous one stays" in each for each in told)
        first.write_text(second.read_text())
        assert shown(serving) != one
        with connected(serving) as plain:  # a client without TLS
            plain.sendall(struct.pack(">ihhih", 10, 18, 0, 1, 0))
            with suppress(ConnectionResetError):
                assert plain.recv(100)[:1] in (b"", b"\x15")  # no response, or a TLS alert
        wait_until(lambda: any("TLS failed" in each for each in told))
