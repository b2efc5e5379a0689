"""`vime-otel export`: a run's flame graph or folded stacks as a file."""

from __future__ import annotations

from pathlib import Path

import click

from ..data import folded
from ..data.errors import VimeOtelError
from ..data.recording import KINDS
from ..data.rundir import RunDirectory, find_run, runs_root, write_atomically
from .options import run_argument, runs_option


@click.command()
@run_argument
@runs_option
@click.option("--kind", type=click.Choice(KINDS), default="decode", show_default=True, help="Which steps.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("svg", "folded")),
    default="svg",
    show_default=True,
    help="What to write.",
)
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to; `-` (the default) is stdout.")
def export(run: str, runs: str | None, kind: str, form: str, output: str) -> None:
    """Write the flame graph or the folded stacks of RUN to a file.

    RUN is a path, the beginning of an id, or `latest`.
    """
    directory = find_run(runs_root(runs), run)
    text = _svg(directory, kind) if form == "svg" else folded.dumps(directory.self_us(kind))
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        write_atomically(Path(output), text.encode())
    except OSError as error:
        raise VimeOtelError(f"can't write {output}: {error.strerror}; name another file with -o") from error
    opener = "open it in a browser" if form == "svg" else f"flamegraph.pl {output} > {output}.svg"
    click.echo(f"wrote {output} ({len(text.encode()):,} bytes)\nnext: {opener}")


def _svg(directory: RunDirectory, kind: str) -> str:
    from viewer.svg import render_svg

    steps = directory.steps.get(kind, 0)
    title = f"{kind} steps of {directory.path.name}"
    return render_svg(directory.self_us(kind), directory.calls(kind), steps, title)
