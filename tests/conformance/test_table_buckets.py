"""Tests of tables in a real S3 server and a real REST catalog.

Some requests are refused, and some answers are lost or wrong.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

for package in ("pyiceberg", "deltalake", "obstore"):
    pytest.importorskip(package, reason="pip install 'lastwrite[tables,objects]'")

from deltalake import DeltaTable  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402
from pyiceberg.table import Table  # noqa: E402

import lastwrite  # noqa: E402
from lastwrite.errors import InvalidConfig, LogError, RemoteFailed  # noqa: E402
from tests.support.objects import BUCKET, S3, FaultProxy, fault_proxy  # noqa: E402
from tests.support.tables.rest import rest_catalog  # noqa: E402
from tests.support.tables.topics import KafkaTopic  # noqa: E402
from tests.tables.rounds import VECTORS  # noqa: E402

HEADS = {
    "iceberg": r"metadata/.*\.(json|avro)",
    "iceberg-vectors": r"(metadata/.*\.(json|avro)|data/.*\.puffin)",
    "delta": r"_delta_log/\d+\.json",
    "parquet": r"_lastwrite/(current|manifest)",
}


def options_of(endpoint: str) -> dict[str, str]:
    return {"storage.endpoint": endpoint, "storage.allowHttp": "true"}


def _loaded(to: str, endpoint: str, uri: str | None) -> Table:
    its = {"s3.endpoint": endpoint, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    name = ("lastwrite", "t") if to.startswith("s3:") else tuple(to.split("."))
    return load_catalog("lastwrite", uri=uri, **its).load_table(name)


def others_find(format: str, to: str, endpoint: str, uri: str | None) -> dict[bytes, bytes]:
    """The rows that the formats' own libraries read from the bucket."""
    if format == "delta":
        how = {"aws_endpoint": endpoint, "allow_http": "true"}
        found = DeltaTable(to, storage_options=how).to_pyarrow_table()
    else:
        found = _loaded(to, endpoint, uri).scan().to_arrow()
    rows = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
    assert len(rows) == len(found)
    return rows


