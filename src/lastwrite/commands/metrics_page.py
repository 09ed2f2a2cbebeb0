"""The HTTP endpoint ``/metrics`` for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from lastwrite.errors import InvalidConfig

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def page_of(registry: CollectorRegistry) -> bytes:
    """The text of the metrics page, in the format of ``CONTENT_TYPE``."""
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]


def serve_metrics(
    stack: ExitStack,
    registry: CollectorRegistry,
    host: str,
    port: int | None,
    notify: Callable[[str], None],
) -> None:
    """Serve the metrics of ``registry`` until ``stack`` is closed, and pass the URL to ``notify``.

    Does nothing if ``port`` is None.

    Raises:
        InvalidConfig: the address is not available.
    """
    if port is None:
        return
    server = MetricsServer(registry, host, port)
    stack.callback(server.close)
    notify(f"metrics: http://{host}:{server.port}/metrics")


class MetricsServer:
    """Serves ``GET /metrics`` on ``host:port`` until ``close``. Port 0 means any free port.

    Raises:
        InvalidConfig: the address is not available.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.split("?")[0] in ("/metrics", "/")
                body = page_of(registry) if is_known else b"see /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header(
                    "Content-Type", CONTENT_TYPE if is_known else "text/plain; charset=utf-8"
                )
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidConfig(
                f"cannot serve metrics on {host}:{port}: {error}",
                remedy="give a free port with --metrics-port",
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
