"""The program ``lastwrite``, built from its commands."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lastwrite.cli.options import GROUPS, OUTPUT
from lastwrite.cli.output import Output

# The commands in the order of --help. A command's module and its function have the same name.
_COMMANDS = (
    "demo",
    "inspect",
    "settings",
    "plan",
    "compact",
    "clean",
    "release",
    "explain",
    "dump",
    "read",
    "verify",
    "fetch",
    "sweep",
    "table",
    "dispatch",
    "cut",
    "restore",
    "serve",
    "groups",
    "users",
    "send",
    "doctor",
    "completions",
    "schema",
)
COMPLETION = "_LASTWRITE_COMPLETE"  # environment variable by which a shell requests completions
_ENDS = ("min", "max")
_HELP = """Keep the last write of every key: compact logs of Kafka, RocketMQ and Pulsar, on Spark.

PATH is a log root (one of Kafka's log.dirs), a RocketMQ store (storePathRootDir), an archive (see
fetch), a partition folder or a single file. compact, plan, clean and fetch also take a live Pulsar
topic, persistent://tenant/namespace/topic.

Exit status: 0 done; 1 any other error; 2 wrong use; 3 the input is damaged, the rest was done;
4 another process uses the log; 5 verification failed.
"""


def build_app(output: Output, name: str = "") -> Any:
    """Build the program: a function of the arguments ``args``. Its commands print to ``output``.

    If ``name`` is a command, only this command is loaded. Otherwise, all commands are loaded.
    """
    completes = COMPLETION in os.environ
    app = typer.Typer(
        cls=_Program,
        help=_HELP,
        no_args_is_help=True,
        add_completion=completes,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 110,
            "obj": output,
        },
    )
    app.callback()(_program)
    for each in (name,) if name in _COMMANDS else _COMMANDS:
        module = import_module(f"lastwrite.cli.{each}")
        app.command(cls=_Command, epilog=module.EXAMPLES)(getattr(module, each))
    program: Any = typer.main.get_command(app)
    if completes:  # Typer adds two options, --install-completion and --show-completion
        program.params = [each for each in program.params if not each.name.endswith("_completion")]
    return program


class _Plain:
    """Converts a parameter's values to text, list of texts or number, without Pydantic.

    Typer converts all values with Pydantic. Loading Pydantic takes longer than most commands run.
    Pydantic is therefore only used for other types and for invalid values.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        kind = param.type_descriptor.annotation
        if kind is str and isinstance(value, str):
            return value
        if kind == list[str] and not isinstance(value, str):
            return list(value)
        if kind is int and isinstance(value, str) and value.isascii() and value.isdigit():
            least, most = (getattr(param.type_descriptor.parameter_info, end) for end in _ENDS)
            if (least is None or int(value) >= least) and (most is None or int(value) <= most):
                return int(value)
        del param.get_runtime_param  # Typer's own method again
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


class _Plainly:
    """Base class of commands and programs that convert their parameters without Pydantic."""

    def parse_args(self: Any, ctx: Any, args: list[str]) -> list[str]:
        for each in self.get_params(ctx):
            each.get_runtime_param = _Plain
        parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return parsed


class _Program(_Plainly, TyperGroup):
    pass


class _Command(_Plainly, TyperCommand):
    """A command whose help lists its options by group and ends with examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {each: [] for each in ("Arguments", *GROUPS)}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                group = "Arguments" if each.param_type_name == "argument" else OUTPUT
                groups[getattr(each, "rich_help_panel", None) or group].append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Examples"):
            for line in (self.epilog or "").strip().splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _print_version(asked: bool) -> None:
    if asked:
        from lastwrite.cli.versions import version_lines

        print(*version_lines(), sep="\n")
        raise typer.Exit


def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of Lastwrite, Python, Java and libraries, and stop.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    pass


_program.__doc__ = _HELP
