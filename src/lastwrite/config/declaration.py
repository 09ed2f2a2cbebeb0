"""Declares, parses and lists settings, in the same way for all systems.

A table of settings is a frozen subclass of ``SettingsTable``. ``setting`` declares each field, with
its upstream names, default and range. ``from_names`` creates a table from names and values.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Self, cast

from lastwrite.errors import InvalidConfig
from lastwrite.model.policy import LONG_MAX, LONG_MIN
from lastwrite.reports.settings import Setting as Effective
from lastwrite.reports.settings import SettingValue

INT_MAX = 2**31 - 1
# prefix of Lastwrite's own topic settings for Kafka, see ``kafka.rules.holds``
HELD = "hold.tombstones."


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of one setting: upstream names, allowed values and default."""

    # upstream names in order of precedence, each with the factor that converts to the field's unit
    names: tuple[tuple[str, int], ...]
    low: float
    high: float
    choices: tuple[str, ...]
    default: Any
    # converts name and value; None converts by the type of the default
    parse: Callable[[str, object], Any] | None


def setting(
    default: Any,
    names: str,
    low: float = LONG_MIN,
    high: float = LONG_MAX,
    choices: tuple[str, ...] = (),
    parse: Callable[[str, object], Any] | None = None,
) -> Any:
    """Declare a field with its upstream ``names``, in order of precedence.

    ``name*60000`` means that values under this name are multiplied by 60000. ``default`` None means
    an optional integer. ``parse`` converts name and value to the field's value.
    """
    parsed = []
    for name in names.split():
        plain, _, factor = name.partition("*")
        parsed.append((plain, int(factor or 1)))
    known = Declaration(tuple(parsed), low, high, choices, default, parse)
    return field(default=default, metadata={"setting": known})


