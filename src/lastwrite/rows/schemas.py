"""Sources of schemas: a file, a folder, or a registry with Confluent's REST API.

A folder contains a file for each schema: ``<id>.avsc``, ``.json``, ``.proto`` or ``.desc``. The id
may be a GUID. A file ``<subject>.avsc`` (or another suffix) has the schema to read by.

Each reader requests an id from a registry only once. The environment variable
``SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO=user:password`` sets the user for the registry, and
``SSL_CERT_FILE`` a file of certificate authorities.

Source: Confluent Schema Registry 7 and 8, "API Reference".
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from lastwrite.errors import EnvironmentUnfit, InvalidConfig, RemoteFailed, missing_extra
from lastwrite.rows.known_protos import KNOWN_PROTOS

AVRO, JSON, PROTOBUF = "avro", "json", "protobuf"
_OF_FILES = {".avsc": AVRO, ".json": JSON, ".proto": PROTOBUF, ".desc": PROTOBUF}
_LARGEST = 16 << 20  # most bytes of a schema file or of a registry's answer
_TIMEOUT = 30  # seconds until a request to the registry fails
_USER = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
_OWN = "schema.proto"  # file name for a Protobuf schema from a registry


class Schema(NamedTuple):
    """The schema of keys or values.

    Attributes:
        kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        text: empty for Protobuf.
        references: the texts of the schemas that ``text`` refers to.
        descriptors: for Protobuf: a set of file descriptors, the schema's own file last.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()
    descriptors: bytes = b""


def read_schema(path: str) -> Schema:
    """Read a schema from a file.

    Raises:
        InvalidConfig: the file cannot be read, or its name has an unknown suffix.
        EnvironmentUnfit: the file is a ``.proto``, and Protobuf's compiler is not installed.
    """
    kind = _OF_FILES.get(Path(path).suffix)
    if kind is None:
        raise InvalidConfig(
            "the file's suffix does not show the format of the schema",
            path=path,
            remedy=f"rename the file so that it ends with one of: {', '.join(_OF_FILES)}",
        )
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise InvalidConfig(f"the schema is larger than {_LARGEST} bytes", path=path)
        content = Path(path).read_bytes()
        if Path(path).suffix == ".desc":
            return Schema(kind, "", descriptors=content)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
        raise InvalidConfig(f"cannot read the schema: {reason}", path=path) from error
    if kind == PROTOBUF:
        return Schema(kind, text, descriptors=_compiled(str(Path(path).parent), Path(path).name))
    return Schema(kind, text)


def _compiled(folder: str, name: str) -> bytes:
    """Compile a ``.proto`` in ``folder``. Returns the descriptors of its imports, then its own.

    Raises:
        InvalidConfig: the file does not compile, or an import is missing.
        EnvironmentUnfit: Protobuf's compiler is not installed.
    """
    tools = find_spec("grpc_tools")
    if tools is None or not tools.submodule_search_locations:
        raise missing_extra("a .proto file", "grpcio-tools", "protobuf", "give a .desc file")
    bundled = str(Path(tools.submodule_search_locations[0], "_proto"))
    with tempfile.TemporaryDirectory() as scratch:
        made, known = Path(scratch, "made.desc"), Path(scratch, "known")
        _lay_out(known, KNOWN_PROTOS)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{known}"]
        command += [f"-I{bundled}", "--include_imports", f"--descriptor_set_out={made}", name]
        try:
            told = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentUnfit(f"cannot run Protobuf's compiler: {error}") from error
        if told.returncode or not made.is_file():
            said = told.stderr.decode("utf-8", "replace").strip().splitlines()
            raise InvalidConfig(
                f"the schema cannot be compiled: {'; '.join(said[:3])}",
                path=str(Path(folder, name)),
            )
        return made.read_bytes()


