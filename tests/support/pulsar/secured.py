"""A Pulsar standalone with TLS, tokens, certificates, and a ZooKeeper with access lists.

keys = Keys(tmp_path / "keys")  # openssl makes them
with SecuredBroker(home, tmp_path / "data", keys) as broker:
    keys.client_conf(broker, tmp_path / "client.conf")
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl

from tests.support.jars import Unavailable, free_ports
from tests.support.pulsar.broker import NAMESPACE, SHORT, Broker

PLUGIN = "org.apache.pulsar.client.impl.auth."
SUPER, OURS = "super:of-all", "lastwrite:let me in: please"  # users of ZooKeeper
_AUTH = "org.apache.zookeeper.server.auth"
_DIGEST = f"{_AUTH}.DigestLoginModule required"
JAAS = f"""Server {{ {_DIGEST} user_broker="pw"; }};
Client {{ {_DIGEST} username="broker" password="pw"; }};
"""


def digest(user: str) -> str:
    """A user in the form of ZooKeeper's access lists."""
    proof = base64.b64encode(hashlib.sha1(user.encode()).digest()).decode()
    return f"{user.partition(':')[0]}:{proof}"


class Keys:
    """``ca.pem``, and a ``.pem`` and a ``.key`` of ``server`` and ``client`` each.

    ``stranger.pem`` is not signed by the CA. ``token`` makes tokens.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise Unavailable("openssl is missing")
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("ca", "stranger"):
            self._run(
                f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name}"
                f" -keyout {name}.key -out {name}.pem"
            )
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        for name in ("server", "admin"):
            self._run(
                f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            )
            self._run(
                f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
                f" -extfile names -out {name}.pem"
            )
        (folder / "secret").write_bytes(b"s" * 32)
        (folder / "token").write_text(self.token("admin") + "\n")
        (folder / "jaas.conf").write_text(JAAS)
        (folder / "zookeeper").write_text(f"digest:{OURS}\n")

    def _run(self, line: str) -> None:
        command = ["openssl", *line.split()]
        subprocess.run(command, cwd=self.folder, check=True, timeout=60, stderr=subprocess.DEVNULL)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def token(self, role: str) -> str:
        def text(part: bytes) -> str:
            return base64.urlsafe_b64encode(part).decode().rstrip("=")

        parts = ({"alg": "HS256"}, {"sub": role})
        said = ".".join(text(json.dumps(part).encode()) for part in parts)
        return f"{said}.{text(hmac.new(b's' * 32, said.encode(), 'sha256').digest())}"


class SecuredBroker(Broker):
    """A standalone that only listens with TLS. Its bookie accepts TLS, too."""

    def __init__(self, home: Path, data: Path, keys: Keys) -> None:
        self.keys = keys
        self._tls_ports = free_ports(2)
        super().__init__(
            home,
            data,
            _settings(keys, *self._tls_ports),
            java=(
                *SHORT,
                "-Dzookeeper.fips-mode=false",  # FIPS mode forbids DIGEST-MD5
                f"-Djava.security.auth.login.config={keys.path('jaas.conf')}",
                f"-Dzookeeper.authProvider.1={_AUTH}.SASLAuthenticationProvider",
                f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest(SUPER)}",
            ),
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._tls_ports[0]}"

    @property
    def service_url(self) -> str:
        return f"pulsar+ssl://{self.address}"

    @property
    def admin_url(self) -> str:
        return f"https://127.0.0.1:{self._tls_ports[1]}"

    def ask(self, path: str, method: str = "GET", body: object = None) -> bytes:
        """Send a request to the admin port with the superuser's token, and return the answer."""
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.keys.token('admin')}",
                "Content-Type": "application/json",
            },
        )
        context = ssl.create_default_context(cafile=self.keys.path("ca.pem"))
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return bytes(answer.read())

    def _answers(self) -> bool:
        try:
            for path in (f"namespaces/{NAMESPACE}/topics", "brokers/ready"):
                self.ask(path)
        except OSError:
            return False
        return True

    def close_the_store(self) -> None:
        """Restrict all nodes in ZooKeeper to the broker's user and Lastwrite's."""
        client = KazooClient(self.metadata_store, auth_data=[("digest", SUPER)])
        client.start(30)
        acl = [make_acl("sasl", "broker", all=True), make_acl("digest", digest(OURS), all=True)]
        waiting = ["/managed-ledgers", "/ledgers", "/admin", "/loadbalance"]
        while waiting:
            path = waiting.pop()
            with contextlib.suppress(NoNodeError):  # a broker removes nodes meanwhile
                client.set_acls(path, acl)
                waiting.extend(f"{path}/{name}" for name in client.get_children(path))
        client.stop()
        client.close()


def _settings(keys: Keys, binary: int, admin: int) -> Mapping[str, str]:
    pair = {"CertificateFilePath": keys.path("server.pem"), "KeyFilePath": keys.path("server.key")}
    ours = f"tlsCertFile:{keys.path('admin.pem')},tlsKeyFile:{keys.path('admin.key')}"
    return {
        "brokerServicePort": "",
        "webServicePort": "",
        "brokerServicePortTls": str(binary),
        "webServicePortTls": str(admin),
        "tlsTrustCertsFilePath": keys.path("ca.pem"),
        **{f"tls{name}": path for name, path in pair.items()},
        "authenticationEnabled": "true",
        "authenticationProviders": ",".join(
            f"org.apache.pulsar.broker.authentication.AuthenticationProvider{each}"
            for each in ("Token", "Tls")
        ),
        "tokenSecretKey": f"file://{keys.path('secret')}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": keys.path("ca.pem"),
        "brokerClientAuthenticationPlugin": f"{PLUGIN}AuthenticationTls",
        "brokerClientAuthenticationParameters": ours,
        # the bookie's settings, and the broker's as the bookie's client
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": keys.path("server.key"),
        "tlsCertificatePath": keys.path("server.pem"),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": keys.path("ca.pem"),
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSKeyFileType": "PEM",
        "bookkeeperTLSTrustCertTypes": "PEM",
        "bookkeeperTLSTrustCertsFilePath": keys.path("ca.pem"),
        **{f"bookkeeperTLS{name}": path for name, path in pair.items()},
    }
