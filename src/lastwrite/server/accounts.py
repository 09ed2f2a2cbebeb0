"""``users``: change the users file of ``serve``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lastwrite.errors import InvalidConfig
from lastwrite.kafka.rules.serve_settings import MECHANISMS
from lastwrite.server.acls import AclEntry, Operation, ResourceType
from lastwrite.server.users import User, Users, check_name, read_users, write_users


def users(
    path: str,
    *,
    add: str | None = None,
    remove: str | None = None,
    password: str | None = None,
    topic: str | Sequence[str] | None = None,
    group: str | Sequence[str] | None = None,
    mechanism: str | Sequence[str] | None = None,
) -> dict[str, Any]:
    """Change the users and permissions of ``serve``. Returns the new contents of the file.

    Args:
        path: the users file. Adding a user creates it if it does not exist.
        add: a user. An existing user gets the new password and keeps its permissions.
        remove: a user, removed together with its rules.
        password: the password of the user in ``add``.
        topic: topics that the user may also read. A name that ends in ``*`` is a prefix.
        group: consumer groups that the user may also use. A name that ends in ``*`` is a prefix.
        mechanism: the SASL mechanisms for the password. None means all supported mechanisms.

    Returns:
        ``users``, a list of names with their mechanisms, and ``acls``, the rules of the file.

    Raises:
        InvalidConfig: the file or a name is invalid, or the password is missing.
        LogError: the file cannot be written.
    """
    is_new = add is not None and not os.path.exists(path)
    known = Users() if is_new else read_users(path)
    if add is not None:
        known = _added(known, add, password, _listed(mechanism) or MECHANISMS)
        known = _allowed(known, add, _listed(topic), _listed(group))
    elif topic or group or mechanism or password:
        raise InvalidConfig(
            "a topic, group, mechanism or password is given, but no user",
            remedy="give the user's name with --add NAME",
        )
    if remove is not None:
        known = _removed(known, remove, path)
    if add is not None or remove is not None:
        write_users(path, known)
    return {
        "users": [
            {"name": name, "mechanisms": each.mechanisms}
            for name, each in sorted(known.users.items())
        ],
        "acls": [
            {
                "principal": rule.principal,
                "permission": "ALLOW" if rule.allows else "DENY",
                "operation": rule.operation.name,
                "resource": rule.kind.name,
                "name": rule.name,
                "pattern": "PREFIXED" if rule.is_prefix else "LITERAL",
                "host": rule.host,
            }
            for rule in known.rules
        ],
    }


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _added(users: Users, name: str, password: str | None, mechanisms: Sequence[str]) -> Users:
    check_name(name)
    if not password:
        raise InvalidConfig(
            f"no password is given for user {name}",
            remedy="enter the password at the prompt, or pipe it as one line to standard input",
        )
    for each in mechanisms:
        if each not in MECHANISMS:
            raise InvalidConfig(
                f"unknown mechanism {each}", remedy=f"give one of: {', '.join(MECHANISMS)}"
            )
    return Users({**users.users, name: User.of(password, mechanisms)}, users.rules)


def _allowed(users: Users, user: str, topics: Sequence[str], groups: Sequence[str]) -> Users:
    rules = list(users.rules)
    for kind, names in ((ResourceType.TOPIC, topics), (ResourceType.GROUP, groups)):
        for name in names:
            is_prefix = name.endswith("*") and name != "*"
            plain = name[:-1] if is_prefix else name
            rule = AclEntry(f"User:{user}", Operation.READ, kind, plain, is_prefix)
            if rule not in rules:
                rules.append(rule)
    return Users(users.users, tuple(rules))


def _removed(users: Users, name: str, path: str) -> Users:
    if name not in users.users:
        raise InvalidConfig(
            f"there is no user {name}",
            path=path,
            remedy=f"list the users with lastwrite users {path}",
        )
    left = {each: user for each, user in users.users.items() if each != name}
    return Users(left, tuple(rule for rule in users.rules if rule.principal != f"User:{name}"))
