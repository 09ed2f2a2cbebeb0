"""``python -m tests.reference --write`` generates documents.md and errors.md in docs/reference."""

from __future__ import annotations

import sys

from tests.reference.errors_page import PAGE as ERRORS_PAGE
from tests.reference.errors_page import current_errors_page
from tests.reference.page import PAGE, current_page


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.reference --write")
    PAGE.write_text(current_page(), encoding="utf-8")
    ERRORS_PAGE.write_text(current_errors_page(), encoding="utf-8")


main()
