"""docs/reference/errors.md: the codes of ``lastwrite.errors`` with cause and remedy."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from lastwrite import errors
from lastwrite.errors import OTHER_FAILURES, LogError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
_HEAD = """# Errors

Every error has a stable code. A command prints it after the message, and `--json` prints it as
`error.code`. The first digit is the exit status. In Python, `error.code` and `error.exit_status`
have the same values, and `lastwrite.errors` contains the classes.

The message names the place and states a remedy for the case at hand. Prefer it to the general
remedy below.

| Exit status | Meaning |
|---|---|
| 0 | Done |
| 1 | Any other failure |
| 2 | Wrong use: an option, a setting or a path |
| 3 | The input is damaged; everything else was processed |
| 4 | Another process has locked the log |
| 5 | Verification failed |

This page is generated from the code: `python -m tests.reference --write`.
"""


def current_errors_page() -> str:
    """The page as it should be."""
    entries = [_entry(error) for error in all_errors()]
    entries += [(code, name, cause, remedy) for code, name, _, cause, remedy in OTHER_FAILURES]
    sections = [_HEAD]
    for code, name, cause, remedy in sorted(entries):
        title = f"## {code}: {name}" if " " in name else f"## {code}: `{name}`"
        sections.append(f"{title}\n\n{_wrap(cause)}\n\n{_wrap(f'**Remedy:** {remedy}')}\n")
    return "\n".join(sections)


def all_errors() -> list[type[LogError]]:
    """``LogError`` and its subclasses in ``lastwrite.errors``."""
    found = vars(errors).values()
    return [each for each in found if isinstance(each, type) and issubclass(each, LogError)]


def _entry(error: type[LogError]) -> tuple[str, str, str, str]:
    cause, _, remedy = (inspect.getdoc(error) or "").replace("``", "`").partition("Remedy: ")
    return error.code, error.__name__, cause.strip(), remedy[:1].upper() + remedy[1:]


def _wrap(text: str) -> str:
    return "\n\n".join(textwrap.fill(" ".join(part.split()), 100) for part in text.split("\n\n"))
