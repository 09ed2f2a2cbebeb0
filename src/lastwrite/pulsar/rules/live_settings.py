"""Settings of a live cluster: its addresses, the client's identity, and how ledgers are written.

They have the names of a ``broker.conf`` or a ``client.conf``.

The compaction of a live topic needs the metadata store, which has the addresses of bookies and
brokers. A broker's whole ``broker.conf`` is sufficient. If a setting has a name in both files, the
name in ``broker.conf`` takes precedence. The exception is the key pair: a broker's own certificate
is not a client's.

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
_BROKERS = "brokerServiceUrl"  # the setting of a client.conf with the brokers' address
_ADMIN = "webServiceUrl"
# Settings with two names: in broker.conf, which has precedence, and in client.conf.
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
# Lastwrite's own setting: upstream uses JAAS for ZooKeeper's access lists
_STORE_AUTH = "metadataStoreAuth"
_RATE = "managedLedgerDefaultMarkDeleteRateLimit"
_QUORUMS = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)
_PLUGIN = "org.apache.pulsar.client.impl.auth."
_TOKEN_PLUGIN, _TLS_PLUGIN = f"{_PLUGIN}AuthenticationToken", f"{_PLUGIN}AuthenticationTls"
_UNCLEAN = "unclean"
# the name is from Kafka's clients, because Pulsar has no such setting
_API_TIMEOUT = "default.api.timeout.ms"
_OURS = (_UNCLEAN, _STORE_AUTH, _API_TIMEOUT)

LIVE_NAMES = frozenset(
    (
        *(*_STORES, _LEDGERS, _BROKERS, _ADMIN, *_PARAMETERS, *_PLUGINS, *_USES_TLS, *_KEY_STORES),
        *(*_TRUSTED, *_VERIFIES, _INSECURE, *_BROKERS_PAIR, *_CLIENTS_PAIR, *_OF_A_BROKER),
        *(_BOOKIES, *_BOOKIES_FILES, *_BOOKIES_TYPES, _RATE, *_QUORUMS, *_OURS),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The PEM files and checks of a TLS connection."""

    trusted: str = ""  # file of trusted certificate authorities; empty means the system's
    certificate: str = ""  # file with the client's certificate; empty means no certificate
    key: str = ""
    verifies_host: bool = False
    is_insecure: bool = False  # whether any server certificate is accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The client's login at a broker: none, a token, or a certificate."""

    method: str | None = None  # name in the protocol: token or tls; None without authentication
    token: str = field(default="", repr=False)
    token_file: str = ""  # path of a file with the token, read again for every connection


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfig:
    """The settings of a live cluster.

    ``quorums`` are ensemble, write and ack quorum; None means the quorums of the topic's ledgers.
    ``goes_on`` makes compaction continue even if the compacted ledger is lost. ``bookies_tls`` None
    means connections to bookies without TLS. ``store_auth`` is ``digest:USER:PASSWORD``, or
    ``file:///PATH`` of a file with that text.
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
    api_timeout_ms: int = 60_000  # how long a request is repeated if its connection breaks

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> LiveConfig:
        """Read the settings of a live cluster from ``names``. Other settings are ignored.

        Raises:
            InvalidConfig: the metadata store is missing, or an authentication or TLS setting is not
                supported.
        """
        _, store = _first(names, _STORES)
        if not store:
            raise InvalidConfig(
                "metadataStoreUrl, the address of the cluster's metadata store, is missing",
                remedy="give --config metadataStoreUrl=zk:HOST:PORT, or --config-file with a "
                "broker's broker.conf",
            )
        rate = parse_number(_RATE, names.get(_RATE, 1.0), whole=False)
        quorums = [
            parse_number(name, names[name], whole=True) for name in _QUORUMS if name in names
        ]
        if quorums and len(quorums) != len(_QUORUMS):
            raise InvalidConfig(
                "only some of the quorum settings were given",
                remedy=f"give all of {', '.join(_QUORUMS)}, or none of them",
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
            api_timeout_ms=int(
                parse_number(_API_TIMEOUT, names.get(_API_TIMEOUT, 60_000), whole=True)
            ),
        )


def rules_of(names: Mapping[str, object]) -> dict[str, object]:
    """The settings in ``names``, without Lastwrite's own settings for a live cluster."""
    return {name: value for name, value in names.items() if name not in _OURS}


