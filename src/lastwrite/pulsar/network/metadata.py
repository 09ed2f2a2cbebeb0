"""What a cluster's metadata store knows: topics, ledgers, bookies, brokers. A ZooKeeper, by kazoo.

    /managed-ledgers/<managed ledger>              the topic's ledgers (ManagedLedgerInfo)
    /managed-ledgers/<managed ledger>/<cursor>     a subscription (ManagedCursorInfo)
    /admin/partitioned-topics/<t>/<n>/persistent/<x>     {"partitions": 4}
    /ledgers/00/0000/L0042                         a ledger's metadata; also its existence
    /ledgers/idgen/ID-0000000042                   for a moment: whoever makes it has the number
    /ledgers/available/<bookie>                    a bookie that takes entries, and where it
                                                   listens; …/readonly/<…>
    /loadbalance/brokers/<broker>                  a broker, and where it listens
    /lastwrite/publishing/<managed ledger>/<ledger>      ours: a ledger on its way to be a topic's
                                                         compacted one

Reading is asked again while the connection comes and goes, until the time is up. A change is asked
once; where the answer was lost, what is there tells what became of it.

Source: Pulsar 4.2.4 ``MetaStoreImpl``, ``PulsarLedgerManager``, ``PulsarLedgerIdGenerator``,
``PulsarRegistrationClient``; docs/formats/pulsar-compaction.md, "The commit";
docs/formats/pulsar.md, "Managed ledger".
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

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
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL

from lastwrite.config.address import parse_address
from lastwrite.errors import (
    CommitConflict,
    CorruptLog,
    InvalidConfig,
    LogError,
    RemoteFailed,
    UnsupportedFormat,
    located,
)
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata
from lastwrite.pulsar.format.managed_ledger import CursorInfo, ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.protobuf import INT32, STRING, ProtoField, ProtoMessage
from lastwrite.pulsar.network.bookies import LiveLedger
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS
from lastwrite.pulsar.network.probe import who_answers
from lastwrite.pulsar.rules.live_settings import path_of

DEFAULT_PORT = 2181

_TOPICS = "/managed-ledgers"
_PARTITIONED = "/admin/partitioned-topics"
_BROKERS = "/loadbalance/brokers"
_RACKS = "/bookies"
_OURS = "/lastwrite/publishing"
_HIERARCHICAL = "HierarchicalLedgerManagerFactory"
_MAX_LEDGER = (1 << 31) - 1  # ids from here on are laid out otherwise, and do not fit an offset
_RETRY_SECONDS = 0.2
_FIRST_SECONDS = 1.0  # after that we look who is there
_START_AGAIN = "see to the metadata store, then start again"
_UNREACHED = "see whether the metadata store runs there, and whether this machine may reach it"
_AGAIN = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    KazooTimeoutError,
)
_SERVERS = re.compile(r"[\w.\-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?", re.ASCII)

_T = TypeVar("_T")

# kazoo tells every change of a connection as a warning; what matters to a user comes as an error.
_LOG = logging.getLogger("lastwrite.zookeeper")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(ProtoMessage):
    """Where a bookie listens, and what for."""

    id: Annotated[str | None, ProtoField(1, STRING)] = None
    port: Annotated[int | None, ProtoField(2, INT32)] = None
    host: Annotated[str | None, ProtoField(3, STRING)] = None
    protocol: Annotated[str | None, ProtoField(4, STRING)] = None  # "bookie-rpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo(ProtoMessage):
    """What a bookie says of itself; empty in older releases, where its id is its address."""

    endpoints: Annotated[tuple[Endpoint, ...], ProtoField(6, Endpoint, repeated=True)] = ()


@dataclass(frozen=True, slots=True)
class MadeLedger:
    """A ledger that is ours and open."""

    ledger: LiveLedger
    version: int  # of its node


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens; None: not in such a way."""

    binary: str | None  # pulsar://HOST:PORT, or pulsar+ssl://…
    admin: str | None  # http://HOST:PORT, or https://…


