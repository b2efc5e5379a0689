"""`vime-otel top`: where the steps of a run spent their time."""

from __future__ import annotations

import click

from ..data.recording import KINDS
from ..data.rundir import find_run, runs_root
from .options import by_layer_option, json_option, run_argument, runs_option
from .output import console, print_json
from .tables import print_summary, summary_as_dict


@click.command()
@run_argument
@runs_option
@click.option("--kind", type=click.Choice(KINDS), help="Only steps of this kind.")
@click.option("--rank", metavar="ENGINE-RANK", help="One rank, unaveraged; a folder's name below ranks/.")
@click.option("--limit", type=click.IntRange(min=1), default=25, show_default=True, help="Frames per kind.")
@by_layer_option
@json_option
def top(
    run: str, runs: str | None, kind: str | None, rank: str | None, limit: int, by_layer: bool, as_json: bool
) -> None:
    """Print where the steps of RUN spent their time.

    RUN is a path, the beginning of an id or of a folder's name, or `latest`.
    """
    directory = find_run(runs_root(runs), run)
    kinds = [kind] if kind else []
    if as_json:
        print_json(summary_as_dict(directory, limit, kinds, rank, by_layer))
        return
    out = console()
    print_summary(out, directory, limit, kinds, rank, by_layer)
    out.print()
    out.print(f"run: {directory.path}", soft_wrap=True)
    out.print(f"next: vime-otel view{f' --runs {runs}' if runs else ''}", soft_wrap=True)
