"""Tests of the daemon's settings: reloaded if their file changes, kept if the new ones are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lastwrite.cleaner.settings import SettingsSource
from lastwrite.cli.options import settings
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.rules.live_settings import rules_of
from lastwrite.kafka.system import KAFKA


def replace(file: Path, text: str) -> None:
    """Replace the file atomically, as configuration management does.

    The inode changes even if size and time do not.
    """
    file.with_suffix(".new").write_text(text)
    os.rename(file.with_suffix(".new"), file)


def test_changed_file_is_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "cleaner.properties"
    file.write_text("log.cleaner.threads=1\nmin.cleanable.dirty.ratio=0.5\n")
    source = SettingsSource(
        KAFKA, lambda: settings(Output(), ["retention.ms=5"], str(file)), str(file)
    )
    assert source.current.cleaner.threads == 1 and source.current.names["retention.ms"] == "5"
    assert source.refresh() is None
    replace(file, "log.cleaner.threads=3\n")
    said = source.refresh()
    assert (
        said is not None
        and "log.cleaner.threads=3" in said
        and "min.cleanable.dirty.ratio removed" in said
    )
    assert (
        source.current.cleaner.threads == 3
        and "min.cleanable.dirty.ratio" not in source.current.names
    )
    assert source.refresh() is None


@pytest.mark.parametrize("wrong", ["log.cleaner.threads=0", "retention.ms=soon", "a=\\u12g4"])
def test_wrong_settings_are_reported_once_and_the_old_ones_stay(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "cleaner.properties"
    file.write_text("log.cleaner.threads=2\n")
    source = SettingsSource(KAFKA, lambda: settings(Output(), None, str(file)), str(file))
    for text in (wrong, None):
        if text is None:
            file.unlink()
        else:
            replace(file, text)
        said = source.refresh()
        assert said is not None and said.startswith("the settings were not changed")
        assert source.refresh() is None
        assert source.current.cleaner.threads == 2
    replace(file, "log.cleaner.threads=4\n")
    assert source.refresh() is not None
    assert source.current.cleaner.threads == 4


def test_wrong_settings_at_the_start_raise(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        SettingsSource(KAFKA, lambda: {"log.cleaner.threads": "many"}, None)


def test_client_settings_are_not_passed_to_rounds() -> None:
    given = {"client.id": "x", "retention.ms": "5"}
    source = SettingsSource(KAFKA, lambda: given, None, rules_of)
    assert source.current.names == {"retention.ms": "5"} and source.current.configured == given
