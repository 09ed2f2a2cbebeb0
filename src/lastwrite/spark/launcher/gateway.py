"""PySpark's gateway to a JVM that we end as it stands: whoever asks that JVM then gets an error, and
nothing is printed.
"""

from __future__ import annotations

from typing import Any, TypeVar

G = TypeVar("G")


def quieten(gateway: G) -> G:
    """The gateway, of which Py4J says nothing any more when there is no JVM at the other end.

    Its client writes the trace of such an error to the root logger, on standard error, also where
    the error has been expected: a job that is broken off, an object of an ended session that Python
    collects later.
    """
    from py4j.clientserver import ClientServerConnection
    from py4j.protocol import Py4JNetworkError

    class Quiet(ClientServerConnection):  # type: ignore[misc]
        def send_command(self, command: str) -> Any:
            try:
                return super().send_command(command)
            except Py4JNetworkError as error:
                self.close()
                raise ConnectionError("the JVM does not answer") from error

    client: Any = gateway._gateway_client  # type: ignore[attr-defined]
    connect = getattr(client, "_create_new_connection", None)
    if connect is None:  # PYSPARK_PIN_THREAD=false
        return gateway

    def connect_quietly() -> Any:
        connection = connect()
        connection.__class__ = Quiet
        return connection

    client._create_new_connection = connect_quietly
    for connection in list(client.deque):  # made before
        connection.__class__ = Quiet
    return gateway