class MetadataStore:
    """The metadata store at ``url``; the connection begins with the first question.

    ``url``: ``zk:HOST:PORT,HOST:PORT/chroot`` as in the brokers' ``metadataStoreUrl``; the scheme
    may lack. ``ledgers``: the path of the ledgers there. ``timeout``: seconds, of every question.
    ``auth``: who we are to its access lists, as of ``LiveConfig``.

    Raises:
        InvalidConfig: no such address, or a store of another kind.
    """

    def __init__(
        self,
        url: str,
        ledgers: str = "/ledgers",
        timeout: float = TIMEOUT_SECONDS,
        auth: str = "",
    ) -> None:
        self.address = parse_store_url(url)
        self._auth = digest_of_user(auth)
        self._ledgers = ledgers.rstrip("/")
        self._timeout = timeout
        self._client: Any = None

    def close(self) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None

    def __enter__(self) -> MetadataStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ topics

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0: it is not partitioned, or not there."""
        whole = topic.with_partition(-1)
        path = f"{_PARTITIONED}/{whole.managed_ledger}"
        node = self._get(path, f"asking for the partitions of {whole}")
        if node is None:
            return 0
        try:
            count = json.loads(node)["partitions"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            words = f"the number of partitions of {whole} cannot be read: {error!r}"
            raise CorruptLog(words, path=self.address) from error
        if not isinstance(count, int) or not 0 <= count <= _MAX_LEDGER:
            raise CorruptLog(f"{whole} has {count!r} partitions", path=self.address)
        return count

    def topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """The persistent topics of a namespace that have ledgers, partitions by themselves."""
        place = f"{tenant}/{namespace}/persistent"
        names = self._children(f"{_TOPICS}/{place}", f"asking for the topics of {place}")
        return sorted(TopicName.of_managed_ledger(f"{place}/{name}") for name in names)

    def managed_ledger(self, topic: TopicName) -> tuple[bytes, ManagedLedgerInfo] | None:
        """A topic's ledgers, as they lie there and as they read; None: there is no such topic, or
        it was never loaded.

        Raises:
            CorruptLog, UnsupportedFormat: it cannot be read.
        """
        node = self._get(f"{_TOPICS}/{topic.managed_ledger}", f"asking for the ledgers of {topic}")
        if node is None:
            return None
        with located(f"{self.address}{_TOPICS}/{topic.managed_ledger}"):
            return node, ManagedLedgerInfo.decode_node(node)

    def cursor(self, topic: TopicName, subscription: str) -> CursorInfo | None:
        """A subscription as the store has it: where ``cursors_ledger`` names a ledger, that one has
        the truth.
        """
        path = f"{_TOPICS}/{topic.managed_ledger}/{subscription}"
        node = self._get(path, f"asking for the subscription {subscription} of {topic}")
        if node is None:
            return None
        with located(self.address + path):
            return CursorInfo.decode_node(node)

    # ------------------------------------------------------------------ who is there

    def brokers(self, in_tls: bool = False) -> list[BrokerAddress]:
        """The brokers that are alive, where they listen: ``in_tls``, or in the clear and else in
        TLS."""
        found = []
        for name in self._children(_BROKERS, "asking for the brokers"):
            known = _object(self._get(f"{_BROKERS}/{name}", "asking for the brokers"))
            ways = ("Tls",) if in_tls else ("", "Tls")
            binary, admin = (
                next((str(url) for way in ways if (url := known.get(name + way))), None)
                for name in ("pulsarServiceUrl", "webServiceUrl")
            )
            if binary or admin:
                found.append(BrokerAddress(binary, admin))
        return found

    def address_of(self, bookie: str) -> str:
        """Where a bookie listens.

        Raises:
            RemoteFailed: it is not alive.
        """
        for place in ("available", "available/readonly"):
            path = f"{self._ledgers}/{place}/{bookie}"
            node = self._get(path, f"asking where bookie {bookie} listens")
            if node is not None:
                return self._listens_at(bookie, node)
        raise RemoteFailed(
            f"bookie {bookie} is not alive",
            path=self.address,
            remedy="start it; or let another take its ledgers over (autorecovery)",
        )

    def bookies(self) -> list[str]:
        """The bookies that take new entries, sorted."""
        names = self._children(f"{self._ledgers}/available", "asking for the bookies")
        return sorted(name for name in names if name != "readonly")

    def racks(self) -> dict[str, str]:
        """The rack of each bookie of which one was said."""
        groups = _object(self._get(_RACKS, "asking for the bookies' racks"))
        return {
            str(bookie): str(known["rack"])
            for group in groups.values()
            if isinstance(group, dict)
            for bookie, known in group.items()
            if isinstance(known, dict) and known.get("rack")
        }

    # ------------------------------------------------------------------ ledgers

    def ledger(self, number: int) -> LiveLedger | None:
        """What is known of a ledger; None: it was deleted, or never was.

        Raises:
            CorruptLog, UnsupportedFormat: it cannot be read.
        """
        path = self._ledger_path(number)
        node = self._get(path, f"asking for ledger {number}")
        if node is None:
            return None
        with located(self.address + path):
            return LiveLedger(number, LedgerMetadata.decode_node(node))

    def make_ledger(self, metadata: LedgerMetadata) -> MadeLedger:
        """Make an open ledger with these metadata, under a number that nobody else has.

        Raises:
            RemoteFailed: no answer, or a refusal.
            UnsupportedFormat: the cluster's numbers or their layout are such as we do not write.
        """
        self._refuse_other_layout()
        metadata = replace(metadata, ctoken=secrets.randbits(62))  # tells our node from another's
        number = self._next_number()
        path, data = self._ledger_path(number), metadata.encode_node()
        doing = f"making ledger {number}"
        try:
            self._once(lambda client: client.create_async(path, data, makepath=True), doing)
            version = 0
        except (NodeExistsError, *_AGAIN) as error:  # perhaps it was done, and the answer lost
            found = self._find(path, doing)
            if found is None or found[0] != data:
                raise self._no_answer(doing, error, _START_AGAIN) from error
            version = found[1]
        return MadeLedger(LiveLedger(number, metadata), version)

    def close_ledger(self, made: MadeLedger, metadata: LedgerMetadata) -> None:
        """Give a ledger that is ours its last metadata.

        Raises:
            CommitConflict: somebody else has changed it: fenced it, or deleted it.
            RemoteFailed: no answer, or a refusal.
        """
        metadata = replace(metadata, ctoken=made.ledger.metadata.ctoken)
        number, data = made.ledger.id, metadata.encode_node()
        path, doing = self._ledger_path(number), f"closing ledger {number}"
        try:
            self._once(lambda client: client.set_async(path, data, version=made.version), doing)
        except (BadVersionError, NoNodeError, *_AGAIN) as error:
            found = self._find(path, doing)
            if found is not None and found[0] == data:
                return
            if isinstance(error, _AGAIN):
                raise self._no_answer(doing, error, _START_AGAIN) from error
            raise CommitConflict(
                f"ledger {number}, which we wrote, was changed by another program",
                path=self.address,
                remedy="start again",
            ) from error

    def delete_ledger(self, number: int) -> None:
        """Delete a ledger, if it is there. The bookies remove its entries later."""
        with contextlib.suppress(NoNodeError):
            self._asked(_delete(self._ledger_path(number)), f"deleting ledger {number}")

    # ------------------------------------------------------------------ notes of ours

    def note(self, topic: TopicName, ledger: int) -> None:
        """Write down that ``ledger`` is on its way to be the topic's compacted ledger: whoever
        finds the note after a crash knows that it may belong to nobody."""
        path, doing = f"{_notes_path(topic)}/{ledger}", f"noting ledger {ledger} of {topic}"
        try:
            self._once(lambda client: client.create_async(path, b"", makepath=True), doing)
        except NodeExistsError:
            pass
        except _AGAIN as error:
            if self._find(path, doing) is None:
                raise self._no_answer(doing, error) from error

    def noted(self, topic: TopicName) -> list[int]:
        """The ledgers of which such notes are there."""
        names = self._children(_notes_path(topic), f"asking for notes on {topic}")
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def forget(self, topic: TopicName, ledger: int) -> None:
        """Take a note back."""
        folder = _notes_path(topic)
        for place in (f"{folder}/{ledger}", folder):
            try:
                self._once(_delete(place), f"forgetting ledger {ledger}")
            except (NoNodeError, *_AGAIN):
                continue
            except KazooException:  # the folder has other notes
                return

    # ------------------------------------------------------------------ how

    def _ledger_path(self, number: int) -> str:
        if not 0 <= number < _MAX_LEDGER:
            raise UnsupportedFormat(
                f"ledger {number} has a number of 63 bits",
                path=self.address,
                remedy="ledgers below 2147483647 can be compacted",
            )
        digits = f"{number:010d}"
        return f"{self._ledgers}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"

    def _refuse_other_layout(self) -> None:
        node = self._get(f"{self._ledgers}/LAYOUT", "asking how ledgers are laid out")
        if node is None or _HIERARCHICAL not in node.decode(errors="replace"):
            raise UnsupportedFormat(
                f"ledgers at {self._ledgers} are laid out by {(node or b'nobody').decode(errors='replace')!r}",
                path=self.address,
                remedy="give the path of a cluster's ledgers in bookkeeperMetadataServiceUri, or set up by "
                "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
            )

    def _next_number(self) -> int:
        doing = "asking for a ledger's number"
        if self._find(f"{self._ledgers}/idgen-long", doing) is not None:
            raise UnsupportedFormat(
                "the cluster numbers its new ledgers with 63 bits",
                path=self.address,
                remedy="such ledgers do not fit what is compacted; see docs/guide/pulsar-live.md",
            )
        prefix = f"{self._ledgers}/idgen/ID-"
        how = {"ephemeral": True, "sequence": True, "makepath": True}
        # Asked again at need: a number that nobody uses costs nothing.
        made = str(self._asked(lambda client: client.create_async(prefix, b"", **how), doing))
        with contextlib.suppress(NoNodeError, *_AGAIN):  # it goes with the session
            self._once(_delete(made), doing)
        text = made.removeprefix(prefix)
        number = int(text) if re.fullmatch(r"-?\d+", text, re.ASCII) else -1
        if not 0 <= number < _MAX_LEDGER:
            raise UnsupportedFormat(
                f"the cluster has no ledger numbers below 2147483647 left: {text}",
                path=self.address,
                remedy="a broker has to begin with longer ones; such ledgers cannot be compacted",
            )
        return number

    def _listens_at(self, bookie: str, node: bytes) -> str:
        try:
            endpoints = ServiceInfo.decode(node).endpoints if node else ()
        except LogError:
            endpoints = ()  # an older release's note: the id is the address
        for endpoint in endpoints:
            if endpoint.host and endpoint.port and endpoint.protocol in (None, "bookie-rpc"):
                host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
                return f"{host}:{endpoint.port}"
        try:
            parse_address(bookie)
        except InvalidConfig:
            raise RemoteFailed(
                f"bookie {bookie} does not say where it listens",
                path=self.address,
                remedy="see its node below the ledgers' available",
            ) from None
        return bookie

    def _get(self, path: str, doing: str) -> bytes | None:
        found = self._find(path, doing)
        return None if found is None else found[0]

    def _find(self, path: str, doing: str) -> tuple[bytes, int] | None:
        """A node's data and version; None: there is none."""
        try:
            data, stat = self._asked(lambda client: client.get_async(path), doing)
        except NoNodeError:
            return None
        return data or b"", stat.version

    def _children(self, path: str, doing: str) -> list[str]:
        try:
            return list(self._asked(lambda client: client.get_children_async(path), doing))
        except NoNodeError:
            return []

    def _asked(self, ask: Callable[[Any], Any], doing: str) -> Any:
        """What may be asked again: the answer, or kazoo's error that says what is not there.

        Raises:
            RemoteFailed: no answer within the timeout, or not for us.
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
        """What is asked once: the answer, or kazoo's error."""
        client = self._connected(doing)
        try:
            return ask(client).get(timeout=self._timeout)
        except (NoAuthError, AuthFailedError) as error:
            raise RemoteFailed(
                f"{doing}: it refuses access",
                path=self.address,
                remedy="metadataStoreAuth=digest:USER:PASSWORD of somebody whom its access lists let in",
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
                # It may wait long for an answer that never comes.
                threading.Thread(target=_end, args=(client,), daemon=True).start()
                raise
            self._client = client
            if self._auth:
                client.default_acl = self._siblings_access(client)
        return self._client

    def _siblings_access(self, client: Any) -> Any:
        """Whom what we make lets in: as the ledgers' folder does, so that brokers may change and
        delete it; where that cannot be seen whole, ourselves."""
        with contextlib.suppress(KazooException, *_AGAIN):
            found, _ = client.get_acls_async(self._ledgers).get(timeout=self._timeout)
            if not any(each.id.scheme == "digest" and each.id.id.endswith(":x") for each in found):
                return found
        return CREATOR_ALL_ACL

    def _connect(self, client: Any, doing: str) -> None:
        """Connect; where none of the servers can be a ZooKeeper's, say so at once.

        Raises:
            RemoteFailed: none of them serves us.
        """
        begun = time.monotonic()
        connected = client.start_async()
        if connected.wait(min(self._timeout, _FIRST_SECONDS)):
            return self._refuse_no_root(client, doing)
        found = who_answers(self.address.partition("/")[0].split(","))
        until = begun + min(self._timeout, max(each.worth_seconds for each in found.values()))
        if connected.wait(max(until - time.monotonic(), 0)):
            return self._refuse_no_root(client, doing)
        several = len(found) > 1
        words = "; ".join(
            f"{address}: {answer.words}" if several else answer.words
            for address, answer in found.items()
        )
        raise RemoteFailed(
            f"{doing}: no ZooKeeper serves us: {words}",
            path=self.address,
            remedy="; ".join(dict.fromkeys(answer.remedy for answer in found.values())),
        )

    def _refuse_no_root(self, client: Any, doing: str) -> None:
        """Below a path that is not there all would look as if it were not there."""
        if client.chroot and client.exists_async("/").get(timeout=self._timeout) is None:
            raise RemoteFailed(
                f"{doing}: there is no path {client.chroot} in that ZooKeeper",
                path=self.address,
                remedy="see what follows the servers in metadataStoreUrl of a broker.conf",
            )

    def _no_answer(
        self, doing: str, error: BaseException, remedy: str = _UNREACHED
    ) -> RemoteFailed:
        words = str(error) or type(error).__name__
        return RemoteFailed(f"{doing}: {words}", path=self.address, remedy=remedy)


def _end(client: Any) -> None:
    with contextlib.suppress(Exception):  # nobody waits for it
        client.stop()
        client.close()


def _notes_path(topic: TopicName) -> str:
    return f"{_OURS}/{topic.managed_ledger.replace('/', '%2F')}"


def _delete(path: str) -> Callable[[Any], Any]:
    return lambda client: client.delete_async(path)


def parse_store_url(url: str) -> str:
    """kazoo's form of a metadata store's address: ``HOST:PORT,HOST:PORT/chroot``.

    Raises:
        InvalidConfig: no such address, or a store of another kind.
    """
    text = url.strip()
    for scheme in ("metadata-store:", "zk+hierarchical://", "zk+null://", "zk://", "zk:"):
        text = text.removeprefix(scheme)
    servers, slash, chroot = text.partition("/")
    parts = [part for part in re.split("[,;]", servers) if part]
    if not parts or not all(_SERVERS.fullmatch(part) for part in parts):
        raise InvalidConfig(
            f"{url!r} is no metadata store that we know",
            remedy="give metadataStoreUrl=zk:HOST:PORT; those in RocksDB, etcd and Oxia cannot be used",
        )
    ported = [part if re.search(r":\d+$", part) else f"{part}:{DEFAULT_PORT}" for part in parts]
    return ",".join(ported) + (f"/{chroot.rstrip('/')}" if slash and chroot.strip("/") else "")


def digest_of_user(text: str) -> tuple[str, str] | None:
    """kazoo's form of ``digest:USER:PASSWORD``, or of a file with that; None: of nothing.

    Raises:
        InvalidConfig: it is something else; no error shows it.
    """
    source = "metadataStoreAuth"
    if text.startswith("file:"):
        source = path_of(text)
        try:
            text = Path(source).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InvalidConfig(f"cannot read who we are: {why}", path=source) from error
    if not text:
        return None
    scheme, _, who = text.partition(":")
    if scheme != "digest" or not all(who.partition(":")[::2]):
        raise InvalidConfig(
            f"{source} is not digest:USER:PASSWORD",
            remedy="of access lists the schemes digest, ip and world are supported",
        )
    return scheme, who


def _object(node: bytes | None) -> dict[str, Any]:
    """A node that should be a JSON object; anything else says nothing."""
    try:
        known = json.loads(node or b"{}")
    except (ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
