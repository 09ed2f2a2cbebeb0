"""The daemon's settings, read again whenever their file changes."""

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

# Of these nobody may read the value: sasl.password, sasl.jaas.config, authParams,
# brokerClientAuthenticationParameters, metadataStoreAuth, storage's keys.
_SECRET = re.compile(r"passw|secret|token|jaas|auth|key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Settings:
    """All names and values that were ``given``; those that are for compaction, not for where the
    logs are; and what they say to the cleaner itself.
    """

    given: Mapping[str, object]
    names: Mapping[str, object]
    cleaner: CleanerConfig


class SettingsSource:
    """Settings that ``read`` gives, which may change with the file ``path``.

    Raises:
        InvalidConfig: from the first reading. A later one that fails leaves the settings as they
            are.
    """

    def __init__(
        self,
        system: System,
        read: Callable[[], Mapping[str, object]],
        path: str | None,
        rules: Callable[[Mapping[str, object]], Mapping[str, object]] = dict,
        look_ms: int | None = None,
    ) -> None:
        """``rules``: the settings that are for compaction, not for where the logs are. ``look_ms``:
        the sleep where none says how long; None: the system's.
        """
        self._system = system
        self._look_ms = look_ms or system.look_ms
        self._rules = rules
        self._read = read
        self._path = path
        self._seen = self._identity()
        self.current = self._load()

    def refresh(self) -> str | None:
        """Read again if the file is another one than before; a sentence about it, or None where
        nothing changed.
        """
        seen = self._identity()
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            fresh = self._load()
        except LogError as error:
            return f"the settings stay as they were: {error}"
        before, self.current = self.current, fresh
        changed = sorted(
            name
            for name in before.given.keys() | fresh.given.keys()
            if before.given.get(name) != fresh.given.get(name)
        )
        said = ", ".join(_said(name, fresh.given) for name in changed)
        return f"new settings for the next round: {said or 'the same'}"

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


def _said(name: str, names: Mapping[str, object]) -> str:
    if _SECRET.search(name) and name in names:
        return f"another {name}"
    return f"{name}={names[name]}" if name in names else f"no {name}"
