"""A real Iceberg REST catalog: the server of Iceberg's own tests, fetched once by Maven.

``LASTWRITE_ICEBERG_REST_HOME`` names the folder of its jars.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.jars import Unavailable, fetch_jars, free_ports, need_java

POM = Path(__file__).with_name("rest-pom.xml")


@contextlib.contextmanager
def rest_catalog(folder: Path, warehouse: str, **settings: str) -> Iterator[str]:
    """The catalog's URL. Skips the test if it cannot be fetched.

    ``settings`` are the catalog's, by Iceberg's names with ``_`` in place of dots.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lastwrite"
    home = Path(os.environ.get("LASTWRITE_ICEBERG_REST_HOME", cache / "iceberg-rest-1.11.0"))
    try:
        need_java()
        fetch_jars(home, "Iceberg's REST catalog", POM, "iceberg-aws-bundle-1.11.0.jar")
    except Unavailable as missing:
        pytest.skip(str(missing))
    folder.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    told: Mapping[str, str] = {
        "URI": f"jdbc:sqlite:{folder}/catalog.db",
        "WAREHOUSE": warehouse,
        "JDBC_SCHEMA__VERSION": "V1",
        "REST_PORT": str(port),
        **settings,
    }
    environment = os.environ | {f"CATALOG_{name}": value for name, value in told.items()}
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/lib/*"]
    command.append("org.apache.iceberg.rest.RESTCatalogServer")
    log, url = folder / "rest.log", f"http://127.0.0.1:{port}"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment,
        ) as server,
    ):
        try:
            for _ in range(1200):
                assert server.poll() is None, log.read_text()
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{url}/v1/config", timeout=5).close()
                    break
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()
