"""A real schema registry with Confluent's REST interface: Apicurio's, fetched once by Maven."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import unpack
from tests.support.jars import Unavailable, fetch_jars, free_ports, need_java

NAME = "apicurio-registry-app-2.6.13.Final"


class Registry:
    """A running registry. ``url`` is its address for clients."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[Any] = ()
    ) -> int:
        """Register a schema, and return its id."""
        text = schema if kind == "PROTOBUF" else json.dumps(schema)
        told = {"schema": text, "schemaType": kind, "references": list(references)}
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(told).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return int(json.load(answer)["id"])


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """A registry that runs while the context is open. Skips the test if it cannot be fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lastwrite"
    home = Path(os.environ.get("LASTWRITE_REGISTRY_HOME", cache / "registry-2.6.13"))
    archive = f"{NAME}-all.tar.gz"
    try:
        need_java()
        pom = Path(__file__).parent / "registry-pom.xml"
        fetch_jars(home, "Apicurio's registry", pom, archive)
    except Unavailable as missing:
        pytest.skip(str(missing))
    unpack(home / "lib" / archive, folder / "app")
    (port,) = free_ports(1)
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1"]
    command += [f"-Dquarkus.http.port={port}", "-jar", str(folder / "app" / f"{NAME}-runner.jar")]
    log, found = folder / "registry.log", Registry(port)
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ) as server,
    ):
        try:
            for _ in range(3000):
                assert server.poll() is None, log.read_text()
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{found.url}/subjects", timeout=5).close()
                    break
                time.sleep(0.1)
            yield found
        finally:
            server.terminate()