@pytest.mark.parametrize("format", list(HEADS))
def test_no_response_of_the_store_makes_a_wrong_table(
    format: str, s3: S3, proxy: FaultProxy, tmp_path: Path
) -> None:
    draw = random.Random(7)
    topic = KafkaTopic(tmp_path / "log", draw)
    to = f"s3://{BUCKET}/tables/{format}"
    heads, plain = HEADS[format], format.removesuffix(VECTORS)
    vectors, format = plain != format, plain
    uri = f"sqlite:///{tmp_path}/catalog.db" if format == "iceberg" else None

    def turn(endpoint: str) -> Any:
        return lastwrite.table_to(
            str(topic.root),
            "t",
            to=to,
            format=format,
            catalog=uri,
            vectors=vectors,
            config=options_of(endpoint),
        )

    met = 0
    for do in ("", "lost", "412", "late", "409"):
        topic.append(
            [(f"key-{n}", draw.choice([None, do + str(n)])) for n in draw.sample(range(9), 4)]
        )
        topic.model.clear()
        topic.model |= dict(lastwrite.latest(str(topic.root), "t").items())
        rule = {"method": "PUT", "path": heads, "do": do, "times": 1}
        proxy.spoil(*([rule] if do else []))
        try:
            turn(proxy.endpoint)
        except (RemoteFailed, LogError) as error:
            assert error.remedy, error
        met += proxy.used() if do else 0
        proxy.spoil()
        turn(s3.endpoint)
        proof = lastwrite.verify_table(
            str(topic.root),
            to,
            topic="t",
            format=format,
            catalog=uri,
            config=options_of(s3.endpoint),
        )
        assert proof.is_proven and proof.proven == proof.rows == len(topic.model), (do, proof)
        if format != "parquet":
            assert others_find(format, to, s3.endpoint, uri) == topic.model, do
    assert met == 4


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_forbidden_write_is_reported(
    format: str, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = KafkaTopic(tmp_path / "log", random.Random(3))
    topic.append([("key-1", "a")])
    to = f"s3://{BUCKET}/refused/{format}"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(RemoteFailed) as caught:
        lastwrite.table_to(
            str(topic.root),
            "t",
            to=to,
            format=format,
            # a new address, so that no cached client is used
            config=options_of(s3.endpoint.replace("127.0.0.1", "localhost")),
        )
    assert caught.value.remedy
    assert not list((s3.data / BUCKET).glob("refused/**/*.parquet"))


def _of_a_bucket(s3: S3) -> dict[str, str]:
    """The settings with which a catalog server keeps its tables in the bucket."""
    return {
        "IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "S3_ENDPOINT": s3.endpoint,
        "S3_PATH__STYLE__ACCESS": "true",
    }


@pytest.mark.broker
@pytest.mark.parametrize(
    ("place", "vectors"), [("folder", False), ("bucket", False), ("bucket", True)]
)
def test_table_in_a_rest_catalog_is_updated(
    place: str, vectors: bool, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(1)
    topic = KafkaTopic(tmp_path / "log", draw)
    warehouse = f"s3://{BUCKET}/warehouse" if place == "bucket" else f"file://{tmp_path}/warehouse"
    settings = _of_a_bucket(s3) if place == "bucket" else {}
    with (
        rest_catalog(tmp_path / "rest", warehouse, **settings) as url,
        fault_proxy(url) as proxy,
    ):

        def turn(uri: str, to: str = "shop.t") -> Any:
            now = vectors and has_begun  # a table of version 2 is upgraded to version 3
            how = {"catalog": uri, "vectors": now, "config": options_of(s3.endpoint)}
            return lastwrite.table_to(str(topic.root), "t", to=to, **how)

        has_begun = False
        for do in ("", "lost", "503", "late", "409"):
            topic.append([(f"key-{n}", draw.choice([None, do + str(n)])) for n in range(5)])
            model = dict(lastwrite.latest(str(topic.root), "t").items())
            commit = {"method": "POST", "path": "/v1/namespaces/shop/tables/t$", "do": do}
            proxy.spoil(*([{**commit, "times": 1}] if do else []))
            try:
                turn(proxy.endpoint)
            except LogError as error:
                assert error.remedy and error.exit_status in (1, 4), (do, error)
            assert not do or proxy.used() == 1
            proxy.spoil()
            made = turn(url)
            assert made.rows == len(model), do
            proof = lastwrite.verify_table(
                str(topic.root), "shop.t", topic="t", catalog=url, config=options_of(s3.endpoint)
            )
            assert proof.is_proven and proof.proven == proof.rows, (do, proof)
            assert others_find("iceberg", "shop.t", s3.endpoint, url) == model, do
            has_begun = True
        turn(url, "shop.new")
        assert others_find("iceberg", "shop.new", s3.endpoint, url) == model
        for name in ("shop.t", "shop.new"):
            assert _loaded(name, s3.endpoint, url).format_version == 2 + vectors
        # A later round deletes the files of a killed run, and no others, wherever the tables are.
        left = tmp_path / "warehouse" / "shop" / "t" / "data" / "00000-0123456789abcdef.parquet"
        if place == "folder":
            left.write_bytes(b"of a run that died")
        later = time.time_ns() // 1_000_000 + 6 * 86_400_000
        told = {"catalog": url, "config": options_of(s3.endpoint)}
        tidied = lastwrite.table_to(str(topic.root), "t", to="shop.t", now_ms=later, **told).tidied
        assert tidied and not left.exists()
        proof = lastwrite.verify_table(str(topic.root), "shop.t", topic="t", **told)
        assert proof.is_proven and proof.proven == proof.rows, proof
        # a table of another program, and a server that is not a catalog
        load_catalog("any", uri=url).create_table(
            ("shop", "theirs"), _loaded("shop.t", s3.endpoint, url).schema()
        )
        with pytest.raises(InvalidConfig, match="was not created by Lastwrite"):
            turn(url, "shop.theirs")
        with pytest.raises(RemoteFailed) as caught:
            turn(s3.endpoint, "shop.other")
        assert caught.value.remedy
    with pytest.raises(RemoteFailed) as caught:
        turn(url)
    assert caught.value.remedy
