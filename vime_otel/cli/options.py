"""Options and arguments that several subcommands share."""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from ..data import settings
from ..data.errors import UsageError
from ..data.urls import is_http_url, shown, without_user

if TYPE_CHECKING:
    from collector.doctor.train_log import TrainLog

_Command = TypeVar("_Command", bound=Callable[..., Any])
_MOST_WORKERS = 1_000_000
_LOG = "vime_otel.train_log"
DEFAULT_COLLECTOR = "http://127.0.0.1:4318"


def clean_url(text: str) -> str:
    """The URL without a trailing slash and `/v1`, `http://` put before a bare host:port; UsageError for no URL."""
    from collector.addresses import server_url

    url = server_url(text)
    if not is_http_url(url):
        raise UsageError(f"{without_user(text)!r} is not a URL such as http://127.0.0.1:3521")
    return url


class Seconds(click.FloatRange):
    """A finite number of seconds within a range."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; click's own range lets NaN through."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return seconds


class Text(click.types.StringParamType):
    """A text that can be passed on: valid UTF-8, not empty, not too long."""

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it was given."""
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not valid UTF-8.", param, ctx)
        if not text.strip() or len(text) > self._most:
            self.fail(f"it must have 1 to {self._most} characters.", param, ctx)
        return text


FOLDER = Text(4000)


def engine_options(command: _Command) -> _Command:
    """`--router`, `--log`, `--worker`, `--limit`: which engines a command reaches.

    Where nothing else names engines, the router that the log names is the command's `router`;
    `named_log` has the log.
    """

    @functools.wraps(command)
    def with_log(*args: Any, log: str | None, router: str | None, workers: tuple[str, ...], **kwargs: Any) -> Any:
        if log is not None:
            found = read_log(log)
            click.get_current_context().meta[_LOG] = found
            router = router if router or workers else found.router_url
        return command(*args, router=router, workers=workers, **kwargs)

    log = click.option("--log", type=FOLDER, metavar="FILE", help="A training log; the last router in it is meant.")
    return place_options(log(cast(_Command, with_log)))


def place_options(command: _Command) -> _Command:
    """`--router`, `--worker`, `--limit` alone."""
    for option in (
        click.option("--limit", type=click.IntRange(1, _MOST_WORKERS), metavar="N", help="Only the first N workers."),
        click.option(
            "--worker", "workers", multiple=True, type=clean_url, metavar="URL", help="A worker; may be repeated."
        ),
        click.option("--router", type=clean_url, metavar="URL", help="The router whose workers are meant."),
    ):
        command = option(command)
    return command


def collector_option(command: _Command) -> _Command:
    """`--collector URL`: one that runs; None where the setting or DEFAULT_COLLECTOR is meant."""
    return click.option(
        "--collector",
        type=clean_url,
        metavar="URL",
        help=f"A running collector (default: ${settings.COLLECTOR.name}, or {DEFAULT_COLLECTOR}).",
    )(command)


def named_log() -> TrainLog | None:
    """The training log that the running command was given."""
    found: TrainLog | None = click.get_current_context().meta.get(_LOG)
    return found


def read_log(path: str) -> TrainLog:
    """The training log at a path."""
    from collector.doctor.train_log import read_train_log

    return read_train_log(Path(path))


def engine_arguments(router: str | None, workers: Sequence[str], limit: int | None) -> str:
    """The same options as one would type them, for another command; without passwords."""
    from collector.addresses import without_rank

    words = ["--router", shown(router)] if router else []
    for worker in dict.fromkeys(map(without_rank, workers)):
        words += ["--worker", shown(worker)]
    if limit:
        words += ["--limit", str(limit)]
    return shlex.join(words)


def run_argument(command: _Command) -> _Command:
    """A RUN argument: `latest`, the beginning of an id, a folder's name or a path."""
    return click.argument("run", default="latest", metavar="[RUN]")(command)


def runs_option(command: _Command) -> _Command:
    """`--runs DIR`: where the run directories are; passed on as given, or None."""
    return click.option(
        "--runs", type=FOLDER, metavar="DIR", help=f"Folder of the runs (default: ${settings.RUNS.name}, or ./runs)."
    )(command)


def by_layer_option(command: _Command) -> _Command:
    """`--by-layer`: the model's layers one by one."""
    return click.option(
        "--by-layer", is_flag=True, help="Layer by layer, where RUN was recorded with `collect --per-layer`."
    )(command)


def json_option(command: _Command) -> _Command:
    """`--json`: machine-readable output, alone on stdout; errors too (see main.py)."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
