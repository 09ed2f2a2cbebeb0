"""Tests of the JSON documents: their output, their schema and the generated reference pages."""

from __future__ import annotations

import json
import pickle
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace

from lastwrite.cli.documents import documents
from lastwrite.cli.output import Output
from lastwrite.errors import OTHER_FAILURES
from lastwrite.reports.document import (
    SPREAD,
    UNPRINTED,
    Document,
    Flatten,
    JsonName,
    figure,
    or_none,
    schema,
    schema_type,
)
from tests.golden.commands import HERE
from tests.reference.commands_page import PAGE as COMMANDS_PAGE
from tests.reference.commands_page import current_commands_page
from tests.reference.errors_page import PAGE as ERRORS_PAGE
from tests.reference.errors_page import all_errors, current_errors_page
from tests.reference.page import PAGE, current_page
from tests.reference.settings_page import PAGE as SETTINGS_PAGE
from tests.reference.settings_page import current_settings_page, undocumented_settings


class Part(Document):
    """A part."""

    first: int
    second: int = 2


class Whole(Document, kw_only=True):
    """A whole."""

    source: Annotated[str, JsonName(or_none)] = ""
    at_ms: int = msgspec.field(name="at")
    part: Annotated[Part, SPREAD]
    doubled: ClassVar[int] = figure(lambda self: self.part.first * 2)
    other: Annotated[Part, Flatten(but=("first",))]
    hidden: Annotated[float, UNPRINTED] = 0.0
    parts: list[Part] = []


WHOLE = Whole(at_ms=1, part=Part(3), other=Part(4, 5), parts=[Part(6)])


def test_document_prints_its_fields_in_order() -> None:
    printed = '{"source": null, "at": 1, "first": 3, "second": 5, "doubled": 6, "parts": [{"first": 6, "second": 2}]}'
    assert json.dumps(WHOLE.to_dict()) == printed
    assert pickle.loads(pickle.dumps(WHOLE)).to_dict() == WHOLE.to_dict()


def test_elements_of_a_long_document_are_built_one_at_a_time(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Part):
        def to_dict(self) -> dict[str, Any]:
            made.append(len(told))
            return super().to_dict()

    made: list[int] = []
    told: list[str] = []
    value = replace(WHOLE, parts=[Told(n) for n in range(9)])
    as_before = json.dumps(value.to_dict(), indent=2) + "\n"
    made.clear()
    monkeypatch.setattr("lastwrite.cli.output._WORDS_AT_ONCE", 4)
    output = Output()
    write = output._write

    def heard(text: str) -> bool:
        told.append(text)
        return write(text)

    monkeypatch.setattr(output, "_write", heard)
    output.document(value)
    assert capfd.readouterr().out == as_before
    assert made == sorted(set(made))  # progress was reported between any two lines


def test_schema_names_the_printed_fields() -> None:
    found = schema([Whole])["$defs"]["Whole"]
    assert list(found["properties"]) == found["required"] == list(WHOLE.to_dict())
    assert found["additionalProperties"] is False
    msgspec.convert(WHOLE.to_dict(), schema_type(Whole), strict=True)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(WHOLE.to_dict() | {"hidden": 0.0}, schema_type(Whole), strict=True)


@pytest.mark.parametrize("path", sorted(HERE.glob("*.json")), ids=lambda path: path.stem)
def test_golden_output_matches_its_schema(path) -> None:  # type: ignore[no-untyped-def]
    command = path.stem.split("-")[1]
    if command == "latest":  # no command prints this document
        return
    for printed in json.loads(path.read_text(encoding="utf-8"))["documents"]:
        problems = []
        for kind in documents()[command]:
            try:
                msgspec.convert(printed, schema_type(kind), strict=True)
                break
            except msgspec.ValidationError as problem:
                problems.append(problem)
        else:
            pytest.fail(f"{problems}")


@pytest.mark.parametrize("command", documents())
def test_every_document_has_a_schema(command: str) -> None:
    found = schema(documents()[command])
    assert all(part["properties"] for part in found["$defs"].values() if "properties" in part)


def test_page_of_documents_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == current_page()


def test_page_of_errors_is_current() -> None:
    assert ERRORS_PAGE.read_text(encoding="utf-8") == current_errors_page()


def test_page_of_commands_is_current() -> None:
    assert COMMANDS_PAGE.read_text(encoding="utf-8") == current_commands_page()


def test_page_of_settings_is_current() -> None:
    assert SETTINGS_PAGE.read_text(encoding="utf-8") == current_settings_page()


def test_every_setting_has_a_meaning() -> None:
    assert undocumented_settings() == []


def test_error_codes_are_unique_and_start_with_their_exit_status() -> None:
    found = [(error.code, error.exit_status) for error in all_errors()]
    found += [(code, status) for code, _, status, _, _ in OTHER_FAILURES]
    assert len({code for code, _ in found}) == len(found)
    assert all(code[3] == str(status) for code, status in found)
