"""The users file: credentials and permissions as JSON, which may be edited by hand.

    {"users": {"alice": {"PLAIN": "n=16384,r=8,p=1,salt=…,hash=…",
                         "SCRAM-SHA-256": "iterations=16384,salt=…,stored_key=…,server_key=…"}},
     "acls":  [{"principal": "User:alice", "operation": "READ", "resource": "TOPIC",
                "name": "orders-", "pattern": "PREFIXED"}]}

Passwords cannot be recovered from the file: it contains a server's keys for SCRAM, and a slow hash
for PLAIN. A rule may also have ``permission`` (``ALLOW`` or ``DENY``) and ``host`` (``*`` or an
address).

Source: Kafka 4.4 ``ScramFormatter``, ``AclBinding``; RFC 5802, RFC 7914.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from lastwrite.errors import InvalidConfig
from lastwrite.kafka.network.scram import decode_base64, hash_of, keys_of
from lastwrite.kafka.rules.serve_settings import MECHANISMS
from lastwrite.server.acls import ANYWHERE, AclEntry, Operation, ResourceType
from lastwrite.storage import files, ownership

TURNS = 16_384  # number of SCRAM iterations: the maximum that Kafka's tool accepts
_LEAST_TURNS, _MOST_TURNS = 4096, 10_000_000
# parameters of scrypt, with which a hash takes 16 MiB and about 40 ms
COST, BLOCK, PARALLEL = 1 << 14, 8, 1
_MOST_MEMORY = 128 << 20
_SALT_BYTES = 16
_RULE = {"principal", "operation", "resource", "name", "pattern", "permission", "host"}


class ScramKeys(NamedTuple):
    """The keys by which a server verifies a password with SCRAM."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, mechanism: str, password: str) -> ScramKeys:
        hash_name, salt = hash_of(mechanism), secrets.token_bytes(_SALT_BYTES)
        client_key, server_key = keys_of(hash_name, password.encode(), salt, TURNS)
        return cls(salt, TURNS, hashlib.new(hash_name, client_key).digest(), server_key)

    def __repr__(self) -> str:
        return "ScramKeys(…)"


class SlowHash(NamedTuple):
    """The scrypt hash by which a server verifies a password with PLAIN."""

    salt: bytes
    cost: int
    block: int
    parallel: int
    hash: bytes

    @classmethod
    def of(cls, password: str, salt: bytes | None = None) -> SlowHash:
        made = cls(salt or secrets.token_bytes(_SALT_BYTES), COST, BLOCK, PARALLEL, b"")
        return made._replace(hash=made.hashed(password.encode()))

    def hashed(self, password: bytes) -> bytes:
        """Hash ``password`` with this object's parameters.

        Needs 128 * cost * block bytes of memory.
        """
        return hashlib.scrypt(
            password,
            salt=self.salt,
            n=self.cost,
            r=self.block,
            p=self.parallel,
            maxmem=_MOST_MEMORY,
            dklen=32,
        )

    def __repr__(self) -> str:
        return "SlowHash(…)"


@dataclass(frozen=True, slots=True)
class User:
    """The credentials of a user. ``scram`` has the keys by mechanism."""

    scram: Mapping[str, ScramKeys] = field(default_factory=dict)
    plain: SlowHash | None = None

    @classmethod
    def of(cls, password: str, mechanisms: Sequence[str] = MECHANISMS) -> User:
        scram = {each: ScramKeys.of(each, password) for each in mechanisms if each != "PLAIN"}
        return cls(scram, SlowHash.of(password) if "PLAIN" in mechanisms else None)

    @property
    def mechanisms(self) -> list[str]:
        return sorted([*self.scram, *(["PLAIN"] if self.plain else [])])


@dataclass(frozen=True, slots=True)
class Users:
    """The contents of the users file: users by name, and ACLs."""

    users: Mapping[str, User] = field(default_factory=dict)
    rules: tuple[AclEntry, ...] = ()


def read_users(path: str) -> Users:
    """Read the users file.

    Raises:
        InvalidConfig: the file cannot be read or is invalid. The message names the part but not
            its value, which may be a secret.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidConfig(
            f"the users file cannot be read: {why}",
            path=path,
            remedy=f"create it with lastwrite users {path} --add NAME",
        ) from error
    try:
        return decode_users(text)
    except InvalidConfig as error:
        raise error.located(path) from error


def write_users(path: str, users: Users) -> None:
    """Replace the users file atomically.

    A new file is readable by its owner only. An existing one keeps its owner and permissions.

    Raises:
        LogError: the folder cannot be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        like = ownership.of(path)
    except FileNotFoundError:
        like = replace(ownership.of_new(folder), mode=0o600, attributes=(), is_required=False)
    except OSError as error:
        raise files.to_log_error(error, path, "read the file's owner") from error
    files.replace(path, encode_users(users).encode(), like=like)
    files.fsync_dir(folder)


