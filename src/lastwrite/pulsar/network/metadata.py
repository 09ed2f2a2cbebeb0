"""The content of a cluster's metadata store: topics, ledgers, bookies, brokers.

``open_nodes`` lists the kinds of stores.

    /managed-ledgers/<managed ledger>              the topic's ledgers (ManagedLedgerInfo)
    /managed-ledgers/<managed ledger>/<cursor>     a subscription (ManagedCursorInfo)
    /admin/partitioned-topics/<t>/<n>/persistent/<x>     {"partitions": 4}
    /ledgers/00/0000/L0042                         a ledger's metadata; without this node the ledger
                                                   does not exist
    /ledgers/idgen/ID-0000000042                   temporary: its creator owns the number
    /ledgers/available/<bookie>                    a bookie that accepts entries, and its address;
                                                   …/readonly/<…>
    /loadbalance/brokers/<broker>                  a broker, and its addresses
    /lastwrite/publishing/<managed ledger>/<ledger>      Lastwrite's own: a ledger that may become a
                                                         topic's compacted one

Reads are repeated until the timeout if the connection is interrupted. A change is requested once.
If its answer is lost, the node is read to find out the result.

Source: Pulsar 4.2.4 ``MetaStoreImpl``, ``PulsarLedgerManager``, ``PulsarLedgerIdGenerator``,
``PulsarRegistrationClient``; docs/formats/pulsar-compaction.md, "The commit";
docs/formats/pulsar.md, "Managed ledger".
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, replace
from typing import Annotated, Any

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
from lastwrite.pulsar.network.etcd import Etcd
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS
from lastwrite.pulsar.network.nodes import MetadataTimeout, NodeExists, Nodes, VersionMismatch
from lastwrite.pulsar.network.zookeeper import ZooKeeper
from lastwrite.pulsar.rules.live_settings import TlsFiles

_TOPICS = "/managed-ledgers"
_PARTITIONED = "/admin/partitioned-topics"
_BROKERS = "/loadbalance/brokers"
_RACKS = "/bookies"
_OURS = "/lastwrite/publishing"
_HIERARCHICAL = "HierarchicalLedgerManagerFactory"
_MAX_LEDGER = (1 << 31) - 1  # the highest supported ledger id; a higher one does not fit an offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(ProtoMessage):
    """An address of a bookie, and its protocol."""

    id: Annotated[str | None, ProtoField(1, STRING)] = None
    port: Annotated[int | None, ProtoField(2, INT32)] = None
    host: Annotated[str | None, ProtoField(3, STRING)] = None
    protocol: Annotated[str | None, ProtoField(4, STRING)] = None  # "bookie-rpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo(ProtoMessage):
    """The registration of a bookie.

    It is empty in older releases, where a bookie's id is its address.
    """

    endpoints: Annotated[tuple[Endpoint, ...], ProtoField(6, Endpoint, repeated=True)] = ()


@dataclass(frozen=True, slots=True)
class CreatedLedger:
    """A new open ledger that this process created."""

    ledger: LiveLedger
    version: int  # version of the ledger's node


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The addresses of a broker. An address is None if the broker does not listen there."""

    binary: str | None  # binary address: pulsar://HOST:PORT, or pulsar+ssl://…
    admin: str | None  # admin address: http://HOST:PORT, or https://…


class MetadataStore:
    """A connection to the metadata store at ``url``, which starts with the first request.

    ``url`` is as in the brokers' ``metadataStoreUrl``, see ``open_nodes``. ``ledgers`` is the path
    of the ledgers there. ``timeout`` is in seconds, for every request. ``auth`` is the user for the
    store's access lists, as ``store_auth`` in ``LiveConfig``. ``tls`` is used for a store over
    https.

    Raises:
        InvalidConfig: the address is invalid, or of an unsupported kind of store.
    """

    def __init__(
        self,
        url: str,
        ledgers: str = "/ledgers",
        timeout: float = TIMEOUT_SECONDS,
        auth: str = "",
        tls: TlsFiles | None = None,
    ) -> None:
        self._ledgers = ledgers.rstrip("/")
        self._nodes = open_nodes(url, self._ledgers, timeout, auth, tls or TlsFiles())
        self.address = self._nodes.address

    def close(self) -> None:
        self._nodes.close()

    def __enter__(self) -> MetadataStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reject_read_only(self, doing: str) -> None:
        """Check that the store can be changed.

        Raises:
            InvalidConfig: the store can only be read.
        """
        if self._nodes.read_only:
            words = f"{doing}: Lastwrite can only read this metadata store"
            raise InvalidConfig(words, path=self.address, remedy=self._nodes.read_only)

    # ------------------------------------------------------------------ topics

    def partitions(self, topic: TopicName) -> int:
        """The number of partitions of a topic. 0 if it is not partitioned, or does not exist."""
        whole = topic.with_partition(-1)
        path = f"{_PARTITIONED}/{whole.managed_ledger}"
        node = self._get(path, f"reading the number of partitions of {whole}")
        if node is None:
            return 0
        try:
            count = json.loads(node)["partitions"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            words = f"the number of partitions of {whole} cannot be read: {error!r}"
            raise CorruptLog(words, path=self.address) from error
        if not isinstance(count, int) or not 0 <= count <= _MAX_LEDGER:
            raise CorruptLog(
                f"the number of partitions of {whole} is invalid: {count!r}", path=self.address
            )
        return count

    def topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """The persistent topics of a namespace that have ledgers.

        Partitions are separate topics.
        """
        place = f"{tenant}/{namespace}/persistent"
        names = self._nodes.children(f"{_TOPICS}/{place}", f"listing the topics of {place}")
        return sorted(TopicName.of_managed_ledger(f"{place}/{name}") for name in names)

    def managed_ledger(self, topic: TopicName) -> tuple[bytes, ManagedLedgerInfo] | None:
        """A topic's ledgers, as bytes and decoded.

        None if the topic does not exist, or was never loaded.

        Raises:
            CorruptLog, UnsupportedFormat: the node cannot be read.
        """
        node = self._get(f"{_TOPICS}/{topic.managed_ledger}", f"reading the ledger list of {topic}")
        if node is None:
            return None
        with located(f"{self.address}{_TOPICS}/{topic.managed_ledger}"):
            return node, ManagedLedgerInfo.decode_node(node)

    def cursor(self, topic: TopicName, subscription: str) -> CursorInfo | None:
        """A cursor of the topic, as stored in its node.

        If ``cursors_ledger`` names a ledger, the last entry of that ledger replaces the other
        fields.
        """
        path = f"{_TOPICS}/{topic.managed_ledger}/{subscription}"
        node = self._get(path, f"reading the subscription {subscription} of {topic}")
        if node is None:
            return None
        with located(self.address + path):
            return CursorInfo.decode_node(node)

    # ------------------------------------------------------------------ brokers and bookies

    def brokers(self, in_tls: bool = False) -> list[BrokerAddress]:
        """The addresses of the live brokers.

        With ``in_tls`` only addresses with TLS are returned. Otherwise an address without TLS is
        preferred.
        """
        found = []
        for name in self._nodes.children(_BROKERS, "listing the brokers"):
            known = _object(self._get(f"{_BROKERS}/{name}", "listing the brokers"))
            ways = ("Tls",) if in_tls else ("", "Tls")
            binary, admin = (
                next((str(url) for way in ways if (url := known.get(name + way))), None)
                for name in ("pulsarServiceUrl", "webServiceUrl")
            )
            if binary or admin:
                found.append(BrokerAddress(binary, admin))
        return found

    def address_of(self, bookie: str) -> str:
        """The address of a bookie.

        Raises:
            RemoteFailed: the bookie is not alive.
        """
        for place in ("available", "available/readonly"):
            path = f"{self._ledgers}/{place}/{bookie}"
            node = self._get(path, f"reading the address of bookie {bookie}")
            if node is not None:
                return self._listens_at(bookie, node)
        raise RemoteFailed(
            f"bookie {bookie} is not running",
            path=self.address,
            remedy="start the bookie, or wait until autorecovery has copied its ledgers to "
            "another bookie",
        )

    def bookies(self) -> list[str]:
        """The bookies that accept new entries, sorted."""
        names = self._nodes.children(f"{self._ledgers}/available", "listing the bookies")
        return sorted(name for name in names if name != "readonly")

    def racks(self) -> dict[str, str]:
        """The rack of each bookie. A bookie without a rack is absent."""
        groups = _object(self._get(_RACKS, "reading the racks of the bookies"))
        return {
            str(bookie): str(known["rack"])
            for group in groups.values()
            if isinstance(group, dict)
            for bookie, known in group.items()
            if isinstance(known, dict) and known.get("rack")
        }

    # ------------------------------------------------------------------ ledgers

    def ledger(self, number: int) -> LiveLedger | None:
        """The metadata of a ledger. None if it was deleted, or never existed.

        Raises:
            CorruptLog, UnsupportedFormat: the node cannot be read.
        """
        path = self._ledger_path(number)
        node = self._get(path, f"reading the metadata of ledger {number}")
        if node is None:
            return None
        with located(self.address + path):
            return LiveLedger(number, LedgerMetadata.decode_node(node))

    def create_ledger(self, metadata: LedgerMetadata) -> CreatedLedger:
        """Create an open ledger with these metadata, under a unique number.

        Raises:
            RemoteFailed: no answer, or a refusal.
            UnsupportedFormat: the cluster's ledger numbers or their layout are not supported.
        """
        self._check_layout()
        # A random token by which this process recognizes the node that it created.
        metadata = replace(metadata, ctoken=secrets.randbits(62))
        number = self._next_number()
        path, data = self._ledger_path(number), metadata.encode_node()
        doing = f"creating ledger {number}"
        try:
            version = self._nodes.create(path, data, doing)
        except (
            NodeExists,
            MetadataTimeout,
        ) as error:  # the node may exist because its creation succeeded and the answer was lost
            found = self._nodes.find(path, doing)
            if found is None or found.data != data:
                raise self._not_done(doing, error) from error
            version = found.version
        return CreatedLedger(LiveLedger(number, metadata), version)

    def close_ledger(self, ledger: CreatedLedger, metadata: LedgerMetadata) -> None:
        """Store the final metadata of a ledger that this process created.

        Raises:
            CommitConflict: another program has fenced or deleted the ledger.
            RemoteFailed: no answer, or a refusal.
        """
        metadata = replace(metadata, ctoken=ledger.ledger.metadata.ctoken)
        number, data = ledger.ledger.id, metadata.encode_node()
        path, doing = self._ledger_path(number), f"closing ledger {number}"
        try:
            self._nodes.replace(path, data, ledger.version, doing)
        except (VersionMismatch, MetadataTimeout) as error:
            found = self._nodes.find(path, doing)
            if found is not None and found.data == data:
                return
            if isinstance(error, MetadataTimeout):
                raise error.error from error
            raise CommitConflict(
                f"another program changed ledger {number}, which Lastwrite was writing",
                path=self.address,
                remedy="nothing was committed; run the command again",
            ) from error

    def delete_ledger(self, number: int) -> None:
        """Delete a ledger, if it exists. The bookies remove its entries later."""
        self._nodes.delete(self._ledger_path(number), f"deleting ledger {number}")

    # ------------------------------------------------------------------ notes

    def note(self, topic: TopicName, ledger: int) -> None:
        """Store a note that ``ledger`` may become the topic's compacted ledger.

        After a crash the note identifies a ledger that may be unused.
        """
        path, doing = (
            f"{_notes_path(topic)}/{ledger}",
            f"adding ledger {ledger} to the notes on {topic}",
        )
        try:
            self._nodes.create(path, b"", doing)
        except NodeExists:
            pass
        except MetadataTimeout as error:
            if self._nodes.find(path, doing) is None:
                raise error.error from error

    def noted(self, topic: TopicName) -> list[int]:
        """The ledgers that ``note`` has recorded for the topic."""
        names = self._nodes.children(_notes_path(topic), f"reading the notes on {topic}")
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def delete_note(self, topic: TopicName, ledger: int) -> None:
        """Delete the note about a ledger."""
        folder = _notes_path(topic)
        for place in (f"{folder}/{ledger}", folder):
            self._nodes.delete(place, f"deleting the note on ledger {ledger}")

    # ------------------------------------------------------------------ paths and numbers

    def _ledger_path(self, number: int) -> str:
        if not 0 <= number < _MAX_LEDGER:
            raise UnsupportedFormat(
                f"the ledger id {number} is too high for Lastwrite",
                path=self.address,
                remedy="only ledger ids below 2147483647 can be compacted",
            )
        digits = f"{number:010d}"
        return f"{self._ledgers}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"

    def _check_layout(self) -> None:
        doing = "reading the layout of the ledgers"
        node = self._get(f"{self._ledgers}/LAYOUT", doing)
        if node is None and not isinstance(self._nodes, ZooKeeper):
            # A cluster that was created with another store than ZooKeeper has no node ``LAYOUT``,
            # because brokers support only one layout in such a store.
            node = self._get(f"{self._ledgers}/INSTANCEID", doing) and _HIERARCHICAL.encode()
        if node is None or _HIERARCHICAL not in node.decode(errors="replace"):
            raise UnsupportedFormat(
                f"the ledger layout at {self._ledgers} is not supported: "
                f"{(node or b'none').decode(errors='replace')!r}",
                path=self.address,
                remedy="set bookkeeperMetadataServiceUri to the ledger path of a cluster with the "
                "layout org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
            )

    def _next_number(self) -> int:
        doing = "allocating a ledger id"
        if self._nodes.find(f"{self._ledgers}/idgen-long", doing) is not None:
            raise UnsupportedFormat(
                "the cluster has ledger ids beyond 2147483647, which Lastwrite does not support",
                path=self.address,
                remedy="nothing was changed; see docs/guide/pulsar-live.md",
            )
        text = self._nodes.number(f"{self._ledgers}/idgen/ID-", doing)
        number = int(text) if re.fullmatch(r"-?\d+", text, re.ASCII) else -1
        if not 0 <= number < _MAX_LEDGER:
            raise UnsupportedFormat(
                f"the cluster has used all ledger ids below 2147483647: {text}",
                path=self.address,
                remedy="nothing was changed; Lastwrite cannot compact topics with higher ledger "
                "ids",
            )
        return number

    def _not_done(self, doing: str, error: NodeExists | MetadataTimeout) -> RemoteFailed:
        if isinstance(error, MetadataTimeout):
            return error.error
        remedy = "check the metadata store, then run the command again"
        return RemoteFailed(f"{doing}: the node exists already", path=self.address, remedy=remedy)

    def _listens_at(self, bookie: str, node: bytes) -> str:
        try:
            endpoints = ServiceInfo.decode(node).endpoints if node else ()
        except LogError:
            # Older releases register no endpoints, because a bookie's id is its address.
            endpoints = ()
        for endpoint in endpoints:
            if endpoint.host and endpoint.port and endpoint.protocol in (None, "bookie-rpc"):
                host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
                return f"{host}:{endpoint.port}"
        try:
            parse_address(bookie)
        except InvalidConfig:
            raise RemoteFailed(
                f"bookie {bookie} is registered without an address",
                path=self.address,
                remedy="restart the bookie; its registration is the node "
                f"/ledgers/available/{bookie}",
            ) from None
        return bookie

    def _get(self, path: str, doing: str) -> bytes | None:
        found = self._nodes.find(path, doing)
        return None if found is None else found.data


def _notes_path(topic: TopicName) -> str:
    return f"{_OURS}/{topic.managed_ledger.replace('/', '%2F')}"


def open_nodes(url: str, like: str, timeout: float, auth: str, tls: TlsFiles) -> Nodes:
    """The store at ``url``, chosen by its scheme.

    Raises:
        InvalidConfig: the address is invalid, or of an unsupported store.
        EnvironmentUnfit: the extra package for this store is not installed.
    """
    text = url.strip().removeprefix("metadata-store:")
    if text.startswith("etcd:"):
        return Etcd(text, timeout, auth, tls)
    if text.startswith("rocksdb:"):
        # imported here, because it requires an extra package
        from lastwrite.pulsar.network.rocksdb import RocksDb

        return RocksDb(text)
    return ZooKeeper(text, timeout, auth, like)


def _object(node: bytes | None) -> dict[str, Any]:
    """The JSON object in a node. Empty for any other content."""
    try:
        known = json.loads(node or b"{}")
    except (ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
