"""The settings of the daemon, which are read again when their file changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lastwrite.config.cleaner import CleanerConfig
from lastwrite.config.stores import store_settings
from lastwrite.engine.system import System
from lastwrite.errors import LogError
from lastwrite.storage.file_state import FileState, state_of
from lastwrite.storage.objects.address import use

# Names of settings whose values are never printed, such as sasl.password, sasl.jaas.config,
# authParams, brokerClientAuthenticationParameters, metadataStoreAuth and storage.encryptionKeys.
_SECRET = re.compile(r"passw|secret|token|jaas|auth|key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the daemon: those for compaction (``names``), and its own (``cleaner``).

    ``configured`` has all settings, also the settings of connections to a cluster or object store.
    """

    configured: Mapping[str, object]
    names: Mapping[str, object]
    cleaner: CleanerConfig


class SettingsSource:
    """Settings that the function ``read`` returns.

    They may change when the file ``path`` changes.

    Raises:
        InvalidConfig: the first read fails. If a later read fails, the settings do not change.
    """

    def __init__(
        self,
        system: System,
        read: Callable[[], Mapping[str, object]],
        path: str | None,
        rules: Callable[[Mapping[str, object]], Mapping[str, object]] = dict,
        look_ms: int | None = None,
    ) -> None:
        """Read the settings for the first time.

        Args:
            rules: selects the settings for compaction.
            look_ms: the default pause between looks. None means the default of the system.
        """
        self._system = system
        self._look_ms = look_ms or system.look_ms
        self._rules = rules
        self._read = read
        self._path = path
        self._last_identity = self._identity()
        self.current = self._load()

    def refresh(self) -> str | None:
        """Read the settings again if the file has changed.

        Returns a note on the change, or None if the file is the same.
        """
        seen = self._identity()
        if seen == self._last_identity:
            return None
        self._last_identity = seen
        try:
            fresh = self._load()
        except LogError as error:
            return f"the settings were not changed: {error}"
        before, self.current = self.current, fresh
        changed = sorted(
            name
            for name in before.configured.keys() | fresh.configured.keys()
            if before.configured.get(name) != fresh.configured.get(name)
        )
        text = ", ".join(_describe_setting(name, fresh.configured) for name in changed)
        return f"settings for the next round: {text or 'the same'}"

    def _load(self) -> Settings:
        given = dict(self._read())
        names = self._rules(given)
        self._system.check_config(names)
        stores = store_settings(given)
        settings = Settings(given, names, CleanerConfig.from_names(given, self._look_ms))
        use(stores)
        return settings

    def _identity(self) -> FileState | None:
        return None if self._path is None else state_of(self._path)


def _describe_setting(name: str, names: Mapping[str, object]) -> str:
    if _SECRET.search(name) and name in names:
        return f"{name} changed"
    return f"{name}={names[name]}" if name in names else f"{name} removed"
