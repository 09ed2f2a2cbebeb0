"""Columns of tables of decoded values, when schemas change between runs."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pip install 'lastwrite[tables]'")
pytest.importorskip("deltalake", reason="pip install 'lastwrite[tables]'")
pytest.importorskip("fastavro", reason="pip install 'lastwrite[test]'")

import fastavro
import pyarrow.parquet as pq
from deltalake import DeltaTable

import lastwrite
from lastwrite.errors import InvalidConfig
from lastwrite.reports.table_round import TableRound
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.judges import iceberg_table, parquet_files

T = 1_700_000_000_000
FORMATS = ("iceberg", "delta", "parquet")
each_format = pytest.mark.parametrize("format", FORMATS)


class Topic:
    """A topic of values of Avro, and its table; each schema is one of a folder of schemas."""

    def __init__(self, folder: Path, format: str) -> None:
        (folder / "log").mkdir()
        self.log = GrowingLog(folder / "log")
        self.folder, self.to, self.format = folder, folder / "table", format
        self._schema: Any = None
        self._number = 0

    def schema(self, fields: list[Any], name: str = "r") -> None:
        """What the next values are written and read by."""
        self._schema = {"type": "record", "name": name, "fields": fields}
        self._number += 1
        (self.folder / "schemas").mkdir(exist_ok=True)
        for file in (str(self._number), "t-value"):
            (self.folder / "schemas" / f"{file}.avsc").write_text(json.dumps(self._schema))

    def write(self, **values: Any) -> None:
        """Values by key."""
        for key, value in values.items():
            sink = io.BytesIO()
            fastavro.schemaless_writer(sink, self._schema, value)
            head = b"\0" + self._number.to_bytes(4, "big")
            self.log.append([(key.encode(), head + sink.getvalue(), T)])

    def run(self, **options: Any) -> TableRound:
        return lastwrite.table_to(
            str(self.log.root),
            "t",
            to=str(self.to),
            format=self.format,
            key_format="utf8",
            value_format="confluent",
            schema_registry=str(self.folder / "schemas"),
            **options,
        )

    def rows(self) -> dict[str, Any]:
        if self.format == "delta":
            rows = DeltaTable(str(self.to)).to_pyarrow_table().to_pylist()
        elif self.format == "parquet":
            files = parquet_files(self.to)
            rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
        else:
            rows = iceberg_table(self.to).scan().to_arrow().to_pylist()
        found = {row["key"]: row["value"] for row in rows}
        assert len(found) == len(rows)
        return found


def test_two_columns_that_iceberg_calls_alike_are_refused_by_name(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    log.append([(b"k", b'{"a.b": 1, "a": {"b": 2}}', T)])
    inner = {"type": "object", "properties": {"b": {"type": "integer"}}}
    properties = {"a.b": {"type": "integer"}, "a": inner}
    (tmp_path / "s.json").write_text(json.dumps({"type": "object", "properties": properties}))
    options: dict[str, Any] = {"value_format": "json", "value_schema": str(tmp_path / "s.json")}
    with pytest.raises(InvalidConfig, match=r"two columns value\.a\.b.*--as delta"):
        lastwrite.table_to(str(tmp_path), "t", to=str(tmp_path / "i"), **options)
    to = str(tmp_path / "d")
    lastwrite.table_to(str(tmp_path), "t", to=to, format="delta", **options)
    (row,) = DeltaTable(to).to_pyarrow_table().to_pylist()
    assert row["value"] == {"a.b": 1, "a": {"b": 2}}, "the remedy"


@each_format
def test_another_scale_of_a_decimal_is_named(tmp_path: Path, format: str) -> None:
    def price(scale: int) -> list[Any]:
        kind = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}
        return [{"name": "price", "type": kind}]

    topic = Topic(tmp_path, format)
    topic.schema(price(2))
    topic.write(a={"price": Decimal(1)})
    topic.run()
    topic.schema(price(4))
    topic.write(b={"price": Decimal(1)})
    with pytest.raises(
        InvalidConfig, match=r"value\.price was decimal128\(9, 2\) and is decimal128\(9, 4\)"
    ):
        topic.run()
    with pytest.raises(
        InvalidConfig, match=r"reader's schema has decimal\(9, 4\), and the value's decimal\(9, 2\)"
    ):
        topic.run(anew=True)
