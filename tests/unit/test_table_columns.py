"""Tests of the columns of decoded values when their schemas change between runs."""

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
from lastwrite.errors import BadValue, InvalidConfig
from lastwrite.reports.table_round import TableRound
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.judges import iceberg_table, parquet_files

T = 1_700_000_000_000
FORMATS = ("iceberg", "delta", "parquet")
each_format = pytest.mark.parametrize("format", FORMATS)


class Topic:
    """A topic with Avro values and its table. The schemas are in a folder."""

    def __init__(self, folder: Path, format: str) -> None:
        (folder / "log").mkdir()
        self.log = GrowingLog(folder / "log")
        self.folder, self.to, self.format = folder, folder / "table", format
        self._schema: Any = None
        self._number = 0

    def schema(self, fields: list[Any], name: str = "r") -> None:
        """Set the schema with which the next values are written and read."""
        self._schema = {"type": "record", "name": name, "fields": fields}
        self._number += 1
        (self.folder / "schemas").mkdir(exist_ok=True)
        for file in (str(self._number), "t-value"):
            (self.folder / "schemas" / f"{file}.avsc").write_text(json.dumps(self._schema))

    def write(self, **values: Any) -> None:
        """Write values by key."""
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


def test_two_columns_with_the_same_iceberg_name_are_refused(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path)
    log.append([(b"k", b'{"a.b": 1, "a": {"b": 2}}', T)])
    inner = {"type": "object", "properties": {"b": {"type": "integer"}}}
    properties = {"a.b": {"type": "integer"}, "a": inner}
    (tmp_path / "s.json").write_text(json.dumps({"type": "object", "properties": properties}))
    options: dict[str, Any] = {"value_format": "json", "value_schema": str(tmp_path / "s.json")}
    with pytest.raises(
        InvalidConfig, match=r"two columns have the Iceberg name value\.a\.b.*--as delta"
    ):
        lastwrite.table_to(str(tmp_path), "t", to=str(tmp_path / "i"), **options)
    to = str(tmp_path / "d")
    lastwrite.table_to(str(tmp_path), "t", to=to, format="delta", **options)
    (row,) = DeltaTable(to).to_pyarrow_table().to_pylist()
    assert row["value"] == {"a.b": 1, "a": {"b": 2}}, "the remedy"


@each_format
def test_changed_decimal_scale_is_named(tmp_path: Path, format: str) -> None:
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
        InvalidConfig,
        match=r"value\.price had the type decimal128\(9, 2\), "
        r"and now has the type decimal128\(9, 4\)",
    ):
        topic.run()
    with pytest.raises(
        BadValue,
        match=r"reader's schema has decimal\(9, 4\), but the writer's schema has decimal\(9, 2\)",
    ):
        topic.run(anew=True)
    assert topic.run(anew=True, on_bad="null").rows == 2, "the remedy"
    assert topic.rows() == {"a": None, "b": {"price": Decimal("1.0000")}}


# ---------------------------------------------------------------------- aliases

OLD = [
    {"name": "first", "type": "string"},
    {
        "name": "lines",
        "type": {
            "type": "array",
            "items": {"type": "record", "name": "line", "fields": [{"name": "n", "type": "int"}]},
        },
    },
]
NEW = [
    {"name": "given", "aliases": ["first"], "type": "string"},
    {
        "name": "items",
        "aliases": ["lines"],
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "line",
                "fields": [{"name": "count", "aliases": ["n"], "type": "int"}],
            },
        },
    },
]


def old(name: str) -> dict[str, Any]:
    return {"first": name, "lines": [{"n": 1}, {"n": 2}]}


def new(name: str) -> dict[str, Any]:
    return {"given": name, "items": [{"count": 1}, {"count": 2}]}


def renamed_topic(folder: Path, format: str) -> Topic:
    topic = Topic(folder, format)
    topic.schema(OLD)
    topic.write(**{f"k{n}": old("x") for n in range(10)})
    topic.run()
    topic.schema(NEW)
    topic.write(k0=new("y"))
    return topic


