"""The commands, joined into one program."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastwrite.cli.clean import clean
from lastwrite.cli.compact import compact
from lastwrite.cli.cut import cut
from lastwrite.cli.demo import demo
from lastwrite.cli.dispatch import dispatch
from lastwrite.cli.doctor import doctor
from lastwrite.cli.dump import dump
from lastwrite.cli.explain import explain
from lastwrite.cli.fetch import fetch
from lastwrite.cli.inspect import inspect
from lastwrite.cli.output import Output
from lastwrite.cli.plan import plan
from lastwrite.cli.read import read
from lastwrite.cli.release import release
from lastwrite.cli.restore import restore
from lastwrite.cli.schema import schema_command
from lastwrite.cli.send import send
from lastwrite.cli.settings import settings
from lastwrite.cli.verify import verify

_HELP = """Keep the last write of every key: compact the logs of Kafka, RocketMQ and Pulsar, on Spark.

PATH is a log root (what Kafka's broker calls log.dirs), a RocketMQ store (storePathRootDir) or an archive of Pulsar
topics (see fetch), one partition's folder or one file. compact, plan, clean and fetch take a live Pulsar topic, too:
persistent://tenant/namespace/topic.
Exit status: 0 done; 2 wrong use; 3 input damaged, the rest was done; 4 held by someone else;
5 verification failed; 1 anything else.
"""


def build_app(output: Output) -> Any:
    """The program as a callable that takes ``args``, and whose commands speak through ``output``."""
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
    commands = (
        demo,
        inspect,
        settings,
        plan,
        compact,
        clean,
        release,
        explain,
        dump,
        read,
        verify,
        fetch,
        dispatch,
        cut,
        restore,
        send,
        doctor,
    )
    for command in commands:
        app.command()(command)
    app.command("schema")(schema_command)
    return typer.main.get_command(app)


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
