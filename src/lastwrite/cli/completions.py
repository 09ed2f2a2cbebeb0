"""``lastwrite completions``: prints a script that lets a shell complete words with the Tab key."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Annotated

import typer

from lastwrite.cli.app import COMPLETION, build_app
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig

_SHELLS = ("bash", "zsh", "fish")
# When zsh loads the script from a file, the first Tab only defines its function.
_ON_FIRST_KEY = "[[ $funcstack[1] != _lastwrite ]] || _lastwrite_completion"

EXAMPLES = """
lastwrite completions bash > ~/.local/share/bash-completion/completions/lastwrite
lastwrite completions zsh > ~/.zfunc/_lastwrite   # in fpath, before compinit
lastwrite completions fish > ~/.config/fish/completions/lastwrite.fish
"""


def completions(
    context: typer.Context,
    shell: Annotated[
        str,
        typer.Argument(
            metavar="SHELL", help="bash, zsh or fish.", autocompletion=lambda: list(_SHELLS)
        ),
    ],
) -> int:
    """Print a script that completes words in a shell.

    Write the script to a file that the shell loads, as in the examples. Until then, completions
    are available after `eval "$(lastwrite completions bash)"`, also with zsh, and after
    `lastwrite completions fish | source`.
    """
    if shell not in _SHELLS:
        raise InvalidConfig(
            f"no completions for the shell {shell!r}", remedy=f"give one of: {', '.join(_SHELLS)}"
        )
    output: Output = context.obj
    printed = io.StringIO()
    os.environ[COMPLETION] = f"source_{shell}"
    try:
        # Typer ends the process after it has printed the script.
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(printed):
            build_app(output)(args=[], prog_name="lastwrite")
    finally:
        del os.environ[COMPLETION]
    script = printed.getvalue().strip().splitlines()  # zsh reads #compdef only in the first line
    output.text([*script, _ON_FIRST_KEY] if shell == "zsh" else script)
    return 0