@pytest.mark.parametrize("vectors", [False, True])
def test_iceberg_renames_a_column_with_an_alias(tmp_path: Path, vectors: bool) -> None:
    topic = renamed_topic(tmp_path, "iceberg")
    assert topic.run(vectors=vectors).how == "updated"
    right = {f"k{n}": new("x") for n in range(10)} | {"k0": new("y")}
    assert topic.rows() == right, "by the numbers of columns, in files with the old names"
    topic.write(**{f"k{n}": new("z") for n in range(1, 4)})
    report = topic.run()
    assert report.written_anew, "rows of files with the old names moved to a new file"
    right |= {f"k{n}": new("z") for n in range(1, 4)}
    assert topic.rows() == right
    assert topic.run().how == "unchanged"
    assert topic.run(anew=True, buckets=2).how == "made"
    assert topic.rows() == right


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_rename_is_refused_by_formats_that_cannot_rename(tmp_path: Path, format: str) -> None:
    topic = renamed_topic(tmp_path, format)
    with pytest.raises(InvalidConfig, match=r"renames the column first to value\.given.*--anew"):
        topic.run()
    assert topic.rows() == {f"k{n}": old("x") for n in range(10)}
    assert topic.run(anew=True).how == "made"
    assert topic.rows() == {f"k{n}": new("x") for n in range(10)} | {"k0": new("y")}


# ---------------------------------------------------------------------- unions


def paid(*branches: str, null: bool = True) -> list[Any]:
    """A union field of records with one field each."""
    records = [
        {
            "type": "record",
            "name": name.rpartition(".")[2],
            "namespace": name.rpartition(".")[0],
            "fields": [{"name": "number", "type": "string"}],
        }
        for name in branches
    ]
    return [{"name": "paid", "type": [*["null"] * null, *records]}]


def by(branch: str) -> dict[str, Any]:
    return {"paid": (branch, {"number": branch})}


@each_format
@pytest.mark.parametrize(
    "later",
    [
        ("a.Wallet", "a.Card", "a.Cash"),
        ("a.Cash", "a.Card"),
        ("b.Card", "a.Cash"),
        ("a.Card",),
    ],
    ids=["in front", "other order", "other namespace", "one branch"],
)
def test_union_whose_branches_change_order_is_refused(
    tmp_path: Path, format: str, later: tuple[str, ...]
) -> None:
    topic = Topic(tmp_path, format)
    topic.schema(paid("a.Card", "a.Cash"))
    topic.write(k=by("a.Card"), l=by("a.Cash"))
    topic.run()
    before = topic.rows()
    topic.schema(paid(*later))
    topic.write(k=by(later[0]))
    with pytest.raises(InvalidConfig, match=r"value\.paid.*at the end of the union.*--anew"):
        topic.run()
    assert topic.rows() == before


@each_format
def test_union_accepts_branches_at_its_end(tmp_path: Path, format: str) -> None:
    topic = Topic(tmp_path, format)
    topic.schema(paid("a.Card", "a.Cash"))
    topic.write(k=by("a.Card"), l=by("a.Cash"))
    topic.run()
    topic.schema(paid("a.Card", "a.Cash", "a.Wallet", null=False))
    topic.write(m=by("a.Wallet"))
    topic.run()
    assert [topic.rows()["m"]["paid"][f"member{n}"] for n in range(3)] == [
        None,
        None,
        {"number": "a.Wallet"},
    ]
    assert topic.rows()["k"]["paid"]["member0"] == {"number": "a.Card"}
    topic.schema(paid("a.Card", "a.Cash"))
    topic.write(n=by("a.Cash"))
    topic.run()
    topic.schema(paid("a.Card", "a.Cash", "a.Coupon"))
    topic.write(n=by("a.Cash"))
    with pytest.raises(
        InvalidConfig, match=r"member2 of the union was a\.Wallet, and now is a\.Coupon"
    ):
        topic.run()


def test_single_type_that_becomes_a_union_is_refused(tmp_path: Path) -> None:
    topic = Topic(tmp_path, "delta")
    topic.schema(paid("a.Card"))
    topic.write(k={"paid": {"number": "1"}})
    topic.run()
    topic.schema(paid("a.Card", "a.Cash"))
    topic.write(k=by("a.Cash"))
    with pytest.raises(
        InvalidConfig, match=r"value\.paid was not a union of several types, and now is one"
    ):
        topic.run()
    assert topic.run(anew=True).rows == 1


def test_branch_renamed_with_an_alias_keeps_its_column(tmp_path: Path) -> None:
    topic = Topic(tmp_path, "delta")
    topic.schema(paid("a.Card", "a.Cash"))
    topic.write(k=by("a.Card"))
    topic.run()
    fields = paid("a.Plastic", "a.Cash")
    fields[0]["type"][1]["aliases"] = ["Card"]
    topic.schema(fields)
    topic.write(l=by("a.Plastic"))
    topic.run()
    assert {row["paid"]["member0"]["number"] for row in topic.rows().values()} == {
        "a.Card",
        "a.Plastic",
    }
