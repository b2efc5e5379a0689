"""The command `vime-otel`: a group whose subcommands are imported only when called."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ..data import settings
from ..data.errors import VimeOtelError
from ..version import __version__
from .shadow import check_ours

INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())  # of click 8.2


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
    "profile": _Subcommand("Run the torch profiler on every worker.", ("collector",)),
    "doctor": _Subcommand("Say what keeps engines from being profiled or recorded.", ("collector",)),
    "analyze": _Subcommand("Report what torch profiler traces tell, and make flame graphs of them."),
    "view": _Subcommand("Show the runs in the browser.", ("viewer",)),
    "top": _Subcommand("Print where the steps of a run spent their time."),
    "diff": _Subcommand("Print what changed between two runs, ranks or ranges of steps."),
    "replay": _Subcommand("Send a run's spans to an OTLP endpoint.", ("collector",)),
    "export": _Subcommand("Write a run's flame graph or its stacks to a file.", ("viewer",)),
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
    words = list(sys.argv[1:] if args is None else args)
    _prepare_streams()
    try:
        result = vime_otel.main(args=words, prog_name="vime-otel", standalone_mode=False)
        sys.stdout.flush()
    except _NO_ARGUMENTS as error:
        error.show()
        return int(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED, words, prefix="")
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _called(words)
        return _fail(f"{error.format_message()} (`{path} --help` shows the usage)", error.exit_code, words)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code, words)
    except VimeOtelError as error:
        return _fail(str(error), error.exit_code, words, getattr(error, "details", {}))
    except BrokenPipeError:
        _give_up_stdout()  # its reader has left
        return 1
    except OSError as error:
        if error.filename is not None:
            return _fail(f"{error.filename}: {error.strerror}", 1, words)
        if error.errno not in _NO_ROOM:
            return _bug(error, words)
        _give_up_stdout()
        return _fail(f"can't write the output: {error.strerror}", 1, [])
    except Exception as error:  # noqa: BLE001 - told in one line
        return _bug(error, words)
    return result if isinstance(result, int) else 0


def _prepare_streams() -> None:
    """Where a shell has closed them (`>&-`), Python has None, and a command could not even tell nobody.

    And what the locale's encoding lacks becomes a question mark: none of ours is worth failing for.
    """
    if sys.stdout is None or sys.stderr is None:
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _give_up_stdout() -> None:
    """Write no more to stdout: Python would try to flush it at the end, and complain."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _called(words: Sequence[str]) -> str:
    """The subcommand that was typed, `vime-otel profile start`."""
    command: click.Command | None = vime_otel
    path = ["vime-otel"]
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
        if command is None:
            break
        path.append(word)
    return " ".join(path)


def _bug(error: Exception, words: Sequence[str]) -> int:
    if settings.get(settings.DEBUG):
        raise error
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return _fail(f"{what} (this is a bug in vime-otel; {settings.DEBUG.name}=1 shows the traceback)", 1, words)


def _fail(
    message: str, status: int, words: Sequence[str], details: Mapping[str, Any] | None = None, prefix: str = "error: "
) -> int:
    """One line on stderr; where JSON was asked for, an object with the error on stdout, too."""
    message = message.encode(errors="backslashreplace").decode()
    with contextlib.suppress(OSError):
        print(f"{prefix}{message}", file=sys.stderr, flush=True)
    if "--json" in words:
        from .output import print_json

        with contextlib.suppress(OSError):
            print_json({**(details or {}), "error": {"message": message}})
    return status
