"""How a live cluster is reached: settings under the names of Kafka's clients, so that a
``client.properties`` can be given as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lastwrite.config.address import parse_address
from lastwrite.config.declaration import INT_MAX, SettingsTable, setting
from lastwrite.errors import InvalidConfig

SCHEME = "kafka://"
_PROTOCOLS = ("PLAINTEXT",)


def _upper(name: str, value: object) -> str:
    return str(value).strip().upper()


@dataclass(frozen=True, kw_only=True)
class KafkaClientConfig(SettingsTable):
    """Who we are and how long we wait; see ``docs/guide/kafka-live.md``."""

    # fmt: off
    security_protocol:  str = setting(
        "PLAINTEXT", "security.protocol", choices=_PROTOCOLS, parse=_upper)
    client_id:          str = setting("lastwrite", "client.id")
    request_timeout_ms: int = setting(30_000, "request.timeout.ms", 100, INT_MAX)  # of one request
    # in which a partition that nobody leads, or a broker that is away, may come back
    api_timeout_ms:     int = setting(60_000, "default.api.timeout.ms", 100, INT_MAX)
    # fmt: on

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        """Settings of topics and buckets are given together with these."""
        return name not in CLIENT_NAMES


CLIENT_NAMES = frozenset(KafkaClientConfig.field_of())


def rules_of(names: Mapping[str, object]) -> dict[str, object]:
    """The settings without those of a client."""
    return {name: value for name, value in names.items() if name not in CLIENT_NAMES}


def brokers_of(url: str) -> Sequence[str]:
    """The addresses in ``kafka://HOST:PORT[,HOST:PORT…]``.

    Raises:
        InvalidConfig: one is none, or something follows.
    """
    addresses = url.removeprefix(SCHEME).rstrip("/").split(",")
    for address in addresses:
        if "/" in address:
            raise InvalidConfig(
                f"{url} names more than brokers",
                remedy="kafka://HOST:PORT[,HOST:PORT…] and --topic NAME",
            )
        parse_address(address)
    return addresses