class SettingsTable:
    """A table of settings. A subclass may list upstream settings that are valid without effect."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, known in self.table().items():
            check(known, getattr(self, name), known.names[0][0])

    @classmethod
    def table(cls) -> dict[str, Declaration]:
        """The declarations of the settings, by field name."""
        return _table(cast("Hashable", cls))

    @classmethod
    def field_of(cls) -> dict[str, str]:
        """The field names, by upstream name."""
        return _field_of(cast("Hashable", cls))

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        """Whether ``name`` is an upstream setting that is valid here but has no effect."""
        return False

    @classmethod
    def similar(cls) -> Iterable[str]:
        """The names that error messages suggest for an unknown name."""
        return cls.field_of()

    @classmethod
    def unknown(cls, name: str) -> InvalidConfig:
        if name.startswith(HELD):
            return InvalidConfig(
                f"{name} is only for topics of Kafka", remedy="leave out the setting"
            )
        nearest = difflib.get_close_matches(name, list(cls.similar()), 1, 0.6)
        remedy = (
            f"did you mean {nearest[0]}?"
            if nearest
            else f"use one of the settings {', '.join(cls.field_of())}"
        )
        return InvalidConfig(f"there is no setting {name!r}", remedy=remedy)

    @classmethod
    def parse(cls, name: str, value: object) -> Any:
        """Convert ``value`` to the type of the setting, or return it if the setting has no effect.

        Raises:
            InvalidConfig: no setting has the name, or the value is of another type or out of range.
        """
        field_name = cls.field_of().get(name)
        if field_name is None:
            if cls.has_no_effect(name):
                return value
            raise cls.unknown(name)
        known = cls.table()[field_name]
        parsed = _parsed(known, name, value)
        factor = dict(known.names)[name]
        if factor > 1 and parsed > 0:
            parsed = min(parsed * factor, LONG_MAX)
        check(known, parsed, name)
        return parsed

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> Self:
        """Create the table from upstream names and values, which are text or of the field's type.

        Raises:
            InvalidConfig: no setting has the name, or the value is of another type or out of range.
        """
        for name in names:
            if name not in cls.field_of() and not cls.has_no_effect(name):
                raise cls.unknown(name)
        values: dict[str, Any] = {}
        for field_name, known in cls.table().items():
            for name, _ in reversed(known.names):  # the first name is applied last, so it wins
                if name in names:
                    values[field_name] = cls.parse(name, names[name])
        return cls(**values)

    def listed(self, names: Mapping[str, object]) -> tuple[Effective, ...]:
        """All settings under their first upstream names, each with its values in ``names``."""
        found = []
        for field_name, known in self.table().items():
            first, factor = known.names[0]
            value = getattr(self, field_name)
            text = (
                str(value).lower()
                if isinstance(value, bool)
                else str(value if factor == 1 else value // factor)
            )
            words = [
                SettingValue(name, str(names[name]), "config")
                for name, _ in known.names
                if name in names
            ]
            found.append(
                Effective(first, text, words[0].source if words else "default", tuple(words))
            )
        return tuple(found)


@cache
def _table(cls: Hashable) -> dict[str, Declaration]:
    return {
        each.name: each.metadata["setting"]
        for each in fields(cast("Any", cls))
        if "setting" in each.metadata
    }


@cache
def _field_of(cls: Hashable) -> dict[str, str]:
    return {
        name: field_name for field_name, known in _table(cls).items() for name, _ in known.names
    }


def _parsed(known: Declaration, name: str, value: object) -> Any:
    default = known.default
    if known.parse is not None:
        return known.parse(name, value)
    if isinstance(default, bool):
        return parse_flag(name, value)
    if isinstance(default, tuple):
        return parse_list(name, value)
    if isinstance(default, str):
        return str(value).strip()
    whole = default is None or isinstance(default, int)
    return parse_number(name, value, whole=whole, low=known.low, high=known.high)


def lower_text(name: str, value: object) -> str:
    """Convert ``value`` to lower-case text without surrounding blanks."""
    return str(value).strip().lower()


def parse_list(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        items = value.split(",") if value.strip() else []
    elif isinstance(value, Sequence | frozenset | set):
        items = [str(item) for item in value]
    else:
        raise InvalidConfig(f"{name} must be a list separated by commas, not {value!r}")
    return tuple(dict.fromkeys(item.strip().lower() for item in items))


def parse_number(
    name: str, value: object, *, whole: bool, low: float = LONG_MIN, high: float = LONG_MAX
) -> int | float:
    """Parse a number of at most 64 bits. Only the error message uses ``low`` and ``high``."""
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        number = Decimal("nan")
    if isinstance(value, bool) or not number.is_finite():
        raise InvalidConfig(
            f"{name} must be {'a whole number' if whole else 'a number'}, not {value!r}"
        )
    # Checked before the conversion, so that a huge exponent does not become a huge integer.
    if not LONG_MIN <= number <= LONG_MAX:
        raise InvalidConfig(
            f"{name} is {str(value).strip()}, but must be at least {low} and at most {high}"
        )
    if whole and number != number.to_integral_value():
        raise InvalidConfig(f"{name} must be a whole number, not {value!r}")
    return int(number) if whole else float(number)


def parse_flag(name: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} must be true or false, not {value!r}")
    return text == "true"


def check(known: Declaration, value: Any, name: str) -> None:
    """Check that a parsed value is among its setting's choices or in its range.

    Raises:
        InvalidConfig: the value is not allowed.
    """
    if value is None:
        return
    if known.choices:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in known.choices:
                raise InvalidConfig(
                    f"{name} must be one of {', '.join(known.choices)}, not {item!r}"
                )
    elif not isinstance(value, (str, tuple)) and not known.low <= value <= known.high:
        low = "" if known.low == LONG_MIN else f" at least {known.low}"
        high = "" if known.high == LONG_MAX else f" at most {known.high}"
        raise InvalidConfig(
            f"{name} is {value}, but must be{' and'.join(part for part in (low, high) if part)}"
        )
