"""``python -m tests.reference --write`` writes the tables of docs/reference/documents.md anew."""

from __future__ import annotations

import sys

from tests.reference.page import PAGE, current_page


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.reference --write")
    PAGE.write_text(current_page(), encoding="utf-8")


main()
