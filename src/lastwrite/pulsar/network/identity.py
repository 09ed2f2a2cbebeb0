"""Who we are to the brokers of a cluster, and how they are spoken to."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.network.tls import tls_context
from lastwrite.pulsar.rules.live_settings import Login, TlsFiles, checked_token


@dataclass(frozen=True)
class Identity:
    """``wants_tls``: of a broker that listens both ways, the way of TLS is taken."""

    login: Login = field(default_factory=Login)
    files: TlsFiles = field(default_factory=TlsFiles)
    wants_tls: bool = False

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """What connections are wrapped in.

        Raises:
            InvalidConfig: a file cannot be read.
        """
        return tls_context(self.files)

    def proof(self) -> bytes:
        """What a broker gets to see beside the method: the token as it is now, or nothing.

        Raises:
            InvalidConfig: its file cannot be read, or has none.
        """
        if self.login.method != "token":
            return b""
        path = self.login.token_file
        if not path:
            return self.login.token.encode()
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InvalidConfig(f"cannot read the token: {why}", path=path) from error
        return checked_token(text, path).encode()

    def headers(self) -> dict[str, str]:
        """Of a question over HTTP; errors as of ``proof``."""
        proof = self.proof()
        return {"Authorization": f"Bearer {proof.decode()}"} if proof else {}


ANONYMOUS = Identity()
