"""The command `vime-otel`: a group whose subcommands are imported only when called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from ..data import settings
from ..data.errors import VimeOtelError
from ..version import __version__
from .shadow import check_ours

INTERRUPTED = 130


@dataclass(frozen=True)
class _Subcommand:
    """A line of the help, and the generically named packages that must be ours before the import."""

    help: str
    packages: tuple[str, ...] = ()


# Each stands in the module of its name, as a click command of its name.
_SUBCOMMANDS = {
    "demo": _Subcommand("Record two real engines on this machine and show the result.", ("collector", "viewer")),
    "collect": _Subcommand("Record some steps on every engine and write a run.", ("collector",)),
    "serve": _Subcommand("Run the collector until it is stopped.", ("collector",)),
    "workers": _Subcommand("List the router's workers and their recorders.", ("collector",)),
    "profile": _Subcommand("Start or stop the torch profiler on every worker.", ("collector",)),
    "view": _Subcommand("Show the runs in the browser.", ("viewer",)),
    "top": _Subcommand("Print where the steps of a run spent their time."),
    "export": _Subcommand("Write a run's flame graph or folded stacks to a file.", ("viewer",)),
}


class _LazyGroup(click.Group):
    """Knows its subcommands by name; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        check_ours(_SUBCOMMANDS[cmd_name].packages)
        module = importlib.import_module(f"vime_otel.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in _SUBCOMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def vime_otel() -> None:
    """Shows where the engine steps of vLLM rollouts spend their time."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1, 2 (wrong usage) or 130 (interrupted)."""
    try:
        result = vime_otel.main(args=args, prog_name="vime-otel", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "vime-otel"
        return _fail(f"{error.format_message()} (`{path} --help` shows the usage)", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except VimeOtelError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has left; Python must not try to flush into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if settings.get(settings.DEBUG):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"{what} (this is a bug in vime-otel; {settings.DEBUG.name}=1 shows the traceback)", 1)
    return result if isinstance(result, int) else 0


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status
