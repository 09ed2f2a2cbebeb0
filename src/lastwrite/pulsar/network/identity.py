"""The client's credentials for the brokers of a cluster, and its connections' TLS settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.network.tls import tls_context
from lastwrite.pulsar.rules.live_settings import Login, TlsFiles, checked_token


@dataclass(frozen=True)
class PulsarCredentials:
    """The client's login and TLS files.

    With ``requires_tls``, TLS addresses of brokers are used.
    """

    login: Login = field(default_factory=Login)
    files: TlsFiles = field(default_factory=TlsFiles)
    requires_tls: bool = False

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The TLS context for connections to brokers.

        Raises:
            InvalidConfig: a file cannot be read.
        """
        return tls_context(self.files)

    def proof(self) -> bytes:
        """The client's authentication data: the current token. Empty without a token.

        Raises:
            InvalidConfig: the token's file cannot be read, or has no token.
        """
        if self.login.method != "token":
            return b""
        path = self.login.token_file
        if not path:
            return self.login.token.encode()
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
            raise InvalidConfig(f"cannot read the token file: {why}", path=path) from error
        return checked_token(text, path).encode()

    def headers(self) -> dict[str, str]:
        """The headers of an HTTP request. Errors as ``proof``."""
        proof = self.proof()
        return {"Authorization": f"Bearer {proof.decode()}"} if proof else {}


ANONYMOUS = PulsarCredentials()
