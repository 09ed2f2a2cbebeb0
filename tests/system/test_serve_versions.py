"""Tests of clients with a server that supports fewer requests.

One request is removed from our ApiVersions response, or reduced to its oldest version. Clients that
do not need it must read everything.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.server.messages import APIS
from tests.support.jars import Unavailable, free_ports
from tests.support.kafka.logs import write_segment
from tests.support.kafka.readers.programs import READERS
from tests.support.kafka.recording import Recorder

pytestmark = [pytest.mark.slow, pytest.mark.long]

TOPIC, COUNT = "orders", 20
NEEDED = {
    "fetch",
    "list_offsets",
    "metadata",
    "find_coordinator",
    "join_group",
    "sync_group",
    "offset_commit",
    "offset_fetch",
}  # requests of any client that reads in a group
ALSO_NEEDED = {
    "confluent": {"produce"},
    "kcat": {"produce"},
    "java 2.1": {"produce"},
    "sarama": {"heartbeat", "leave_group"},
    "platformatic": {"leave_group"},
    "java, newer groups": {"consumer_group_heartbeat"},
}
NEWER_NEEDED = {
    "java": {"metadata"},
    "java, newer groups": {"metadata"},
    "java 3.9": {"metadata"},
    "java 2.1": {"metadata"},
    "platformatic": {*NEEDED, "leave_group", "heartbeat"},
    "segmentio": {"fetch", "metadata", "join_group"},
}  # requests of which the client needs a newer version than our oldest
ONE = struct.Struct(">hhh")


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"spark"}))
def test_client_reads_without_the_requests_that_it_does_not_need(tmp_path: Path, name: str) -> None:
    records = [Record(n, 1_700_000_000_000 + n, b"k-%d" % n, b"v") for n in range(COUNT)]
    batches = [encode_batch(records[n : n + 10]) for n in range(0, COUNT, 10)]
    write_segment(tmp_path / "log" / f"{TOPIC}-0", 0, batches)
    needed = NEEDED | ALSO_NEEDED.get(name, set())
    newer_needed = NEWER_NEEDED.get(name, set())
    for api, served in APIS.items():
        if api not in needed:
            _read_all(tmp_path, name, api, [])
        if api not in newer_needed and served.oldest != served.newest:
            _read_all(tmp_path, name, api, [served.oldest])


def _read_all(folder: Path, name: str, api: str, versions: list[int]) -> None:
    """Read everything from a server that offers ``api`` only in ``versions``."""
    recorder, where = Recorder(_with(api, versions)), f"127.0.0.1:{free_ports(1)[0]}"
    group = f"{api}-{len(versions)}"
    try:
        command = READERS[name].command(recorder.address, TOPIC, str(COUNT), group)
    except Unavailable as reason:
        pytest.skip(str(reason))
    served = lastwrite.serve(
        str(folder / "log"), listen=where, advertise=recorder.address, state=str(folder / "state")
    )
    with served, recorder.before(where):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert len(done.stdout.splitlines()) == COUNT, (api, versions, done.stderr)
    assert done.returncode == 0, (api, versions, done.stderr)


def _with(api: str, versions: list[int]) -> Callable[[bytes, bytes], bytes]:
    """A function that changes our response to ApiVersions and returns other responses unchanged."""

    def changed(request: bytes, answer: bytes) -> bytes:
        key, version = struct.unpack_from(">hh", request)
        if key != APIS["api_versions"].key:
            return answer
        is_flexible = version >= APIS["api_versions"].flexible
        size = ONE.size + is_flexible  # bytes of one entry of the list
        begin, end = _places(answer, is_flexible, size)
        told = [answer[at : at + size] for at in range(begin, end, size)]
        kept = [each for each in told if ONE.unpack_from(each)[0] != APIS[api].key]
        tags = bytes(is_flexible)
        kept += [ONE.pack(APIS[api].key, each, each) + tags for each in versions]
        count = bytes([len(kept) + 1]) if is_flexible else struct.pack(">i", len(kept))
        return answer[:6] + count + b"".join(kept) + answer[end:]

    return changed


def _places(answer: bytes, is_flexible: bool, size: int) -> tuple[int, int]:
    """Start and end of the list of requests in the response, after its length field.

    The correlation id and an error code of two bytes precede the list.
    """
    begin, count = (7, answer[6] - 1) if is_flexible else (10, int.from_bytes(answer[6:10], "big"))
    return begin, begin + count * size