def decode_users(text: str) -> Users:
    """Decode the text of a users file.

    Raises:
        InvalidConfig: the text is invalid. The message names the part but not its value.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _wrong(f"it is not JSON{where}") from error
    fields = _object(document, "it", {"users", "acls"})
    users = {
        name: _user(each, f"user {name!r}") for name, each in _entries(fields.get("users", {}))
    }
    acls = fields.get("acls", [])
    if not isinstance(acls, list):
        raise _wrong('"acls" is not a list')
    return Users(users, tuple(_rule(each, f"rule {n}") for n, each in enumerate(acls, 1)))


def encode_users(users: Users) -> str:
    """Encode users and ACLs as the text of a users file."""
    document = {
        "users": {
            name: {
                **({} if each.plain is None else {"PLAIN": _encode_hash(each.plain)}),
                **{kind: _encode_keys(keys) for kind, keys in sorted(each.scram.items())},
            }
            for name, each in sorted(users.users.items())
        },
        "acls": [_encode_rule(each) for each in users.rules],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------------- its parts


def _user(value: Any, what: str) -> User:
    fields = _object(value, what, set(MECHANISMS))
    scram = {
        kind: _keys(text, f"{kind} of {what}") for kind, text in fields.items() if kind != "PLAIN"
    }
    return User(scram, _hash(fields["PLAIN"], f"PLAIN of {what}") if "PLAIN" in fields else None)


def _keys(value: Any, what: str) -> ScramKeys:
    fields = _fields(value, what, "iterations", "salt", "stored_key", "server_key")
    turns = _number(fields["iterations"], what, _LEAST_TURNS, _MOST_TURNS)
    keys = ScramKeys(
        _bytes(fields["salt"], what),
        turns,
        _bytes(fields["stored_key"], what),
        _bytes(fields["server_key"], what),
    )
    if len({len(keys.stored_key), len(keys.server_key), _size_for(what)}) != 1:
        raise _wrong(f"{what}: its keys must have {_size_for(what)} bytes")
    return keys


def _size_for(what: str) -> int:
    return 64 if what.startswith("SCRAM-SHA-512") else 32


def _hash(value: Any, what: str) -> SlowHash:
    fields = _fields(value, what, "n", "r", "p", "salt", "hash")
    cost = _number(fields["n"], what, 1 << 10, 1 << 20)
    block, parallel = _number(fields["r"], what, 1, 64), _number(fields["p"], what, 1, 16)
    if cost & (cost - 1) or 128 * cost * block >= _MOST_MEMORY:
        raise _wrong(f"{what}: n is not a power of two, or needs too much memory")
    return SlowHash(
        _bytes(fields["salt"], what), cost, block, parallel, _bytes(fields["hash"], what)
    )


def _rule(value: Any, what: str) -> AclEntry:
    fields = _object(value, what, _RULE)
    for name, text in fields.items():
        if not isinstance(text, str) or not text:
            raise _wrong(f"{what}: {name} is not a string")
    for name in ("principal", "operation", "resource", "name"):
        if name not in fields:
            raise _wrong(f"{what} has no {name}")
    if not fields["principal"].startswith("User:"):
        raise _wrong(f"{what}: its principal does not begin with User:")
    return AclEntry(
        fields["principal"],
        Operation[_one_of(fields["operation"], Operation.__members__, what)],
        ResourceType[_one_of(fields["resource"], ResourceType.__members__, what)],
        fields["name"],
        _one_of(fields.get("pattern", "LITERAL"), ("LITERAL", "PREFIXED"), what) == "PREFIXED",
        _one_of(fields.get("permission", "ALLOW"), ("ALLOW", "DENY"), what) == "ALLOW",
        fields.get("host", ANYWHERE),
    )


def _encode_rule(rule: AclEntry) -> dict[str, str]:
    said = {
        "principal": rule.principal,
        "operation": rule.operation.name,
        "resource": rule.kind.name,
        "name": rule.name,
    }
    said |= {"pattern": "PREFIXED"} if rule.is_prefix else {}
    said |= {} if rule.allows else {"permission": "DENY"}
    return said | ({} if rule.host == ANYWHERE else {"host": rule.host})


def _encode_keys(keys: ScramKeys) -> str:
    return (
        f"iterations={keys.iterations},salt={_text(keys.salt)},"
        f"stored_key={_text(keys.stored_key)},server_key={_text(keys.server_key)}"
    )


def _encode_hash(hash: SlowHash) -> str:
    return (
        f"n={hash.cost},r={hash.block},p={hash.parallel},"
        f"salt={_text(hash.salt)},hash={_text(hash.hash)}"
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _object(value: Any, what: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is not an object")
    others = sorted(value.keys() - names)
    if others:
        raise _wrong(
            f"{what} has the unknown field {others[0]!r}; allowed are {', '.join(sorted(names))}"
        )
    return value


def _entries(value: Any) -> Sequence[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _wrong('"users" is not an object')
    for name in value:
        check_name(name)
    return list(value.items())


def check_name(name: str) -> None:
    """Check that ``name`` is a valid user name.

    Raises:
        InvalidConfig: ``name`` is not a valid user name.
    """
    if not name or len(name) > 249 or any(ord(each) < 32 for each in name):
        raise _wrong("a user name is empty, too long or has control characters")


def _fields(value: Any, what: str, *names: str) -> dict[str, str]:
    parts = value.split(",") if isinstance(value, str) else []
    said = dict(part.split("=", 1) for part in parts if "=" in part)
    if set(said) != set(names):
        raise _wrong(f"{what} is not {','.join(f'{name}=…' for name in names)}")
    return said


def _number(text: str, what: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
        raise _wrong(f"{what}: a number is not between {low:,} and {high:,}")
    return int(text)


def _bytes(text: str, what: str) -> bytes:
    try:
        found = decode_base64(text)
    except ValueError:
        found = b""
    if not found:
        raise _wrong(f"{what}: a value is not base64")
    return found


def _one_of(text: str, names: Any, what: str) -> str:
    if text.upper() not in names:
        raise _wrong(f"{what} has a value other than {', '.join(names)}")
    return text.upper()


def _wrong(why: str) -> InvalidConfig:
    return InvalidConfig(
        f"the users file is invalid: {why}",
        remedy="create a valid file with lastwrite users FILE --add NAME; docs/guide/serve.md "
        "describes the format",
    )
