"""``python -m tests.reference --write`` generates the pages of docs/reference."""

from __future__ import annotations

import sys

from tests.reference.commands_page import PAGE as COMMANDS_PAGE
from tests.reference.commands_page import current_commands_page
from tests.reference.errors_page import PAGE as ERRORS_PAGE
from tests.reference.errors_page import current_errors_page
from tests.reference.page import PAGE, current_page
from tests.reference.settings_page import PAGE as SETTINGS_PAGE
from tests.reference.settings_page import current_settings_page


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.reference --write")
    PAGE.write_text(current_page(), encoding="utf-8")
    COMMANDS_PAGE.write_text(current_commands_page(), encoding="utf-8")
    SETTINGS_PAGE.write_text(current_settings_page(), encoding="utf-8")
    ERRORS_PAGE.write_text(current_errors_page(), encoding="utf-8")


main()