def _lay_out(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


class SchemaSource:
    """Finds schemas by id and by subject. Safe to pickle; the cache is not pickled."""

    def __init__(self, place: str) -> None:
        self.address = place.rstrip("/")
        self._is_remote = place.startswith(("http://", "https://"))
        if not self._is_remote and not Path(place).is_dir():
            raise InvalidConfig(
                "schema_registry is not an existing folder",
                path=place,
                remedy="give an existing folder or a URL",
            )
        if "@" in urlsplit(place).netloc and self._is_remote:
            raise InvalidConfig(
                "schema_registry contains a user name or a password",
                remedy="remove them from the URL, and set the environment variable "
                f"{_USER}=user:password",
            )
        self._cached: dict[str, Schema] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cached": {}}

    def by_id(self, name: str) -> Schema:
        """The schema with this id, a number or a GUID.

        Raises:
            InvalidConfig: there is no such schema.
            RemoteFailed: the registry does not answer, or refuses the request.
        """
        path = f"/schemas/{'guids' if '-' in name else 'ids'}/{name}"
        return self._found(name, path, f"schema {name}")

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject. Raises the same errors as ``by_id``."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        return self._found(subject, path, f"subject {subject}")

    def _found(self, name: str, path: str, what: str) -> Schema:
        found = self._cached.get(name)
        if found is None:
            if self._is_remote:
                found = self._decode_answer(self._get(path, what))
            else:
                found = self._in_folder(name, what)
            self._cached[name] = found
        return found

    def _in_folder(self, name: str, what: str) -> Schema:
        for end in _OF_FILES:
            path = Path(self.address, name + end)
            if "/" not in name and path.is_file():
                return read_schema(str(path))
        raise InvalidConfig(
            f"the folder has no file for {what}",
            path=self.address,
            remedy=f"add the schema to this folder as {name} with one of the suffixes "
            f"{', '.join(_OF_FILES)}",
        )

    def _decode_answer(self, answer: dict[str, Any]) -> Schema:
        kind = str(answer.get("schemaType") or "AVRO").lower()
        text = answer.get("schema")
        if kind not in _OF_FILES.values() or not isinstance(text, str):
            raise InvalidConfig(
                f"Lastwrite does not support schemas of type {kind}", path=self.address
            )
        inner = self._references(answer)
        if kind == PROTOBUF:
            return Schema(kind, text, descriptors=self._compiled({**inner, _OWN: text}))
        return Schema(kind, text, tuple(dict.fromkeys(inner.values())))

    def _references(self, answer: Mapping[str, Any]) -> dict[str, str]:
        """The texts of the schemas that a schema refers to, directly or indirectly, by name.

        Each schema is after the schemas that it refers to.
        """
        found: dict[str, str] = {}
        for each in answer.get("references") or ():
            subject, version = quote(str(each["subject"]), safe=""), each["version"]
            path = f"/subjects/{subject}/versions/{version}"
            inner = self._get(path, f"subject {each['subject']}")
            if not isinstance(inner.get("schema"), str):
                raise InvalidConfig(f"subject {each['subject']} has no schema", path=self.address)
            found |= self._references(inner) | {str(each["name"]): inner["schema"]}
        return found

    def _compiled(self, texts: Mapping[str, str]) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            for name in texts:
                path = Path(folder, name)
                if ".." in path.parts or not path.is_relative_to(folder):
                    raise InvalidConfig(
                        f"the schema refers to {name}, which is not a valid name", path=self.address
                    )
            _lay_out(Path(folder), texts)
            try:
                return _compiled(folder, _OWN)
            except InvalidConfig as error:
                raise InvalidConfig(error.problem, path=self.address) from error

    def _get(self, path: str, what: str) -> dict[str, Any]:
        request = urllib.request.Request(self.address + path)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        user = os.environ.get(_USER)
        if user:
            coded = base64.b64encode(user.encode()).decode()
            request.add_header("Authorization", f"Basic {coded}")
        try:
            context = ssl.create_default_context() if self.address.startswith("https") else None
            with urllib.request.urlopen(request, timeout=_TIMEOUT, context=context) as answer:
                found = json.loads(answer.read(_LARGEST))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise InvalidConfig(
                    f"the registry does not have {what}", path=self.address
                ) from error
            raise RemoteFailed(
                f"the registry refused to return {what}: {error.code} {error.reason}",
                path=self.address,
                remedy=f"check the environment variable {_USER}"
                if error.code in (401, 403)
                else "run the command again later",
            ) from error
        except (OSError, ValueError) as error:
            raise RemoteFailed(
                f"no answer from the registry: {error}",
                path=self.address,
                remedy="run the command again later",
            ) from error
        if not isinstance(found, dict):
            raise RemoteFailed(
                "the answer does not have the format of Confluent's registry", path=self.address
            )
        return found
