"""PySpark's gateway to a JVM that is killed at the end, without Py4J's error messages."""

from __future__ import annotations

from typing import Any, TypeVar

G = TypeVar("G")


def quieten(gateway: G) -> G:
    """Change a gateway so that Py4J prints nothing when the JVM is gone. Returns the gateway.

    Py4J's client writes the trace of such an error to the root logger, on standard error, even if
    the error is expected. This happens when a job is cancelled, or when Python collects an object
    of an ended session.
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
    # with PYSPARK_PIN_THREAD=false, PySpark uses another client, which stays unchanged
    if connect is None:
        return gateway

    def connect_quietly() -> Any:
        connection = connect()
        connection.__class__ = Quiet
        return connection

    client._create_new_connection = connect_quietly
    for connection in list(client.deque):  # also silences the existing connections
        connection.__class__ = Quiet
    return gateway
