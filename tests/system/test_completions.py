"""Tests of ``lastwrite completions``: the shells themselves complete words with the scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lastwrite.cli

_BIN = str(Path(sys.executable).parent)
_COMMANDS = ["compact", "completions"]


def completed_by(shell: str, script: str, home: Path) -> list[str]:
    """The words that ``shell`` prints when it runs ``script``, with ``home`` as the home folder."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "HOME": str(home), "PATH": f"{_BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        [shell, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_bash_completes_commands_options_and_leaves_files_to_itself(tmp_path: Path) -> None:
    script = """
        eval "$(lastwrite completions bash)"
        ask() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _lastwrite_completion lastwrite; }
        ask lastwrite comp; echo "${COMPREPLY[*]}"
        ask lastwrite plan --topic-config-; echo "${COMPREPLY[*]}"
        ask lastwrite plan PATH; echo "${COMPREPLY[*]}"
        complete -p lastwrite
    """
    assert completed_by("bash", script, tmp_path) == [
        " ".join(_COMMANDS),
        "--topic-config-file",
        "",
        "complete -o default -F _lastwrite_completion lastwrite",
    ]


def test_fish_completes_commands_from_a_file(tmp_path: Path) -> None:
    script = """
        mkdir -p ~/.config/fish/completions
        lastwrite completions fish > ~/.config/fish/completions/lastwrite.fish
        complete -C "lastwrite comp" | string split --fields 1 \\t
        complete -C "lastwrite completions " | string split --fields 1 \\t
    """
    assert completed_by("fish", script, tmp_path) == [*_COMMANDS, "bash", "fish", "zsh"]


def test_zsh_completes_commands_from_a_file_at_the_first_key(tmp_path: Path) -> None:
    script = """
        mkdir ~/.zfunc; lastwrite completions zsh > ~/.zfunc/_lastwrite
        zmodload zsh/zpty
        zpty shell 'TERM=dumb zsh -f -i'
        zpty -w shell 'PS1=; fpath+=~/.zfunc; autoload -Uz compinit; compinit -u; echo read''y'
        zpty -r shell heard '*ready*ready*'
        zpty -w -n shell $'lastwrite completions f\\t'
        zpty -r shell heard '*completions fish *' && echo completed
    """
    assert completed_by("zsh", script, tmp_path) == ["completed"]


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert lastwrite.cli.run(["completions", "tcsh"]) == 2
    assert "give one of: bash, zsh, fish" in capsys.readouterr().err
