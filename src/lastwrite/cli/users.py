"""``lastwrite users``: manages the users of ``lastwrite serve`` and their permissions."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig

EXAMPLES = """
lastwrite users /etc/lastwrite/users --add alice --topic 'orders-*' --group billing
lastwrite users /etc/lastwrite/users --remove alice
"""


def users(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="FILE", help="The file of users.")],
    add: Annotated[
        str | None,
        options.option(
            "--add NAME", "Add a user, or change the password of an existing one.", options.ACTION
        ),
    ] = None,
    remove: Annotated[
        str | None,
        options.option("--remove NAME", "Remove a user and all its permissions.", options.ACTION),
    ] = None,
    topic: Annotated[
        list[str] | None,
        options.option(
            "--topic NAME",
            "A topic that the user can read, or a prefix that ends with *; may be repeated.",
            options.ACTION,
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        options.option(
            "--group NAME",
            "A group that the user can join, or a prefix that ends with *; may be repeated.",
            options.ACTION,
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        options.option(
            "--mechanism NAME",
            "A mechanism that the user can log in with: PLAIN, SCRAM-SHA-256, SCRAM-"
            "SHA-512; default: any.",
            options.ACTION,
        ),
    ] = None,
    json: options.Json = False,
) -> int:
    """Manage the users of serve and their permissions.

    The file is the one of "lastwrite serve --users FILE". The password is read from the terminal,
    or from the first line of standard input. The file does not contain it, only data to verify
    it. A running server uses the changed file at once.

    Without --add and --remove, the contents of the file are printed.
    """
    import lastwrite

    output: Output = context.obj
    if add is not None and remove is not None:
        raise InvalidConfig("--add and --remove exclude each other", remedy="run two commands")
    found = lastwrite.users(
        path,
        add=add,
        remove=remove,
        password=None if add is None else _password(add),
        topic=topic,
        group=group,
        mechanism=mechanism,
    )
    if output.as_json:
        output.document(found)
    else:
        output.text(
            [
                *(f"{each['name']}: {', '.join(each['mechanisms'])}" for each in found["users"]),
                *(
                    f"{each['principal']} {each['permission'].lower()} "
                    f"{each['operation']} {each['resource']} {each['name']}"
                    + ("*" if each["pattern"] == "PREFIXED" else "")
                    for each in found["acls"]
                ),
            ]
        )
    return 0


def _password(user: str) -> str:
    """Read the password from the terminal or from the first line of standard input.

    Raises:
        InvalidConfig: the two typed passwords differ.
    """
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        import getpass

        password = getpass.getpass(f"Password of {user}: ")
        if password != getpass.getpass("Repeat the password: "):
            raise InvalidConfig("the two passwords differ", remedy="run the command again")
    return password