def _text(names: Mapping[str, object], name: str) -> str:
    return str(names.get(name) or "").strip()


def _is_on(names: Mapping[str, object], *wanted: str) -> bool:
    return any(_text(names, name).lower() == "true" for name in wanted)


def _first(names: Mapping[str, object], wanted: Sequence[str]) -> tuple[str, str]:
    """The first name in ``wanted`` that is set, and its value.

    If no name is set, returns the first name and an empty value.
    """
    found = ((name, _text(names, name)) for name in wanted)
    return next(((name, text) for name, text in found if text), (wanted[0], ""))


def _ledgers(uri: str) -> str:
    """The path of the ledgers in ``zk+hierarchical://HOST:PORT/ledgers`` or a similar address."""
    text = uri.strip().removeprefix("metadata-store:")
    path = text.partition("://")[2] if "://" in text else text.partition(":")[2]
    slash = path.find("/")
    return path[slash:].rstrip("/") if slash >= 0 and path[slash:].strip("/") else "/ledgers"


def _login(names: Mapping[str, object]) -> tuple[Login, tuple[str, str]]:
    """The client's identity, and the certificate and key from the plugin's parameters, if any."""
    (plugin_name, plugin), (name, text) = _first(names, _PLUGINS), _first(names, _PARAMETERS)
    if plugin == _TLS_PLUGIN:
        told = _parse_parameters(text)
        return Login(method="tls"), (told.get("tlsCertFile", ""), told.get("tlsKeyFile", ""))
    if plugin and plugin != _TOKEN_PLUGIN:
        raise InvalidConfig(
            f"{plugin_name} is {plugin!r}, which is not supported",
            remedy=f"use one of {_TOKEN_PLUGIN} and {_TLS_PLUGIN}",
        )
    if not text:
        return Login(), ("", "")
    if text.startswith("file:"):
        return Login(method="token", token_file=path_of(text)), ("", "")
    token = _parse_parameters(text).get("token", "") if text.startswith("{") else text
    return Login(method="token", token=checked_token(token, name)), ("", "")


def path_of(uri: str) -> str:
    """The path in ``file:///PATH`` or ``file:PATH``."""
    text = uri.removeprefix("file:")
    return unquote(text.removeprefix("//") if text.startswith("//") else text)


def checked_token(text: str, source: str) -> str:
    """The token in ``text``, without its prefix. Errors do not contain the token.

    Raises:
        InvalidConfig: the text is not a token. ``source`` is the setting or file that contains it.
    """
    token = text.strip().removeprefix("token:").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidConfig(
            f"{source} has no valid token: the token is empty, or contains blanks, line "
            "breaks or non-ASCII characters",
            remedy='give token:TEXT, file:///PATH or {"token": "TEXT"}',
        )
    return token


def _parse_parameters(parameters: str) -> dict[str, str]:
    """Parse ``name:value,name:value`` or a JSON object."""
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
            "Lastwrite cannot read Java key stores",
            remedy="set tlsTrustCertsFilePath, tlsCertificateFilePath and tlsKeyFilePath to PEM "
            "files; convert a key store with keytool -exportcert -rfc and openssl pkcs12",
        )
    if not any(pair):
        is_brokers = any(name in names for name in _OF_A_BROKER)
        # With a broker.conf, ignore the client's names: that file uses them for the broker's
        # certificate.
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
    if not _is_on(names, _BOOKIES):  # Brokers too use TLS with bookies only if this setting is on.
        return None
    for name in _BOOKIES_TYPES:
        if _text(names, name).upper() not in ("", "PEM"):
            raise InvalidConfig(
                f"{name} is not PEM, the only supported type",
                remedy=f"set {name}=PEM, and give PEM files",
            )
    trusted, certificate, key = (_text(names, name) for name in _BOOKIES_FILES)
    return TlsFiles(trusted=trusted, certificate=certificate, key=key)
