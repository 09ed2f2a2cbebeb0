"""Authentication to a broker: TLS, and a signature in every request.

The secret key signs a request's values, in the order of their names, and its body. The broker has
the same key and compares the signatures.

Source: RocketMQ 5.5.0 ``AclClientRPCHook``, ``AclUtils``, ``AclSigner``, ``TlsSystemConfig``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Mapping

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.rules.live_settings import RocketmqClientConfig

_SIGNATURE = "Signature"


class RequestCredentials:
    """TLS and request signatures for a connection. Neither is used if ``config`` is None."""

    def __init__(self, config: RocketmqClientConfig | None = None) -> None:
        self._config = config or RocketmqClientConfig()
        self.tls = _context(self._config)  # wraps the connection's socket; None means no TLS

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The fields of a request, with the access key and the signature added."""
        config = self._config
        if not config.access_key:
            return dict(fields)
        known = {**fields, "AccessKey": config.access_key}
        if config.security_token:
            known["SecurityToken"] = config.security_token
        content = "".join(known[name] for name in sorted(known)).encode() + body
        digest = hmac.new(config.secret_key.encode(), content, hashlib.sha1).digest()
        return {**known, _SIGNATURE: base64.b64encode(digest).decode()}


def _context(config: RocketmqClientConfig) -> ssl.SSLContext | None:
    """The TLS context of a connection. Returns None if TLS is disabled.

    Raises:
        InvalidConfig: a file is missing or not PEM.
    """
    if not config.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=config.tls_ca or None)
        if config.tls_certificate:
            context.load_cert_chain(
                config.tls_certificate, config.tls_key or None, config.tls_key_password or None
            )
    except OSError as error:  # including ssl.SSLError
        raise InvalidConfig(
            f"Lastwrite cannot read a TLS certificate or key: {error.strerror or error}",
            remedy="set tls.client.trustCertPath, tls.client.certPath and tls.client.keyPath to "
            "PEM files",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # brokers register addresses, not host names
    if not config.tls_proves_server:
        context.verify_mode = ssl.CERT_NONE
    return context
