"""Settings of ``serve`` for its clients, under the names of Kafka's broker.

A ``server.properties`` can be passed unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lastwrite.config.declaration import INT_MAX, SettingsTable, setting
from lastwrite.errors import InvalidConfig

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")  # the strongest first


def _mechanisms(name: str, value: object) -> str:
    named = [each.strip().upper() for each in str(value).split(",") if each.strip()]
    for each in named:
        if each not in MECHANISMS:
            raise InvalidConfig(
                f"{name} contains {each}, which serve does not support",
                remedy=f"give one or more of: {', '.join(MECHANISMS)}",
            )
    return ",".join(named)


@dataclass(frozen=True, kw_only=True)
class ServeConfig(SettingsTable):
    """The settings of a server for its clients: TLS, authentication and limits.

    Some defaults are stricter than a broker's, because a broker's defaults are for a trusted
    network.
    """

    # PEM file of the server's certificate; enables TLS
    certificate: str = setting("", "ssl.certificate.location ssl.keystore.location")
    # PEM file of the server's key
    key: str = setting("", "ssl.key.location")
    # PEM file of the certificate authorities that sign clients' certificates
    client_ca: str = setting("", "ssl.ca.location ssl.truststore.location")
    # whether clients need a certificate
    client_auth: str = setting("none", "ssl.client.auth", choices=("none", "required"))
    # SASL mechanisms that clients can choose, separated by commas
    mechanisms: str = setting("", "sasl.enabled.mechanisms", parse=_mechanisms)
    # time after which a client must authenticate again; 0: never
    session_ms: int = setting(0, "connections.max.reauth.ms", 0)
    # delay of the response to a failed authentication
    failed_delay_ms: int = setting(100, "connection.failed.authentication.delay.ms", 0, 10_000)
    # maximum number of simultaneous connections
    connections: int = setting(1000, "max.connections", 1, INT_MAX)
    # maximum number of simultaneous connections from one address; local addresses have no limit,
    # because all clients behind a local proxy have the proxy's address
    connections_of_address: int = setting(100, "max.connections.per.ip", 1, INT_MAX)
    # time after which an idle connection is closed
    idle_ms: int = setting(600_000, "connections.max.idle.ms", 1000)
    # age from which committed offsets in a stopped broker's log directory are ignored
    offsets_retention_minutes: int = setting(10_080, "offsets.retention.minutes", 1, INT_MAX)
    # largest request
    request_bytes: int = setting(100 << 20, "socket.request.max.bytes", 1 << 10, INT_MAX)
    # largest request before authentication
    unknown_bytes: int = setting(64 << 10, "sasl.server.max.receive.size", 1 << 10, INT_MAX)

    def __post_init__(self) -> None:
        SettingsTable.__post_init__(self)
        if self.requests_certificate and not (self.certificate and self.client_ca):
            raise InvalidConfig(
                "ssl.client.auth=required needs the server's certificate and the trusted "
                "certificate authorities",
                remedy="set ssl.certificate.location and ssl.ca.location",
            )

    @property
    def requests_certificate(self) -> bool:
        return self.client_auth == "required"

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        """Whether ``name`` has no effect on a server, as for example a topic or bucket setting."""
        return name not in SERVE_NAMES


SERVE_NAMES = frozenset(ServeConfig.field_of())


def serve_config(names: Mapping[str, object] | None) -> ServeConfig:
    """Parse the settings in ``names`` that apply to a server's clients.

    Raises:
        InvalidConfig: a setting is out of range, or requires another.
    """
    return ServeConfig.from_names(names or {})
