"""Fixtures: a real S3 server for a file's tests, and a proxy that applies fault rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.objects import BUCKET, S3, FaultProxy, fault_proxy, s3_server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3") / "data", BUCKET) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(s3: S3) -> Iterator[FaultProxy]:
    with fault_proxy(s3.endpoint) as found:
        yield found
