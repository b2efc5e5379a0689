"""`collect --torch-profile`: vLLM's torch profiles of the same engines, into the same run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from collector.recordings.messages import RecordingRequest
from collector.torch_profiles.profile_session import PROMPT, ProfilePlan, ProfileResult
from collector.torch_profiles.trace_run import write_profile_run
from collector.worker_filter import WorkerFilter

from ..data.errors import UsageError, VimeOtelError
from ..data.run_files import HEADER_FILE
from ..version import __version__
from .options import FOLDER
from .profile import new_session_id, profile_workers, trace_folder
from .profile_options import MOST_ITERATIONS

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Profiled:
    """What came of it."""

    result: ProfileResult
    manifest: dict[str, Any]


@dataclass(frozen=True)
class TorchProfile:
    """What was asked for: so many engine steps, traces in `trace_dir`."""

    trace_dir: Path
    iterations: int

    def check(self, request: RecordingRequest) -> None:
        """Raise what would keep it from being done, before anything is recorded."""
        if not request.router and not request.workers:
            raise UsageError("--torch-profile asks workers: name them with --log FILE, --router URL or --worker URL")
        if not self.trace_dir.is_dir():
            raise UsageError(
                f"{self.trace_dir} is no folder here; name the engines' torch_profiler_dir, as this machine sees it,"
                " with --trace-dir DIR"
            )

    def profile(self, request: RecordingRequest, run: Path) -> Profiled:
        """Profile the workers of a recording that is over, and gather the traces into its run."""
        if not (run / HEADER_FILE).is_file():
            raise VimeOtelError(
                f"the run lies on the collector's machine ({run}); profile with `vime-otel profile run` here, or"
                " collect there"
            )
        plan = ProfilePlan(
            session=new_session_id(),
            trace_dir=self.trace_dir,
            iterations=self.iterations,
            requests=request.requests,
            prompt=request.prompt or PROMPT,
        )
        wanted = WorkerFilter(limit=request.limit)
        result = profile_workers(plan, request.router, tuple(request.workers), wanted)
        assert result is not None  # it was no dry run
        _, manifest = write_profile_run(run, run.parent, plan, result, __version__)
        return Profiled(result, manifest)


def torch_options(command: _Command) -> _Command:
    """`--torch-profile`, `--trace-dir`, `--iterations`; passed on as `torch`, or None."""

    @functools.wraps(command)
    def with_torch(*args: Any, torch_profile: bool, trace_dir: str | None, iterations: int, **others: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        for name in ("trace_dir", "iterations"):
            if not torch_profile and source(name) is ParameterSource.COMMANDLINE:
                raise UsageError(f"--{name.replace('_', '-')} is of torch profiles; say --torch-profile, too")
        torch = TorchProfile(trace_folder(trace_dir), iterations) if torch_profile else None
        return command(*args, torch=torch, **others)

    wrapped = cast(_Command, with_torch)
    for option in (
        click.option(
            "--iterations",
            type=click.IntRange(1, MOST_ITERATIONS),
            default=5,
            show_default=True,
            help="Steps of these profiles.",
        ),
        click.option(
            "--trace-dir",
            type=FOLDER,
            metavar="DIR",
            help="The engines' torch_profiler_dir as this machine sees it (default: what --log says).",
        ),
        click.option(
            "--torch-profile",
            is_flag=True,
            help="Then run vLLM's torch profiler on the same workers, into the same run.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped
