"""Where a live Pulsar cluster is, who we are there, and how a ledger is written there: settings
under the names of a ``broker.conf`` or a ``client.conf``.

A round on a live topic needs the metadata store, and finds bookies and brokers by it. Given a
broker's whole ``broker.conf`` it knows all it must. Where both files name a thing, the broker's
name counts, but for a key pair: a broker's own is no client's.

Source: Pulsar 4.2.4 ServiceConfiguration, ClientConfigurationData, ``bin/pulsar compact-topic``,
AuthenticationToken, AuthenticationTls, BookKeeperClientFactoryImpl;
docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from lastwrite.config.declaration import parse_number
from lastwrite.errors import InvalidConfig

SCHEME = "persistent://"

_STORES = ("metadataStoreUrl", "zookeeperServers")
_LEDGERS = "bookkeeperMetadataServiceUri"
_BROKERS = "brokerServiceUrl"  # of a client.conf: a broker.conf has no use for it
_ADMIN = "webServiceUrl"
# of a broker.conf, else of a client.conf
_PARAMETERS = ("brokerClientAuthenticationParameters", "authParams")
_PLUGINS = ("brokerClientAuthenticationPlugin", "authPlugin")
_USES_TLS = ("brokerClientTlsEnabled", "useTls")
_KEY_STORES = ("brokerClientTlsEnabledWithKeyStore", "useKeyStoreTls")
_TRUSTED = ("brokerClientTrustCertsFilePath", "tlsTrustCertsFilePath")
_VERIFIES = ("tlsHostnameVerificationEnabled", "tlsEnableHostnameVerification")
_INSECURE = "tlsAllowInsecureConnection"
_BROKERS_PAIR = ("brokerClientCertificateFilePath", "brokerClientKeyFilePath")
_CLIENTS_PAIR = ("tlsCertificateFilePath", "tlsKeyFilePath")
_OF_A_BROKER = ("brokerServicePort", "brokerServicePortTls", "webServicePort")
_BOOKIES = "bookkeeperTLSClientAuthentication"
_BOOKIES_FILES = (
    "bookkeeperTLSTrustCertsFilePath",
    "bookkeeperTLSCertificateFilePath",
    "bookkeeperTLSKeyFilePath",
)
_BOOKIES_TYPES = ("bookkeeperTLSKeyFileType", "bookkeeperTLSTrustCertTypes")
_STORE_AUTH = "metadataStoreAuth"  # ours: for ZooKeeper's access lists upstream has JAAS
_RATE = "managedLedgerDefaultMarkDeleteRateLimit"
_QUORUMS = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)
_PLUGIN = "org.apache.pulsar.client.impl.auth."
_TOKEN_PLUGIN, _TLS_PLUGIN = f"{_PLUGIN}AuthenticationToken", f"{_PLUGIN}AuthenticationTls"
_UNCLEAN = "unclean"
_OURS = (_UNCLEAN, _STORE_AUTH)

LIVE_NAMES = frozenset(
    (
        *(*_STORES, _LEDGERS, _BROKERS, _ADMIN, *_PARAMETERS, *_PLUGINS, *_USES_TLS, *_KEY_STORES),
        *(*_TRUSTED, *_VERIFIES, _INSECURE, *_BROKERS_PAIR, *_CLIENTS_PAIR, *_OF_A_BROKER),
        *(_BOOKIES, *_BOOKIES_FILES, *_BOOKIES_TYPES, _RATE, *_QUORUMS, *_OURS),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What a connection in TLS goes by: PEM files."""

    trusted: str = ""  # authorities; empty: those that this machine trusts
    certificate: str = ""  # ours; empty: none
    key: str = ""
    verifies_host: bool = False
    is_insecure: bool = False  # whatever certificate the other side has


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who we are to a broker: nobody, the owner of a token or of a certificate."""

    method: str | None = None  # as the protocol names it: token, tls
    token: str = field(default="", repr=False)
    token_file: str = ""  # read for every connection: tokens are renewed


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfig:
    """``quorums``: ensemble, write and ack quorum; None: as the topic's own ledgers have them.
    ``goes_on``: also where the compacted ledger is lost. ``bookies_tls`` None: bookies are spoken
    to in the clear. ``store_auth``: ``digest:USER:PASSWORD`` or ``file:///PATH`` with that.
    """

    metadata_store: str
    ledgers: str
    brokers: str
    admin: str
    login: Login
    uses_tls: bool
    tls: TlsFiles
    bookies_tls: TlsFiles | None
    store_auth: str = field(repr=False)
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
        brokers, admin = _text(names, _BROKERS), _text(names, _ADMIN)
        login, pair = _login(names)
        return cls(
            metadata_store=store,
            ledgers=_ledgers(_text(names, _LEDGERS)),
            brokers=brokers,
            admin=admin,
            login=login,
            uses_tls=_is_on(names, *_USES_TLS) or brokers.startswith("pulsar+ssl:"),
            tls=_tls(names, pair),
            bookies_tls=_bookies_tls(names),
            store_auth=_text(names, _STORE_AUTH),
            mark_deletes_a_second=float(rate) if rate > 0 else 1.0,
            quorums=(int(quorums[0]), int(quorums[1]), int(quorums[2])) if quorums else None,
            goes_on=_is_on(names, _UNCLEAN),
        )


def rules_of(names: Mapping[str, object]) -> dict[str, object]:
    """The settings without those that a live cluster alone has and that no broker knows."""
    return {name: value for name, value in names.items() if name not in _OURS}


def _text(names: Mapping[str, object], name: str) -> str:
    return str(names.get(name) or "").strip()


def _is_on(names: Mapping[str, object], *wanted: str) -> bool:
    return any(_text(names, name).lower() == "true" for name in wanted)


def _first(names: Mapping[str, object], wanted: Sequence[str]) -> tuple[str, str]:
    """The first of the ``wanted`` names that is set, and its text; else the first name and none."""
    found = ((name, _text(names, name)) for name in wanted)
    return next(((name, text) for name, text in found if text), (wanted[0], ""))


def _ledgers(uri: str) -> str:
    """The path of the ledgers in ``zk+hierarchical://HOST:PORT/ledgers`` or the like."""
    text = uri.strip().removeprefix("metadata-store:")
    path = text.partition("://")[2] if "://" in text else text.partition(":")[2]
    slash = path.find("/")
    return path[slash:].rstrip("/") if slash >= 0 and path[slash:].strip("/") else "/ledgers"


