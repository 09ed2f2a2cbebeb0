"""Add a field ``decoded`` with the decoded key and value to the rows of ``dump`` and ``read``."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lastwrite.decoding.options import ASIDE, FAIL, DecodingConfig
from lastwrite.errors import BadValue, InvalidConfig, LogError
from lastwrite.reports.table import Row
from lastwrite.rows.arrow import HEADERS, arrow_schema
from lastwrite.rows.decoded import REMEDY_OF_VALUES, decoder_of

_ROWS_AT_ONCE = 512


class MessageDecoder:
    """Decodes the keys and values in rows of any system, topic by topic.

    Raises:
        InvalidConfig: ``on_bad`` is ``aside``, which only tables and DataFrames support.
    """

    def __init__(self, config: DecodingConfig) -> None:
        if config.on_bad == ASIDE:
            raise InvalidConfig(
                "on_bad=aside is only for tables and DataFrames",
                remedy="give on_bad=null, which returns the reason",
            )
        self._config = config
        self._decoders: dict[tuple[str, str], Any] = {}

    def rows(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the rows with their decoded keys and values.

        Reads 512 rows ahead. If reading fails, the rows before the error are yielded first.
        """
        held: list[Row] = []
        failed: LogError | None = None
        while failed is None:
            try:
                held.append(next(rows))
            except StopIteration:
                break
            except LogError as error:
                failed = error
            if len(held) == _ROWS_AT_ONCE:
                yield from self.decoded(held)
                held = []
        yield from self.decoded(held)
        if failed is not None:
            raise failed

    def decoded(self, rows: list[Row]) -> Iterator[Row]:
        """Decode the keys and values of some rows.

        Raises:
            BadValue: a key or value is bad, and ``on_bad`` is ``fail``. The rows before it were
                yielded.
        """
        found: list[Row | None] = [None if _is_none(row) else {"problem": None} for row in rows]
        for which in ("key", "value"):
            format = getattr(self._config, f"{which}_format")
            if format != "raw":
                self._add(rows, found, which)
        for row, meaning in zip(rows, found, strict=True):
            if meaning is None:
                yield row
                continue
            if meaning["problem"] is not None and self._config.on_bad == FAIL:
                raise BadValue(meaning["problem"], path=_place(row), remedy=REMEDY_OF_VALUES)
            yield row | {"decoded": meaning}

    def _add(self, rows: list[Row], found: list[Row | None], which: str) -> None:
        by_topic: dict[str, list[int]] = {}
        for n, row in enumerate(rows):
            if found[n] is not None:
                by_topic.setdefault(str(row.get("topic") or ""), []).append(n)
        for topic, numbers in by_topic.items():
            decoder = self._decoders.get((topic, which))
            if decoder is None:
                decoder = decoder_of(self._config, which, topic, ())
                self._decoders[topic, which] = decoder
            values = pa.array([_bytes_of(rows[n], which) for n in numbers], pa.binary())
            column, bad = decoder.decode(values, _headers_of([rows[n] for n in numbers]))
            for at, (n, value) in enumerate(zip(numbers, column.to_pylist(), strict=True)):
                meaning = found[n]
                assert meaning is not None
                meaning[which] = _plain(value)
                if at in bad:
                    before = f"{meaning['problem']}; " if meaning["problem"] else ""
                    meaning["problem"] = f"{before}{which}: {bad[at]}"


class DecodedReading(Iterator[Row]):
    """The rows of ``reading``, with decoded keys and values.

    All other attributes are the same as in ``reading``.
    """

    def __init__(self, reading: Any, config: DecodingConfig) -> None:
        self._reading = reading
        self._decoder = MessageDecoder(config)

    def __next__(self) -> Row:
        return next(self._decoder.decoded([next(self._reading)]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reading, name)


def _is_none(row: Row) -> bool:
    """Whether the row is not a message of a producer but, for example, a control record."""
    return (
        row.get("control") is not None
        or row.get("marker") is not None
        or bool(row.get("compacted_out"))
        or not ("value" in row or "body" in row)
    )


def _bytes_of(row: Row, which: str) -> bytes | None:
    if "body" in row:  # RocketMQ
        key = dict(row["properties"]).get("KEYS")
        coded = row["body"]
    else:
        key, coded = row["key"], row["value"]
    if which == "value":
        return None if coded is None else base64.b64decode(coded)
    if key is None:
        return None
    is_text = "body" in row or "message_id" in row  # RocketMQ or Pulsar
    return key.encode("utf-8", "surrogateescape") if is_text else base64.b64decode(key)


def _headers_of(rows: list[Row]) -> pa.Array | None:
    """The headers of the rows as a column. None if no row has Kafka headers."""
    if not any(row.get("headers") for row in rows):
        return None
    found = [
        [
            {"key": name, "value": None if said is None else base64.b64decode(said)}
            for name, said in row.get("headers") or ()
        ]
        for row in rows
    ]
    return pa.array(found, arrow_schema([HEADERS]).field(0).type)


def _place(row: Row) -> str:
    if "message_id" in row and "queue_id" not in row:
        return f"{row['topic']}, message {row['message_id']}"
    partition = row.get("partition", row.get("queue_id"))
    offset = row.get("offset", row.get("queue_offset"))
    return f"{row['topic']}-{partition}, offset {offset}"


def _plain(value: Any) -> Any:
    """A value converted to types of JSON: times and decimals as text, bytes as base64."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {_plain(name): _plain(inner) for name, inner in value}
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def decoded_values(
    values: Mapping[Any, bytes], config: DecodingConfig, topic: str, headers: pa.ChunkedArray | None
) -> dict[Any, Any]:
    """Decode values, and return them under the same keys.

    If ``on_bad`` is ``null``, bad values are None.

    ``headers``, the records' column of headers, is needed if a header may contain the schema id.

    Raises:
        BadValue: a value is bad, and ``on_bad`` is ``fail``.
    """
    column, bad = decoder_of(config, "value", topic, ()).decode(
        pa.array(list(values.values()), pa.binary()),
        None if headers is None or not headers.chunks else pa.concat_arrays(headers.chunks),
    )
    if bad and config.on_bad == FAIL:
        row = min(bad)
        raise BadValue(
            f"key {list(values)[row]!r}, value: {bad[row]}", path=topic, remedy=REMEDY_OF_VALUES
        )
    return dict(zip(values, column.to_pylist(), strict=True))
