"""Tests of connections to peers that are neither bookies nor brokers.

They end in time, with a helpful error. For real peers see ``tests/system/test_pulsar_remote.py``.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lastwrite.errors import CorruptLog, EnvironmentUnfit, InvalidConfig, LogError, RemoteFailed
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.network import probe
from lastwrite.pulsar.network.admin import parse_admin_urls, topic_in_memory
from lastwrite.pulsar.network.broker import (
    Broker,
    BrokerUrl,
    _named,
    find_owner,
    parse_broker_url,
    parse_broker_urls,
)
from lastwrite.pulsar.network.commands import (
    BaseCommand,
    CommandError,
    Connected,
    LookupResponse,
    LookupType,
    Ping,
    decode_command,
    encode_command,
)
from lastwrite.pulsar.network.identity import PulsarCredentials
from lastwrite.pulsar.network.link import Link
from lastwrite.pulsar.network.metadata import MetadataStore
from lastwrite.pulsar.network.rocksdb import decode_value
from lastwrite.pulsar.network.start_tls import BookieResponse, Header, request_tls
from lastwrite.pulsar.network.tls import tls_context
from lastwrite.pulsar.network.zookeeper import digest_of_user, parse_store_url
from lastwrite.pulsar.rules.live_settings import Login, TlsFiles
from tests.unit.test_rocketmq_connection import listening


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def say(connection: socket.socket, *commands: BaseCommand) -> None:
    connection.sendall(b"".join(frame(encode_command(command)) for command in commands))


def hear(connection: socket.socket) -> BaseCommand:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        part = connection.recv(1 << 16)
        if not part:
            raise EOFError
        data += part
    return decode_command(data[4:])


def welcome(connection: socket.socket) -> None:
    assert hear(connection).connect is not None
    say(
        connection,
        BaseCommand(kind=3, connected=Connected(server_version="test", protocol_version=19)),
    )


def receive(address: str, timeout: float = 5.0) -> bytes:
    with Link(address, "bookie", timeout) as link:
        link.send([b"question"], "asking")
        answer = link.receive("asking")
    assert answer is not None
    return answer


def test_silence_ends_with_the_timeout() -> None:
    with (
        listening(lambda connection: time.sleep(1)) as address,
        pytest.raises(RemoteFailed, match=r"within 0\.2 s"),
    ):
        receive(address, 0.2)


def test_slow_trickle_ends_with_the_timeout() -> None:
    def trickle(connection: socket.socket) -> None:
        connection.sendall(struct.pack(">i", 1000))
        for _ in range(20):
            connection.sendall(b"x")
            time.sleep(0.05)

    with (
        listening(trickle) as address,
        pytest.raises(RemoteFailed, match="no answer from the bookie within"),
    ):
        receive(address, 0.3)


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, (256 << 20) + 1])
def test_impossible_frame_length_is_refused_at_once(length: int) -> None:
    def contradiction(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(struct.pack(">i", length))
        time.sleep(0.5)

    with (
        listening(contradiction) as address,
        pytest.raises(RemoteFailed, match=f"frame length of {length} bytes"),
    ):
        receive(address)


def test_closed_and_refused_connections_are_reported() -> None:
    with listening(lambda connection: None) as address, pytest.raises(RemoteFailed) as caught:
        receive(address)
    assert caught.value.path == address
    with pytest.raises(RemoteFailed, match="asking: connection refused"):
        receive(address)


def test_receive_with_a_short_timeout_keeps_the_link() -> None:
    def late(connection: socket.socket) -> None:
        time.sleep(0.3)
        connection.sendall(frame(b"late"))
        time.sleep(0.2)

    with listening(late) as address, Link(address, "bookie", 5.0) as link:
        link.open("asking")
        assert link.receive("asking", seconds=0.05) is None
        assert link.receive("asking") == b"late"


def test_broker_pings_are_answered_and_unrelated_commands_ignored() -> None:
    """A broker may ping at any time and send unrelated commands."""
    heard: list[int] = []

    def serve(connection: socket.socket) -> None:
        welcome(connection)
        say(connection, BaseCommand(kind=18, ping=Ping()), BaseCommand(kind=31))
        heard.append(hear(connection).kind)
        lookup = hear(connection).lookup
        assert lookup is not None
        found = LookupResponse(
            broker_url="pulsar://h:1",
            response=LookupType.CONNECT,
            request_id=lookup.request_id,
            authoritative=True,
        )
        late = LookupResponse(
            broker_url="pulsar://other:1", response=LookupType.CONNECT, request_id=99_999
        )
        say(
            connection,
            BaseCommand(kind=24, lookup_response=late),
            BaseCommand(kind=24, lookup_response=found),
        )
        time.sleep(0.2)

    with listening(serve) as address, Broker(address, timeout=5) as broker:
        time.sleep(0.1)
        assert broker.lookup("persistent://a/b/c").broker_url == "pulsar://h:1"
    assert heard == [19]


def test_broker_that_closes_the_connection_ends_the_call_at_once() -> None:
    def serve(connection: socket.socket) -> None:
        welcome(connection)
        hear(connection)

    with listening(serve) as address, Broker(address, timeout=20) as broker:
        begun = time.monotonic()
        with pytest.raises(RemoteFailed, match="looking up the broker"):
            broker.lookup("persistent://a/b/c")
        with pytest.raises(RemoteFailed, match="looking up the broker"):
            broker.lookup("persistent://a/b/c")
    assert time.monotonic() - begun < 20  # less than the timeout


def test_refused_authentication_is_reported_with_a_remedy() -> None:
    def serve(connection: socket.socket) -> None:
        hear(connection)
        refused = CommandError(
            request_id=(1 << 64) - 1, error=3, message="Authentication required\n\tat java.lang"
        )
        say(connection, BaseCommand(kind=14, error=refused))
        time.sleep(0.2)

    with (
        listening(serve) as address,
        pytest.raises(RemoteFailed, match="Authentication required") as caught,
    ):
        Broker(address, timeout=5)
    assert "java" not in str(caught.value)
    assert "brokerClientAuthenticationParameters" in str(caught.value.remedy)


def test_lookup_is_followed_to_the_owner() -> None:
    owner = socket.create_server(("127.0.0.1", 0))
    owner_at = f"127.0.0.1:{owner.getsockname()[1]}"
    asked: list[bool] = []

    def own() -> None:
        connection, _ = owner.accept()
        with connection:
            welcome(connection)
            lookup = hear(connection).lookup
            assert lookup is not None
            asked.append(lookup.authoritative)
            answer = LookupResponse(
                broker_url=f"pulsar://{owner_at}",
                response=LookupType.CONNECT,
                request_id=lookup.request_id,
            )
            say(connection, BaseCommand(kind=24, lookup_response=answer))
            time.sleep(0.3)

    def redirect(connection: socket.socket) -> None:
        welcome(connection)
        lookup = hear(connection).lookup
        assert lookup is not None
        answer = LookupResponse(
            broker_url=f"pulsar://{owner_at}",
            response=LookupType.REDIRECT,
            request_id=lookup.request_id,
            authoritative=True,
        )
        say(connection, BaseCommand(kind=24, lookup_response=answer))
        time.sleep(0.2)

    thread = threading.Thread(target=own, daemon=True)
    thread.start()
    with (
        listening(redirect) as address,
        find_owner([address], "persistent://a/b/c", timeout=5) as broker,
    ):
        assert broker.address == owner_at
    thread.join(5)
    owner.close()
    assert asked == [True]


def test_damaged_commands_are_refused() -> None:
    whole = encode_command(BaseCommand(kind=18, ping=Ping()))
    assert decode_command(whole).kind == 18
    for cut in range(len(whole)):
        with pytest.raises(LogError):
            decode_command(whole[:cut])
    with pytest.raises(LogError):
        decode_command(b"\xff\xff\xff\xff" + whole[4:])


def test_broker_addresses_are_parsed() -> None:
    assert list(parse_broker_urls("pulsar://a:1,b:2/")) == [("a:1", False), ("b:2", False)]
    assert list(parse_broker_urls("pulsar+ssl://a:1,b:2/")) == [("a:1", True), ("b:2", True)]
    assert list(parse_broker_urls("")) == []
    assert parse_broker_url("a:1") == ("a:1", False)
    with pytest.raises(InvalidConfig, match="http://a:1"):
        parse_broker_url("http://a:1")
    assert list(parse_admin_urls("https://a:1,b:2/")) == ["https://a:1", "https://b:2"]
    assert list(parse_admin_urls("a:1")) == ["http://a:1"]
    assert list(parse_admin_urls(" ")) == []


def test_tls_connection_never_falls_back_to_plain_text() -> None:
    plain = LookupResponse(broker_url="pulsar://b:1", response=LookupType.CONNECT, request_id=1)
    both = LookupResponse(
        broker_url="pulsar://b:1",
        broker_url_tls="pulsar+ssl://b:2",
        response=LookupType.CONNECT,
        request_id=1,
    )
    in_tls, in_clear = BrokerUrl("a:2", True), BrokerUrl("a:1")
    assert _named(both, in_tls, "t") == ("b:2", True)
    assert _named(both, in_clear, "t") == _named(plain, in_clear, "t") == ("b:1", False)
    only = LookupResponse(broker_url_tls="pulsar+ssl://b:2", request_id=1)
    assert _named(only, in_clear, "t") == ("b:2", True)
    with pytest.raises(RemoteFailed, match="does not accept TLS"):
        _named(plain, in_tls, "t")
    with pytest.raises(RemoteFailed, match="an address without TLS"):
        topic_in_memory("http://a:1", TopicName.parse("t"), PulsarCredentials(requires_tls=True))


def test_bookie_without_tls_is_reported() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(frame(BookieResponse(header=Header(), status=404).encode()))

    def babble(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(frame(b"\xff\xff"))

    for answer, said in (
        (refuse, "does not support TLS"),
        (babble, "the answer is not a bookie's"),
    ):
        with listening(answer) as address, pytest.raises(RemoteFailed, match=said):
            Link(address, "bookie", 5, tls_context(TlsFiles()), request_tls).open("asking")


def test_server_without_tls_is_reported() -> None:
    with (
        listening(lambda connection: connection.sendall(b"SSH-2.0\r\n")) as address,
        pytest.raises(RemoteFailed, match="TLS handshake with the broker failed"),
    ):
        Broker(f"pulsar+ssl://{address}", timeout=5)


def test_unreadable_tls_and_token_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        tls_context(TlsFiles(trusted=str(tmp_path / "nothing.pem")))
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        tls_context(TlsFiles(certificate=str(tmp_path / "empty")))
    with pytest.raises(InvalidConfig, match="cannot read the token"):
        PulsarCredentials(Login(method="token", token_file=str(tmp_path / "nothing"))).proof()
    (tmp_path / "token").write_text("token:abc\n")
    identity = PulsarCredentials(Login(method="token", token_file=str(tmp_path / "token")))
    assert identity.headers() == {"Authorization": "Bearer abc"}
    (tmp_path / "token").write_text("new")  # the token was renewed
    assert identity.proof() == b"new"


def test_store_credentials_are_parsed_without_being_shown(tmp_path: Path) -> None:
    assert digest_of_user("") is None
    assert digest_of_user("digest:me:a:b") == ("digest", "me:a:b")
    (tmp_path / "who").write_text("digest:me:secret\n")
    assert digest_of_user(f"file://{tmp_path}/who") == ("digest", "me:secret")
    for wrong in ("me:secret", "sasl:me:secret", "digest:secret", "digest:me:"):
        with pytest.raises(InvalidConfig) as caught:
            digest_of_user(wrong)
        assert "secret" not in str(caught.value)
    with pytest.raises(InvalidConfig, match="cannot read the file of metadataStoreAuth"):
        digest_of_user(f"file://{tmp_path}/nothing")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("zk:h:2181", "h:2181"),
        ("h", "h:2181"),
        ("zk:a:1,b/x/y/", "a:1,b:2181/x/y"),
        ("zk://a:1;b:2", "a:1,b:2"),
        ("zk+hierarchical://a:1/ledgers", "a:1/ledgers"),
        ("metadata-store:zk:a:1", "a:1"),
        ("[::1]:5", "[::1]:5"),
    ],
)
def test_metadata_store_urls_are_parsed(url: str, expected: str) -> None:
    assert parse_store_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "zk:", "rocksdb:///x", "etcd:h:1", "oxia://h:1/x", "memory:local", "/x"]
)
def test_unsupported_metadata_store_is_refused(url: str) -> None:
    with pytest.raises((InvalidConfig, EnvironmentUnfit), match="metadataStoreUrl|rocksdict"):
        MetadataStore(url)


def test_etcd_refusals_and_other_servers_are_reported() -> None:
    refusal = json.dumps({"error": "etcdserver: user name is empty", "code": 3}).encode()
    for body, said in (
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal,
            "refuses",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "the answer is not etcd's"),
        (b"SSH-2.0\r\n", "SSH|timed out|refused"),
    ):
        with listening(partial(answered, body)) as address:
            store = MetadataStore(f"etcd:http://{address}", timeout=0.2)
            with pytest.raises(RemoteFailed, match=said) as caught:
                store.brokers()
            store.close()
        if said == "refuses":
            assert "metadataStoreAuth" in str(caught.value.remedy)


def answered(body: bytes, connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(body)


def test_rocksdb_values_are_decoded() -> None:
    head = struct.pack(">iiqqqqb", 41, 1, 7, 0, 0, 0, 0)
    assert decode_value(head + b"data", "x") == (b"data", 7)
    for wrong in (
        b"",
        head[:-1],
        struct.pack(">ii", 41, 2) + head[8:],
        struct.pack(">i", 99) + head[4:],
    ):
        with pytest.raises(CorruptLog):
            decode_value(wrong, "x")


# ---------------------------------------------------------------------- what is no ZooKeeper


@pytest.fixture
def answering() -> Iterator[Callable[[bytes, bool], str]]:
    """A function that starts a server with a fixed response and returns its address.

    The server then closes the connection or keeps it open.
    """
    servers: list[socket.socket] = []
    open_ones: list[socket.socket] = []

    def serve(server: socket.socket, said: bytes, hangs_up: bool) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                open_ones.append(connection)
                threading.Thread(
                    target=answer, args=(connection, said, hangs_up), daemon=True
                ).start()

    def answer(connection: socket.socket, said: bytes, hangs_up: bool) -> None:
        with contextlib.suppress(OSError):
            connection.recv(4096)
            connection.sendall(said)
            if hangs_up:
                connection.close()

    def listen(said: bytes, hangs_up: bool) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threading.Thread(target=serve, args=(server, said, hangs_up), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield listen
    for each in (*servers, *open_ones):
        each.close()


@pytest.mark.parametrize(
    ("said", "words", "remedy"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", r"an HTTP server's \(HTTP/1.1 404 Not Found\)", "2181"),
        (b'HTTP/1.1 200 OK\r\n\r\n["standalone"]', "a Pulsar broker's admin port", "USE_ZOOKEEPER"),
        (
            frame(
                encode_command(BaseCommand(kind=3, connected=Connected(server_version="Pulsar 4")))
            ),
            r"a Pulsar broker's service port \(Pulsar 4\)",
            "USE_ZOOKEEPER",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x46", "the server requires TLS", "without TLS"),
        (b"-ERR unknown command", "its answer begins with -ERR unknown command", "2181"),
        (b"\x00\x01\xff\xfe", "its answer begins with 00 01 ff fe", "2181"),
        (b"", "does not answer a ZooKeeper client", "2181"),
    ],
    ids=["http", "admin", "broker", "tls", "words", "bytes", "nothing"],
)
def test_server_that_is_not_zookeeper_is_named(
    answering: Callable[[bytes, bool], str],
    said: bytes,
    words: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 60.0)  # long enough for a busy machine
    address = answering(said, True)
    with MetadataStore(address, timeout=3600) as store, pytest.raises(RemoteFailed) as refused:
        store.bookies()
    assert refused.value.path == address
    assert re.search(words, refused.value.problem)
    assert refused.value.remedy is not None and remedy in refused.value.remedy


def test_silent_server_is_reported_as_not_zookeeper(
    answering: Callable[[bytes, bool], str],
) -> None:
    address = answering(b"", False)
    with MetadataStore(address, timeout=3600) as store, pytest.raises(RemoteFailed) as refused:
        store.bookies()
    assert "does not answer a ZooKeeper client" in refused.value.problem


def test_unreachable_servers_are_each_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def unknown(host: str, *rest: Any, **more: Any) -> Any:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(probe, "_SECONDS", 60.0)
    url = "zk:127.0.0.1:1,no-such-host.invalid"
    with MetadataStore(url, timeout=3600) as store, pytest.raises(RemoteFailed) as refused:
        store.bookies()
    assert "127.0.0.1:1: connection refused" in refused.value.problem
    assert (
        "no-such-host.invalid:2181: the host name no-such-host.invalid cannot be resolved"
        in refused.value.problem
    )


@pytest.mark.parametrize(
    "said",
    [
        b"Zookeeper version: 3.9.3\n",
        b"srvr is not executed because it is not in the whitelist.\n",
        b"This ZooKeeper instance is not currently serving requests\n",
    ],
    ids=["version", "whitelist", "no quorum"],
)
def test_zookeeper_that_is_starting_gets_the_full_timeout(
    answering: Callable[[bytes, bool], str], said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single ZooKeeper among the addresses suffices for the full wait."""
    monkeypatch.setattr(probe, "_SECONDS", 60.0)
    monkeypatch.setattr(probe, "_STALLED_SECONDS", 0.1)
    url = f"127.0.0.1:1,{answering(said, True)}"
    begun = time.monotonic()
    with MetadataStore(url, timeout=2) as store, pytest.raises(RemoteFailed, match="a ZooKeeper"):
        store.bookies()
    assert time.monotonic() - begun >= 2
