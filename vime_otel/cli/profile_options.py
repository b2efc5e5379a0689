"""Options of `vime-otel profile`: which workers, and what a start says."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from collector.torch_profiles.torch_profiler import READ_SINCE
from collector.worker_filter import WorkerFilter

from ..data.errors import UsageError
from .options import Seconds, Text

_Command = TypeVar("_Command", bound=Callable[..., Any])
MOST_SECONDS = 86_400
MOST_ITERATIONS = 1_000_000
_SHORT_TEXT = 200
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def filter_options(command: _Command) -> _Command:
    """`--worker-type`, `--model`, `--only-healthy/--all`, with `--limit`; passed on as `wanted`."""

    @functools.wraps(command)
    def with_filter(
        *args: Any,
        worker_types: tuple[str, ...],
        models: tuple[str, ...],
        only_healthy: bool,
        limit: int | None,
        **others: Any,
    ) -> Any:
        return command(*args, wanted=WorkerFilter(worker_types, models, only_healthy, limit), **others)

    wrapped = cast(_Command, with_filter)
    for option in (
        click.option("--dry-run", is_flag=True, help="Only show who would be asked."),
        click.option(
            "--only-healthy/--all",
            "only_healthy",
            default=True,
            show_default=True,
            help="Pass over workers that are not healthy, or ask them, too.",
        ),
        click.option(
            "--model",
            "models",
            multiple=True,
            type=Text(_SHORT_TEXT),
            metavar="NAME",
            help="Only workers that serve this model; may be repeated.",
        ),
        click.option(
            "--worker-type",
            "worker_types",
            multiple=True,
            type=Text(_SHORT_TEXT),
            metavar="TYPE",
            help="Only regular, prefill or decode workers; may be repeated.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


def filter_arguments(wanted: WorkerFilter) -> str:
    """The same filter as one would type it for another command, but for the limit."""
    words = [word for each in wanted.worker_types for word in ("--worker-type", each)]
    words += [word for each in wanted.models for word in ("--model", each)]
    return shlex.join(words if wanted.only_healthy else [*words, "--all"])


stop_timeout_option = click.option(
    "--stop-timeout",
    type=Seconds(0.1, MOST_SECONDS),
    default=1800.0,
    show_default=True,
    help="Seconds for a worker to write its trace in; a long one takes minutes.",
)


def start_options(command: _Command) -> _Command:
    """What a start says, and how long it may take."""
    since = ".".join(map(str, READ_SINCE["max_iterations"]))
    for option in (
        stop_timeout_option,
        click.option(
            "--timeout",
            type=Seconds(0.1, MOST_SECONDS),
            default=60.0,
            show_default=True,
            help="Seconds for a worker to start in.",
        ),
        click.option("--restart", is_flag=True, help="End a profile that is running already: it may be a colleague's."),
        click.option(
            "--max-seconds",
            type=Seconds(1, MOST_SECONDS),
            default=60.0,
            show_default=True,
            help="Stop after so long where vLLM does not bound the profile by itself, or `run` still waits for work.",
        ),
        click.option(
            "--profiler-kwargs",
            type=_json_object,
            metavar="JSON",
            help=f"Arguments of torch.profiler.profile (vLLM {'.'.join(map(str, READ_SINCE['profiler_kwargs']))} on).",
        ),
        click.option(
            "--delay",
            "delay_iterations",
            type=click.IntRange(0, MOST_ITERATIONS),
            metavar="N",
            help=f"Steps to let pass first (vLLM {since} on).",
        ),
        click.option(
            "--iterations",
            type=click.IntRange(1, MOST_ITERATIONS),
            default=5,
            show_default=True,
            help=f"Steps to profile (vLLM {since} on; before, the server's own max_iterations counts).",
        ),
    ):
        command = option(command)
    return command


def trace_prefix(text: str) -> str:
    """A prefix as vLLM takes it; UsageError for any other."""
    if not _PREFIX.fullmatch(text):
        raise UsageError(
            f"--prefix {text!r:.60} is none: at most 128 letters, digits, `.`, `_` and `-`, the first a letter or digit"
        )
    return text


def _not_json(constant: str) -> Any:
    raise ValueError(constant)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"--profiler-kwargs takes a JSON object such as '{{\"with_stack\": false}}', not {text!r:.60}")
    return value
