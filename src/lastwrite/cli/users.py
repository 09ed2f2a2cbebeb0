"""``lastwrite users``: who may read what from ``lastwrite serve``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig


def users(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="FILE", help="The file of users.")],
    add: Annotated[
        str | None,
        options.option("--add NAME", "A user; one that is there gets another password."),
    ] = None,
    remove: Annotated[
        str | None, options.option("--remove NAME", "A user, with all that he may.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        options.option(
            "--topic NAME",
            "A topic that the user may read, or with * at its end those that begin so; repeatable.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        options.option(
            "--group NAME", "A group in which he may read, or those that begin so; repeatable."
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        options.option(
            "--mechanism NAME",
            "By which he may show his password: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; default: any.",
        ),
    ] = None,
    json: options.Json = False,
) -> int:
    """Write who may read from "lastwrite serve --users FILE", and what.

    The password is asked for, or is the first line of what is piped in. It is not kept: the file
    has what proves it. A server that runs takes the file as it is from then on.

    Without --add and --remove what the file says is shown.
    """
    import lastwrite

    output: Output = context.obj
    if add is not None and remove is not None:
        raise InvalidConfig("--add and --remove are two changes", remedy="make one at a time")
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
    """
    Raises:
        InvalidConfig: there is none, or it was typed differently.
    """
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        import getpass

        password = getpass.getpass(f"Password of {user}: ")
        if password != getpass.getpass("Once more: "):
            raise InvalidConfig("the two passwords differ", remedy="type it again")
    return password
