"""An archive in a real S3 server, behind a network that spoils requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archives.commits import commit_under_faults
from tests.support.objects import fault_proxy, s3_server

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_what_is_believed_to_be_committed_is_what_was_made(tmp_path: Path) -> None:
    with s3_server(tmp_path / "data") as server, fault_proxy(server.endpoint) as proxy:
        met = commit_under_faults(server, proxy, "kafka/orders/0", 15)
    assert met["requests spoilt"] > 60
    assert met["won"] == 60
