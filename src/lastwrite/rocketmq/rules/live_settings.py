"""The settings for connecting to a live cluster.

They have the names of RocketMQ's clients and of the ``tls.properties`` file. A setting that
RocketMQ does not have has Kafka's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lastwrite.config.address import parse_address
from lastwrite.config.declaration import INT_MAX, SettingsTable, setting
from lastwrite.errors import InvalidConfig

SCHEME = "rocketmq://"


@dataclass(frozen=True, kw_only=True)
class RocketmqClientConfig(SettingsTable):
    """Credentials, TLS and timeouts of the client; see ``docs/guide/rocketmq-live.md``."""

    # name of the account
    access_key: str = setting("", "accessKey")
    # secret of the account; never printed
    secret_key: str = setting("", "secretKey")
    # token of a temporary account; never printed
    security_token: str = setting("", "securityToken")
    # whether connections use TLS
    tls: bool = setting(False, "tls.enable")
    # PEM file of the authorities that are trusted
    tls_ca: str = setting("", "tls.client.trustCertPath")
    # PEM file of the client's certificate
    tls_certificate: str = setting("", "tls.client.certPath")
    # PEM file of the client's key
    tls_key: str = setting("", "tls.client.keyPath")
    # password of the client's key; never printed
    tls_key_password: str = setting("", "tls.client.keyPassword")
    # whether the broker's certificate is verified; RocketMQ's clients do not verify it by default
    tls_proves_server: bool = setting(True, "tls.client.authServer")
    # time limit of one request
    request_timeout_ms: int = setting(30_000, "request.timeout.ms", 100, INT_MAX)
    # longest time for which a broker or name server may be unreachable
    api_timeout_ms: int = setting(60_000, "default.api.timeout.ms", 100, INT_MAX)

    def __post_init__(self) -> None:
        SettingsTable.__post_init__(self)
        if bool(self.access_key) != bool(self.secret_key):
            raise InvalidConfig(
                "only one of accessKey and secretKey is set",
                remedy="set both in the file of --config-file",
            )

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        """Whether the client ignores the setting ``name``, for example a setting of compaction."""
        return name not in CLIENT_NAMES


CLIENT_NAMES = frozenset(RocketmqClientConfig.field_of())


def rules_of(names: Mapping[str, object]) -> dict[str, object]:
    """The settings without the settings of the network client."""
    return {name: value for name, value in names.items() if name not in CLIENT_NAMES}


class ClusterAddress(NamedTuple):
    """The name servers of a cluster, and the selected broker if any."""

    name_servers: str  # separated by semicolons
    broker: str | None  # None means the topic's only broker

    def __str__(self) -> str:
        return self.name_servers.replace(";", ",")


def cluster_of(url: str) -> ClusterAddress:
    """Parse ``rocketmq://HOST:PORT[,HOST:PORT…][/BROKER]``; semicolons may replace the commas.

    Raises:
        InvalidConfig: an address is malformed, or text follows the broker's name.
    """
    if url.startswith(f"{SCHEME}/"):
        path = url.removeprefix(SCHEME)
        raise InvalidConfig(
            f"{url} names a copied store, not a name server",
            remedy=f"follow the copy with --follow; or run lastwrite dispatch {path}, then "
            f"lastwrite fetch {path}",
        )
    servers, _, broker = url.removeprefix(SCHEME).rstrip("/").partition("/")
    addresses = [each.strip() for each in re.split("[;,]", servers)]
    for address in addresses:
        parse_address(address)
    if "/" in broker:
        raise InvalidConfig(
            f"{url} has text after the broker's name",
            remedy="give the address as rocketmq://HOST:PORT[,HOST:PORT…][/BROKER], and the topic "
            "with --topic NAME",
        )
    return ClusterAddress(";".join(addresses), broker or None)
