"""The settings of object stores (``storage.*``), allowed together with any system's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lastwrite.config.declaration import INT_MAX, SettingsTable, setting
from lastwrite.errors import InvalidConfig
from lastwrite.model.stores import StoreSettings

_PREFIX = "storage."


def _endpoint(name: str, value: object) -> str:
    text = str(value).strip().rstrip("/")
    if text and not text.startswith(("http://", "https://")):
        raise InvalidConfig(
            f"{name} is {text!r}, which is not a URL",
            remedy="give https://HOST or http://HOST:PORT",
        )
    if "@" in text:
        raise InvalidConfig(
            f"{name} contains a user name or password",
            remedy="remove them, and give the credentials in the environment, as for the "
            "provider's own tools",
        )
    return text


def _key_files(name: str, value: object) -> str:
    text = str(value).strip()
    for each in _items(text):
        key_id, _, file = each.partition(":")
        if not key_id or not file:
            raise InvalidConfig(
                f"{name} has an item that is not ID:FILE",
                remedy="give ID:FILE[,ID:FILE…], where each FILE has a private key",
            )
    return text


def _items(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


@dataclass(frozen=True, kw_only=True)
class StoreConfig(SettingsTable):
    """The address of an object store, and the limits of requests.

    Credentials are not settings: each process reads them from its environment, as the providers'
    tools do.
    """

    # URL of the store, if it is not the provider's own
    endpoint: str = setting("", "storage.endpoint", parse=_endpoint)
    # region of the bucket
    region: str = setting("", "storage.region")
    # whether the bucket is in the path of a request; otherwise it is in the host name
    path_style: bool = setting(True, "storage.pathStyle")
    # whether requests without TLS are allowed
    allow_http: bool = setting(False, "storage.allowHttp")
    # timeout of one request
    timeout_ms: int = setting(30_000, "storage.timeoutMs", 100, INT_MAX)
    # retries of one request
    retries: int = setting(4, "storage.retries", 0, 100)
    # time that replaced objects stay, for readers that have opened an older manifest
    keep_replaced_ms: int = setting(3_600_000, "storage.keepReplacedMs", 0)
    # file with the secret that protects stored scans
    secret_file: str = setting("", "storage.secretFile")
    # ID:FILE,…: the private keys of encrypted tiered segments
    # (encryption.key.pairs.ID.private.key.file)
    encryption_keys: str = setting("", "storage.encryptionKeys", parse=_key_files)

    @property
    def settings(self) -> StoreSettings:
        return StoreSettings(
            self.endpoint,
            self.region,
            self.path_style,
            self.allow_http,
            self.timeout_ms,
            self.retries,
            keep_replaced_ms=self.keep_replaced_ms,
            secret_file=self.secret_file,
            encryption_keys=tuple(
                (key_id, os.path.abspath(file))
                for key_id, _, file in (
                    each.partition(":") for each in _items(self.encryption_keys)
                )
            ),
        )

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        """Whether a name is outside ``storage.*``, and thus a setting of a system."""
        return not name.startswith(_PREFIX)


STORE_NAMES = frozenset(StoreConfig.field_of())


def is_of_stores(name: str) -> bool:
    """Whether the setting ``name`` begins with ``storage.``."""
    return name.startswith(_PREFIX)


def store_settings(config: Mapping[str, object] | None) -> StoreSettings:
    """The object store settings in ``config``, which may also contain a system's settings.

    Raises:
        InvalidConfig: one of ``storage.*`` is unknown or out of range.
    """
    return StoreConfig.from_names(config or {}).settings


def stated_stores(config: Mapping[str, object]) -> dict[str, object]:
    """The settings in ``config`` for object stores, ``storage.*``."""
    return {name: value for name, value in config.items() if name.startswith(_PREFIX)}
