"""`vime-otel diff`: what changed between two runs, ranks or ranges of steps."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from ..data.compare import LEAST_SHARE, Change, Comparison, compare
from ..data.errors import UsageError
from ..data.find_runs import find_run, runs_root
from ..data.recording import in_order
from ..data.rundir import RunDirectory
from ..data.selection import MIXED, NotInRun, read_range
from .options import by_layer_option, json_option, runs_option
from .output import console, print_json
from .selecting import kind_option, select, steps_told


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@runs_option
@kind_option
@click.option("--rank", metavar="ENGINE-RANK", help="One rank or engine, of both sides.")
@click.option("--rank-b", metavar="ENGINE-RANK", help="Another one of B.")
@click.option("--steps", type=read_range, metavar="A-B", help="Only steps A to B, of both sides.")
@click.option("--steps-b", type=read_range, metavar="A-B", help="Other ones of B.")
@click.option("--mixed", type=click.Choice(MIXED), default="in", show_default=True, help="Steps that do both.")
@by_layer_option
@click.option("--limit", type=click.IntRange(min=1), default=25, show_default=True, help="Frames of each table.")
@json_option
def diff(
    a: str,
    b: str | None,
    runs: str | None,
    kind: str | None,
    rank: str | None,
    rank_b: str | None,
    steps: tuple[int, int] | None,
    steps_b: tuple[int, int] | None,
    mixed: str,
    by_layer: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Print what changed from run A to run B, of each kind of step that both have.

    Without B, ranks or steps of the same run are compared: --rank X --rank-b Y, or --steps 0-9 --steps-b 10-19.
    """
    if b is None and rank_b is None and steps_b is None:
        raise UsageError("compared with what? name a second run, or give --rank-b or --steps-b")
    root = runs_root(runs)
    run_a, run_b = find_run(root, a), find_run(root, b or a)
    kinds = [kind] if kind else in_order(set(run_a.steps) & set(run_b.steps))
    if not kinds:
        raise UsageError(f"the runs have no kind of step in common: {', '.join(run_a.steps)}; {', '.join(run_b.steps)}")
    found = []
    for each in kinds:
        side_a = select(run_a, each, rank, by_layer, steps, mixed)
        side_b = select(run_b, each, rank_b or rank, by_layer, steps_b or steps, mixed)
        if kind or (side_a.steps and side_b.steps):
            found.append(compare(side_a, side_b, (run_a.path.name, run_b.path.name)))
    if not found:
        raise NotInRun("no kind has steps of both sides that fit this choice; choose other steps")
    if as_json:
        print_json({"a": str(run_a.path), "b": str(run_b.path), "kinds": [each.as_dict() for each in found]})
        return
    out = console()
    for comparison in found:
        _print(out, comparison, limit)
    out.print(f"A: {_side(run_a, rank, steps)}\nB: {_side(run_b, rank_b or rank, steps_b or steps)}", soft_wrap=True)
    out.print("next: vime-otel view", soft_wrap=True)


def _side(run: RunDirectory, rank: str | None, steps: tuple[int, int] | None) -> str:
    return f"{run.path}{f', rank {rank}' if rank else ''}{f', {steps_told(steps)}' if steps else ''}"


def _print(out: Console, comparison: Comparison, most: int) -> None:
    out.print(comparison.summary, soft_wrap=True, style="bold")
    for load in comparison.loads:
        verb = "alike" if load.alike else "differ"
        out.print(f"{load.name}: {load.a[1]:g} in A, {load.b[1]:g} in B (medians), {verb}", soft_wrap=True)
    for note in comparison.notes:
        out.print(f"note: {note}", soft_wrap=True)
    shown = [change for change in comparison.changes if change.beyond_noise]
    for title, state in (("changed", "changed"), ("appeared in B", "appeared"), ("vanished in B", "vanished")):
        members = [change for change in comparison.changes if change.state == state]
        if members:
            out.print(f"\n{title}: {len(members)}", style="bold")
            out.print(_table(members[:most]))
    if comparison.changes:
        rest = sum(not change.beyond_noise for change in comparison.changes)
        limit = "no further than the noise" if comparison.noise_known else f"by less than {LEAST_SHARE:.1%} of the step"
        out.print(f"{rest} of {rest + len(shown)} frames moved {limit}")
    out.print()


def _table(changes: list[Change]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("frame", no_wrap=True, max_width=70)
    for heading in ("A ms/step", "B ms/step", "change", "relative", "noise"):
        table.add_column(heading, justify="right", no_wrap=True)
    for change in changes:
        table.add_row(
            change.frame,
            f"{change.a_us / 1000:.3f}",
            f"{change.b_us / 1000:.3f}",
            f"{change.delta_us / 1000:+.3f}",
            f"{change.delta_us / change.a_us:+.1%}" if change.a_us else "new",
            "–" if change.noise_us is None else f"± {change.noise_us / 1000:.3f}",
        )
    return table
