"""Where schemas come from: a file, a folder, or a registry with Confluent's REST API.

A folder has ``<id>.avsc`` or ``<id>.json``, and ``<subject>.avsc`` for the schema to read by. Of a
registry each id is asked for once by each reader. Who asks is in the environment, as
``SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO=user:password``; ``SSL_CERT_FILE`` names other authorities.

Source: Confluent Schema Registry 7 and 8, "API Reference".
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from lastwrite.errors import InvalidConfig, RemoteFailed

AVRO, JSON = "avro", "json"
_OF_FILES = {".avsc": AVRO, ".json": JSON}
_LARGEST = 16 << 20  # bytes of a schema
_TIMEOUT = 30  # seconds of a request
_USER = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"


class Schema(NamedTuple):
    """A schema's text, its kind (``AVRO``, ``JSON``), and the texts that it refers to."""

    kind: str
    text: str
    references: tuple[str, ...] = ()


def read_schema(path: str) -> Schema:
    """
    Raises:
        InvalidConfig: it cannot be read, or its name tells no kind.
    """
    kind = _OF_FILES.get(Path(path).suffix)
    if kind is None:
        raise InvalidConfig(
            "what kind of schema it is cannot be told from its name",
            path=path,
            remedy=f"its name ends with one of: {', '.join(_OF_FILES)}",
        )
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise InvalidConfig(f"a schema of more than {_LARGEST} bytes", path=path)
        return Schema(kind, Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfig(f"cannot read the schema: {reason}", path=path) from error


class SchemaSource:
    """Schemas by id, and by subject. Safe to pickle; what it knows stays in its process."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self._is_remote = place.startswith(("http://", "https://"))
        if not self._is_remote and not Path(place).is_dir():
            raise InvalidConfig(
                "there is no folder of schemas", path=place, remedy="a folder, or a URL"
            )
        if "@" in urlsplit(place).netloc and self._is_remote:
            raise InvalidConfig(
                "schema_registry holds a name or a password",
                remedy=f"give them in the environment, as {_USER}=user:password",
            )
        self._known: dict[str, Schema] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": {}}

    def by_id(self, number: int) -> Schema:
        """
        Raises:
            InvalidConfig: there is none.
            RemoteFailed: the registry does not answer, or refuses.
        """
        return self._found(str(number), f"/schemas/ids/{number}", f"schema {number}")

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject; errors as ``by_id``."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        return self._found(subject, path, f"subject {subject}")

    def _found(self, name: str, path: str, what: str) -> Schema:
        found = self._known.get(name)
        if found is None:
            if self._is_remote:
                found = self._asked(self._get(path, what))
            else:
                found = self._in_folder(name, what)
            self._known[name] = found
        return found

    def _in_folder(self, name: str, what: str) -> Schema:
        for end in _OF_FILES:
            path = Path(self.place, name + end)
            if "/" not in name and path.is_file():
                return read_schema(str(path))
        raise InvalidConfig(
            f"{what} is not there",
            path=self.place,
            remedy=f"put it there as {name}.avsc or {name}.json",
        )

    def _asked(self, answer: dict[str, Any]) -> Schema:
        kind = str(answer.get("schemaType") or "AVRO").lower()
        if kind not in (AVRO, JSON) or not isinstance(answer.get("schema"), str):
            raise InvalidConfig(f"a schema of type {kind} is not supported", path=self.place)
        texts: dict[str, None] = {}
        for each in answer.get("references") or ():
            subject, version = quote(str(each["subject"]), safe=""), each["version"]
            path = f"/subjects/{subject}/versions/{version}"
            inner = self._asked(self._get(path, f"subject {each['subject']}"))
            texts |= dict.fromkeys((*inner.references, inner.text))
        return Schema(kind, answer["schema"], tuple(texts))

    def _get(self, path: str, what: str) -> dict[str, Any]:
        request = urllib.request.Request(self.place + path)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        user = os.environ.get(_USER)
        if user:
            coded = base64.b64encode(user.encode()).decode()
            request.add_header("Authorization", f"Basic {coded}")
        try:
            context = ssl.create_default_context() if self.place.startswith("https") else None
            with urllib.request.urlopen(request, timeout=_TIMEOUT, context=context) as answer:
                found = json.loads(answer.read(_LARGEST))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise InvalidConfig(f"{what} is not there", path=self.place) from error
            raise RemoteFailed(
                f"the registry refuses to give {what}: {error.code} {error.reason}",
                path=self.place,
                remedy=f"see to {_USER}" if error.code in (401, 403) else "ask again",
            ) from error
        except (OSError, ValueError) as error:
            raise RemoteFailed(
                f"the registry does not answer: {error}", path=self.place, remedy="ask again"
            ) from error
        if not isinstance(found, dict):
            raise RemoteFailed("the registry's answer is none of Confluent's", path=self.place)
        return found
