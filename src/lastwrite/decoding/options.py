"""The options for decoding keys and values, which all commands and APIs share.

Only the spelling of their names differs: ``key_format`` is ``--key-format`` on the command line,
and ``keyFormat`` in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict, TypeVar

from lastwrite.config.declaration import SettingsTable, setting
from lastwrite.errors import InvalidConfig, LogError

ErrorT = TypeVar("ErrorT", bound=LogError)

FORMATS: Final = ("raw", "utf8", "json", "avro", "protobuf", "confluent")
_WITH_SCHEMA: Final = ("json", "avro", "protobuf")
_WITH_MESSAGES: Final = ("protobuf", "confluent")
FAIL, NULL, ASIDE = "fail", "null", "aside"


class DecodingOptions(TypedDict, total=False):
    """The decoding options as keyword arguments of a function."""

    key_format: str
    value_format: str
    key_schema: str | None
    value_schema: str | None
    key_message: str | None
    value_message: str | None
    schema_registry: str | None
    on_bad: str
    bad_to: str | None


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(SettingsTable):
    """Decoding options whose values were checked.

    Attributes:
        key_format, value_format: ``raw`` for undecoded bytes, ``utf8``, ``json``, ``avro``,
            ``protobuf``, or ``confluent``: a magic byte and a schema id precede the value, or are
            in a header.
        key_schema, value_schema: path of a schema file: ``.avsc``, a JSON Schema as ``.json``,
            ``.proto``, or a set of descriptors as ``.desc``. For ``confluent`` it is the schema to
            read by; the default is the newest schema of the subject ``TOPIC-key`` or
            ``TOPIC-value``.
        key_message, value_message: for Protobuf: the message's name. The default is the only
            message of the schema, or for ``confluent`` the first.
        schema_registry: for ``confluent``: a registry's URL, or a folder of schemas.
        on_bad: the action for a key or value that does not match its schema. ``fail`` raises an
            error. ``null`` gives null, and the reason in a column ``_error``. ``aside`` writes the
            record to a file in ``bad_to``.
    """

    key_format: str = setting("raw", "key_format", choices=FORMATS)
    value_format: str = setting("raw", "value_format", choices=FORMATS)
    key_schema: str = setting("", "key_schema")
    value_schema: str = setting("", "value_schema")
    key_message: str = setting("", "key_message")
    value_message: str = setting("", "value_message")
    schema_registry: str = setting("", "schema_registry")
    on_bad: str = setting(FAIL, "on_bad", choices=(FAIL, NULL, ASIDE))
    bad_to: str = setting("", "bad_to")

    @property
    def is_raw(self) -> bool:
        """Whether keys and values stay undecoded bytes."""
        return self.key_format == self.value_format == "raw"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> DecodingConfig:
        """The checked options. None means that an option is not given.

        Raises:
            InvalidConfig: an option is unknown, or excludes another one.
        """
        found = cls.from_names({name: value for name, value in given.items() if value is not None})
        for which in ("key", "value"):
            format = getattr(found, f"{which}_format")
            schema = getattr(found, f"{which}_schema")
            if format in _WITH_SCHEMA and not schema:
                raise InvalidConfig(
                    f"{which}_format {format} needs a schema", remedy=f"give {which}_schema"
                )
            if schema and format in ("raw", "utf8"):
                raise InvalidConfig(
                    f"{which}_schema needs a format with a schema, but {which}_format is {format}",
                    remedy=f"give {which}_format, one of: {', '.join(FORMATS[2:])}",
                )
            if getattr(found, f"{which}_message") and format not in _WITH_MESSAGES:
                raise InvalidConfig(
                    f"{which}_message needs a Protobuf format, but {which}_format is {format}",
                    remedy=f"give {which}_format, one of: {', '.join(_WITH_MESSAGES)}",
                )
        is_framed = "confluent" in (found.key_format, found.value_format)
        if is_framed and not found.schema_registry:
            raise InvalidConfig(
                "the values refer to their schemas by id",
                remedy="set schema_registry to a registry's URL, or to a folder with files such "
                "as 17.avsc",
            )
        if (found.on_bad == ASIDE) != bool(found.bad_to):
            raise InvalidConfig("on_bad=aside and bad_to must be set together", remedy="set both")
        return found


# The names of options in Spark, such as keyFormat, and on the command line.
SPARK_NAMES: Final = {
    each.name: (head := each.name.partition("_"))[0] + head[2].capitalize()
    for each in fields(DecodingConfig)
}
COMMAND_NAMES: Final = {each: "--" + each.replace("_", "-") for each in SPARK_NAMES}


def with_option_names(error: ErrorT, names: Mapping[str, str]) -> ErrorT:
    """A copy of the error, with the options spelled as in ``names``.

    For the command line, ``on_bad=null`` becomes ``--on-bad null``.
    """

    def rename(text: str) -> str:
        return re.sub(rf"\b({'|'.join(names)})\b(=?)", named, text)

    def named(found: re.Match[str]) -> str:
        name = names[found[1]]
        return name + (" " if found[2] and name.startswith("--") else found[2])

    remedy = None if error.remedy is None else rename(error.remedy)
    told = type(error)(rename(error.problem), error.at, error.path, remedy)
    return told.with_traceback(error.__traceback__)
