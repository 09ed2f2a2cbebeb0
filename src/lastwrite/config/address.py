"""Network addresses as users write them."""

from __future__ import annotations

from lastwrite.errors import InvalidConfig


def parse_address(address: str) -> tuple[str, int]:
    """The host and port of ``HOST:PORT``, ``[IPV6]:PORT`` or ``IPV6:PORT``.

    Raises:
        InvalidConfig: the text has none of these forms.
    """
    host, colon, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (
        not colon
        or not host
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 65536
    ):
        raise InvalidConfig(f"{address!r} is not HOST:PORT")
    return host, int(port)
