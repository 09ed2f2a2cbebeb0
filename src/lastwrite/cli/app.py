"""The commands, joined into one program."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from lastwrite.cli.output import Output

# Each is a module of this package and its function, in the order of --help.
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
    "schema",
)
_HELP = """Keep the last write of every key: compact the logs of Kafka, RocketMQ and Pulsar, on Spark.

PATH is a log root (what Kafka's broker calls log.dirs), a RocketMQ store (storePathRootDir) or an archive of Pulsar
topics (see fetch), one partition's folder or one file. compact, plan, clean and fetch take a live Pulsar topic, too:
persistent://tenant/namespace/topic.
Exit status: 0 done; 2 wrong use; 3 input damaged, the rest was done; 4 held by someone else;
5 verification failed; 1 anything else.
"""


def build_app(output: Output, name: str = "") -> Any:
    """The program as a callable that takes ``args``, and whose commands speak through ``output``.

    ``name``: the command that is asked for, of which alone is loaded; all where it is none.
    """
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
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
        app.command(cls=_Command)(getattr(import_module(f"lastwrite.cli.{each}"), each))
    return typer.main.get_command(app)


class _Command(TyperCommand):
    """A command whose help lists what concerns one system only after the rest, under its name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            group = "Arguments" if each.param_type_name == "argument" else "Options"
            if record is not None:
                group = getattr(each, "rich_help_panel", None) or group
                groups.setdefault(group, []).append(record)
        for group in (*list(groups)[:2], *sorted(list(groups)[2:])):
            if groups[group]:
                with formatter.section(group):
                    formatter.write_dl(groups[group])


def _say_version(asked: bool) -> None:
    if asked:
        import lastwrite

        print(f"lastwrite {lastwrite.__version__}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", is_eager=True, callback=_say_version
        ),
    ] = False,
) -> None:
    pass


_program.__doc__ = _HELP