def _login(names: Mapping[str, object]) -> tuple[Login, tuple[str, str]]:
    """Who we are, and the certificate and key that the plugin's parameters name, if any."""
    (plugin_name, plugin), (name, text) = _first(names, _PLUGINS), _first(names, _PARAMETERS)
    if plugin == _TLS_PLUGIN:
        told = _told(text)
        return Login(method="tls"), (told.get("tlsCertFile", ""), told.get("tlsKeyFile", ""))
    if plugin and plugin != _TOKEN_PLUGIN:
        raise InvalidConfig(
            f"{plugin_name} is {plugin!r}",
            remedy=f"only tokens and certificates are supported: {_TOKEN_PLUGIN}, {_TLS_PLUGIN}",
        )
    if not text:
        return Login(), ("", "")
    if text.startswith("file:"):
        return Login(method="token", token_file=path_of(text)), ("", "")
    token = _told(text).get("token", "") if text.startswith("{") else text
    return Login(method="token", token=checked_token(token, name)), ("", "")


def path_of(uri: str) -> str:
    """The path of ``file:///PATH`` or ``file:PATH``."""
    text = uri.removeprefix("file:")
    return unquote(text.removeprefix("//") if text.startswith("//") else text)


def checked_token(text: str, source: str) -> str:
    """The token in ``text``, without its prefix. No error shows it.

    Raises:
        InvalidConfig: it is none; ``source``: the setting or file that has it.
    """
    token = text.strip().removeprefix("token:").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidConfig(
            f"{source} has no token: it is empty, or has blanks, lines or other than ASCII",
            remedy='token:TEXT, file:///PATH or {"token": "TEXT"}',
        )
    return token


def _told(parameters: str) -> dict[str, str]:
    """``name:value,name:value``, or an object of JSON."""
    if parameters.startswith("{"):
        try:
            known = json.loads(parameters)
        except (ValueError, RecursionError):
            known = {}
        return {str(name): str(value) for name, value in known.items()}
    parts = (part.partition(":") for part in parameters.split(","))
    return {name.strip(): value.strip() for name, _, value in parts}


def _tls(names: Mapping[str, object], pair: tuple[str, str]) -> TlsFiles:
    if _is_on(names, *_KEY_STORES):
        raise InvalidConfig(
            "Java's key stores cannot be read",
            remedy="give PEM files: tlsTrustCertsFilePath, tlsCertificateFilePath and tlsKeyFilePath; "
            "of a store: keytool -exportcert -rfc, openssl pkcs12",
        )
    if not any(pair):
        is_brokers = any(name in names for name in _OF_A_BROKER)
        # of a broker's file tlsCertificateFilePath is what it shows its clients
        wanted = (_BROKERS_PAIR,) if is_brokers else (_BROKERS_PAIR, _CLIENTS_PAIR)
        both = ((_text(names, each[0]), _text(names, each[1])) for each in wanted)
        pair = next((each for each in both if any(each)), ("", ""))
    return TlsFiles(
        trusted=_first(names, _TRUSTED)[1],
        certificate=pair[0],
        key=pair[1],
        verifies_host=_is_on(names, *_VERIFIES),
        is_insecure=_is_on(names, _INSECURE),
    )


def _bookies_tls(names: Mapping[str, object]) -> TlsFiles | None:
    if not _is_on(names, _BOOKIES):  # as brokers: without it they have no TLS with bookies
        return None
    for name in _BOOKIES_TYPES:
        if _text(names, name).upper() not in ("", "PEM"):
            raise InvalidConfig(f"{name} is not PEM", remedy="only PEM files can be read")
    trusted, certificate, key = (_text(names, name) for name in _BOOKIES_FILES)
    return TlsFiles(trusted=trusted, certificate=certificate, key=key)
