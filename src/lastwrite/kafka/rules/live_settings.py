"""Settings of the connection to a live cluster, under the names of Kafka's clients.

A ``client.properties`` can be passed unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lastwrite.config.address import parse_address
from lastwrite.config.declaration import INT_MAX, SettingsTable, setting
from lastwrite.errors import InvalidConfig

SCHEME = "kafka://"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_LOGIN = re.compile(r'(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([^\s;]+))')


def _upper(name: str, value: object) -> str:
    return str(value).strip().upper()


def _login(name: str, value: object) -> str:
    """The user and the password in ``… username="…" password="…";``, joined by a zero byte."""
    found = {
        key: re.sub(r"\\(.)", r"\1", quoted) or single or bare
        for key, quoted, single, bare in _LOGIN.findall(str(value))
    }
    if len(found) < 2:
        raise InvalidConfig(
            f"{name} has no username or no password",
            remedy="add both to the setting, or set sasl.username and sasl.password instead",
        )
    return f"{found['username']}\0{found['password']}"


@dataclass(frozen=True, kw_only=True)
class KafkaClientConfig(SettingsTable):
    """The settings of a client of a live cluster, such as credentials and timeouts.

    Kafka's clients have the same names, except for PEM files, which have the names of librdkafka.
    """

    # how connections are secured
    security_protocol: str = setting(
        "PLAINTEXT", "security.protocol", choices=_PROTOCOLS, parse=_upper
    )
    # mechanism of the SASL exchange
    sasl_mechanism: str = setting(
        "PLAIN", "sasl.mechanism sasl.mechanisms", choices=_MECHANISMS, parse=_upper
    )
    # user of the SASL exchange
    sasl_username: str = setting("", "sasl.username")
    # password of the SASL exchange; never printed
    sasl_password: str = setting("", "sasl.password")
    # user and password in Kafka's form; never printed
    sasl_login: str = setting("", "sasl.jaas.config", parse=_login)
    # PEM file of the trusted certificate authorities; by default the system's certificates
    ssl_ca: str = setting("", "ssl.ca.location ssl.truststore.location")
    # PEM file of the client's certificate
    ssl_certificate: str = setting("", "ssl.certificate.location ssl.keystore.location")
    # PEM file of the client's key
    ssl_key: str = setting("", "ssl.key.location")
    # password of the client's key; never printed
    ssl_key_password: str = setting("", "ssl.key.password")
    # https compares the host name with the certificate; empty does not
    ssl_identification: str = setting("https", "ssl.endpoint.identification.algorithm")
    # name of the client in the brokers' logs and quotas
    client_id: str = setting("lastwrite", "client.id")
    # timeout of one request
    request_timeout_ms: int = setting(30_000, "request.timeout.ms", 100, INT_MAX)
    # how long requests are retried while a partition has no leader or a broker is unreachable
    api_timeout_ms: int = setting(60_000, "default.api.timeout.ms", 100, INT_MAX)

    def __post_init__(self) -> None:
        SettingsTable.__post_init__(self)
        if self.uses_sasl and not (self.user and self.password):
            raise InvalidConfig(
                f"security.protocol {self.security_protocol} needs a user and a password",
                remedy="set sasl.username and sasl.password, or sasl.jaas.config, in the file of "
                "--config-file",
            )

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def user(self) -> str:
        return self.sasl_username or self.sasl_login.partition("\0")[0]

    @property
    def password(self) -> str:
        return self.sasl_password or self.sasl_login.partition("\0")[2]

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        """Whether ``name`` has no effect on a client, as for example a topic or bucket setting."""
        return name not in CLIENT_NAMES


CLIENT_NAMES = frozenset(KafkaClientConfig.field_of())


def rules_of(names: Mapping[str, object]) -> dict[str, object]:
    """The settings in ``names`` that are not settings of the client."""
    return {name: value for name, value in names.items() if name not in CLIENT_NAMES}


def brokers_of(url: str) -> Sequence[str]:
    """The addresses in ``kafka://HOST:PORT[,HOST:PORT…]``.

    Raises:
        InvalidConfig: an address is invalid, or something follows the addresses.
    """
    addresses = url.removeprefix(SCHEME).rstrip("/").split(",")
    for address in addresses:
        if "/" in address:
            raise InvalidConfig(
                f"{url} contains more than broker addresses",
                remedy="give kafka://HOST:PORT[,HOST:PORT…], and select the topic with --topic "
                "NAME",
            )
        parse_address(address)
    return addresses
