"""`vime-otel top`: where the steps of a run spent their time."""

from __future__ import annotations

import click

from ..data.find_runs import find_run, runs_root
from .options import by_layer_option, json_option, run_argument, runs_option
from .output import console, print_json
from .selecting import kind_option, rank_option, select, steps_option
from .tables import print_summary, summary_as_dict


@click.command()
@run_argument
@runs_option
@kind_option
@rank_option
@steps_option
@click.option("--limit", type=click.IntRange(min=1), default=25, show_default=True, help="Frames per kind.")
@by_layer_option
@json_option
def top(
    run: str,
    runs: str | None,
    kind: str | None,
    rank: str | None,
    steps: tuple[int, int] | None,
    mixed: str,
    limit: int,
    by_layer: bool,
    as_json: bool,
) -> None:
    """Print where the steps of RUN spent their time.

    RUN is a path, the beginning of an id or of a folder's name, or `latest`.
    """
    directory = find_run(runs_root(runs), run)
    kinds = [kind] if kind else list(directory.steps)
    chosen = [select(directory, each, rank, by_layer, steps, mixed) for each in kinds]
    if not kind and steps:  # of all kinds, those that the range holds
        chosen = [each for each in chosen if each.rows] or chosen
    if as_json:
        print_json(summary_as_dict(directory, limit, chosen))
        return
    out = console()
    print_summary(out, directory, limit, chosen)
    out.print()
    out.print(f"run: {directory.path}", soft_wrap=True)
    out.print(f"next: vime-otel view{f' --runs {runs}' if runs else ''}", soft_wrap=True)
