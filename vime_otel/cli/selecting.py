"""The options that say which steps of a run a command means, and what they select."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..data.rundir import RunDirectory
from ..data.selection import MIXED, Selected, Selection, read_range

_Command = TypeVar("_Command", bound=Callable[..., Any])


def kind_option(command: _Command) -> _Command:
    """`--kind`: one kind of step; the run's first where it is not given."""
    return click.option("--kind", metavar="KIND", help="Only steps of this kind: decode, prefill.")(command)


def steps_option(command: _Command) -> _Command:
    """`--steps` and `--mixed`: a range of steps, and what becomes of those that prefill and decode."""
    for option in (
        click.option(
            "--mixed",
            type=click.Choice(MIXED),
            default="in",
            show_default=True,
            help="Steps that prefill and decode: among the others, left out, or alone.",
        ),
        click.option("--steps", type=read_range, metavar="A-B", help="Only steps A to B, by their index."),
    ):
        command = option(command)
    return command


def rank_option(command: _Command) -> _Command:
    """`--rank`: one rank or one engine."""
    return click.option(
        "--rank", metavar="ENGINE-RANK", help="One rank, unaveraged (a folder's name below ranks/), or an engine's id."
    )(command)


def steps_told(steps: tuple[int, int]) -> str:
    """A range of steps for people: `step 3`, `steps 3 to 9`."""
    first, last = steps
    return f"step {first}" if first == last else f"steps {first} to {last}"


def select(
    run: RunDirectory,
    kind: str | None,
    rank: str | None = None,
    by_layer: bool = False,
    steps: tuple[int, int] | None = None,
    mixed: str = "in",
) -> Selected:
    """What the options mean of a run."""
    return Selected(run, Selection(kind or next(iter(run.steps), "decode"), rank, by_layer, steps, mixed))
