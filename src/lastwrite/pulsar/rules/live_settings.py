"""Where a live Pulsar cluster is, and how a ledger is written there: settings under the names of a
``broker.conf``.

A round on a live topic needs the metadata store, and finds bookies and brokers by it. Given a
broker's whole ``broker.conf`` it knows all it must.

Source: Pulsar 4.2.4 ServiceConfiguration, ``bin/pulsar compact-topic``;
docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lastwrite.config.declaration import parse_number
from lastwrite.errors import InvalidConfig

SCHEME = "persistent://"

_STORES = ("metadataStoreUrl", "zookeeperServers")
_LEDGERS = "bookkeeperMetadataServiceUri"
_BROKERS = "brokerServiceUrl"  # of a client.conf: a broker.conf has no use for it
# of a broker.conf, else of a client.conf
_TOKENS = ("brokerClientAuthenticationParameters", "authParams")
_PLUGINS = ("brokerClientAuthenticationPlugin", "authPlugin")
_RATE = "managedLedgerDefaultMarkDeleteRateLimit"
_QUORUMS = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)
_TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_UNCLEAN = "unclean"

LIVE_NAMES = frozenset(
    (*_STORES, _LEDGERS, _BROKERS, *_TOKENS, *_PLUGINS, _RATE, *_QUORUMS, _UNCLEAN)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfig:
    """``quorums``: ensemble, write and ack quorum; None: as the topic's own ledgers have them.
    ``goes_on``: also where the compacted ledger is lost."""

    metadata_store: str
    ledgers: str
    brokers: str
    token: str | None
    mark_deletes_a_second: float
    quorums: tuple[int, int, int] | None
    goes_on: bool

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> LiveConfig:
        """The config that the settings make; those that say nothing of a cluster are passed over.

        Raises:
            InvalidConfig: no metadata store, or an access that we do not have.
        """
        _, store = _first(names, _STORES)
        if not store:
            raise InvalidConfig(
                "the address of the cluster's metadata store is missing",
                remedy="--config metadataStoreUrl=zk:HOST:PORT, or --config-file with a broker's broker.conf",
            )
        rate = parse_number(_RATE, names.get(_RATE, 1.0), whole=False)
        quorums = [
            parse_number(name, names[name], whole=True) for name in _QUORUMS if name in names
        ]
        if quorums and len(quorums) != len(_QUORUMS):
            raise InvalidConfig(
                "a part of the quorums was given",
                remedy=f"give {', '.join(_QUORUMS)}, or none of them",
            )
        return cls(
            metadata_store=store,
            ledgers=_ledgers(str(names.get(_LEDGERS) or "")),
            brokers=str(names.get(_BROKERS) or "").strip(),
            token=_token(names),
            mark_deletes_a_second=float(rate) if rate > 0 else 1.0,
            quorums=(int(quorums[0]), int(quorums[1]), int(quorums[2])) if quorums else None,
            goes_on=str(names.get(_UNCLEAN, "")).lower() == "true",
        )


def rules_of(names: Mapping[str, object]) -> dict[str, object]:
    """The settings without the one that a live cluster alone has and that no broker knows."""
    return {name: value for name, value in names.items() if name != _UNCLEAN}


def _first(names: Mapping[str, object], wanted: Sequence[str]) -> tuple[str, str]:
    """The first of the ``wanted`` names that is set, and its text; else the first name and none."""
    found = ((name, str(names.get(name) or "").strip()) for name in wanted)
    return next(((name, text) for name, text in found if text), (wanted[0], ""))


def _ledgers(uri: str) -> str:
    """The path of the ledgers in ``zk+hierarchical://HOST:PORT/ledgers`` or the like."""
    text = uri.strip().removeprefix("metadata-store:")
    path = text.partition("://")[2] if "://" in text else text.partition(":")[2]
    slash = path.find("/")
    return path[slash:].rstrip("/") if slash >= 0 and path[slash:].strip("/") else "/ledgers"


def _token(names: Mapping[str, object]) -> str | None:
    (plugin_name, plugin), (name, text) = _first(names, _PLUGINS), _first(names, _TOKENS)
    if plugin and plugin != _TOKEN_PLUGIN:
        raise InvalidConfig(
            f"{plugin_name} is {plugin!r}", remedy=f"only tokens are supported: {_TOKEN_PLUGIN}"
        )
    if not text:
        return None
    if text.startswith("file:"):
        raise InvalidConfig(f"{name} names a file", remedy=f"{name}=token:TEXT")
    return text.removeprefix("token:")
