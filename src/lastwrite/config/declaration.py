"""How a setting is declared once: its upstream names, its default, its range; and how given values are checked.

A class of settings is a dataclass whose fields ``setting`` makes; ``values_of`` turns names and values that somebody
gave into its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from lastwrite.errors import InvalidConfig

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field is named upstream and what its values are."""

    names: tuple[
        tuple[str, int], ...
    ]  # every name with its factor to our unit, the strongest first
    low: float
    high: float
    choices: tuple[str, ...]


def setting(
    default: Any,
    names: str,
    low: float = LONG_MIN,
    high: float = LONG_MAX,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field with its upstream ``names``, the strongest first; ``name*60000`` is in a coarser unit."""
    parsed = []
    for name in names.split():
        plain, _, factor = name.partition("*")
        parsed.append((plain, int(factor or 1)))
    return field(default=default, metadata={"setting": Setting(tuple(parsed), low, high, choices)})


def parse_list(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        items = value.split(",") if value.strip() else []
    elif isinstance(value, Sequence | frozenset | set):
        items = [str(item) for item in value]
    else:
        raise InvalidConfig(f"{name} is a list with commas, not {value!r}")
    return tuple(dict.fromkeys(item.strip().lower() for item in items))


def parse_number(name: str, value: object, *, whole: bool) -> int | float:
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        number = Decimal("nan")
    # No number of a setting is longer than a long; a huge exponent must not become a huge integer.
    fits = number.is_finite() and LONG_MIN <= number <= LONG_MAX
    if isinstance(value, bool) or not fits or (whole and number != number.to_integral_value()):
        raise InvalidConfig(f"{name} is {'a whole number' if whole else 'a number'}, not {value!r}")
    return int(number) if whole else float(number)


def parse_flag(name: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} is true or false, not {value!r}")
    return text == "true"


def check(known: Setting, value: Any, name: str) -> None:
    """Hold a parsed value against its setting's choices or range.

    Raises:
        InvalidConfig: it is outside.
    """
    if known.choices:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in known.choices:
                raise InvalidConfig(f"{name} knows {', '.join(known.choices)}, not {item!r}")
    elif not isinstance(value, str) and not known.low <= value <= known.high:
        low = "" if known.low == LONG_MIN else f" at least {known.low}"
        high = "" if known.high == LONG_MAX else f" at most {known.high}"
        raise InvalidConfig(
            f"{name} is {value}; it has to be{' and'.join(part for part in (low, high) if part)}"
        )


def given(
    settings: Mapping[str, Setting], names: Mapping[str, object]
) -> list[tuple[str, str, object, int]]:
    """(field, name, value, factor) of each name that is given; of several names of a field the strongest comes last."""
    found: list[tuple[str, str, object, int]] = []
    for field_name, known in settings.items():
        for name, factor in reversed(known.names):
            if name in names:
                found.append((field_name, name, names[name], factor))
    return found
