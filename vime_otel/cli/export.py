"""`vime-otel export`: a run's flame graph or folded stacks as a file."""

from __future__ import annotations

from pathlib import Path

import click

from ..data import folded
from ..data.errors import VimeOtelError
from ..data.recording import KINDS
from ..data.rundir import RunDirectory, find_run, runs_root
from .options import by_layer_option, run_argument, runs_option
from .output_file import write_output
from .tables import warn_of_skipped_lines


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
@by_layer_option
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to; `-` (the default) is stdout.")
def export(run: str, runs: str | None, kind: str, form: str, by_layer: bool, output: str) -> None:
    """Write the flame graph or the folded stacks of RUN to a file.

    RUN is a path, the beginning of an id or of a folder's name, or `latest`.
    """
    directory = find_run(runs_root(runs), run)
    if form == "svg":
        text = _svg(directory, kind, by_layer)
    else:
        text = folded.dumps(directory.self_us(kind, by_layer=by_layer))
    warn_of_skipped_lines(directory, [kind], by_layer=by_layer)
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        write_output(Path(output), text.encode())
    except OSError as error:
        raise VimeOtelError(f"can't write {output}: {error.strerror}; name another file with -o") from error
    if not Path(output).is_file():  # a pipe or a device, maybe our own stdout
        return
    opener = "open it in a browser" if form == "svg" else f"flamegraph.pl {output} > {output}.svg"
    click.echo(f"wrote {output} ({len(text.encode()):,} bytes)\nnext: {opener}")


def _svg(directory: RunDirectory, kind: str, by_layer: bool) -> str:
    from viewer.svg import render_svg

    self_us = directory.self_us(kind, by_layer=by_layer)
    if not any(self_us.values()):
        raise VimeOtelError(
            f"the {kind} steps of {directory.path.name} took no measurable time, so there is nothing to draw;"
            " `--format folded` writes their stacks"
        )
    title = f"{kind} steps of {directory.path.name}{' by layer' if by_layer else ''}"
    return render_svg(self_us, directory.calls(kind, by_layer=by_layer), directory.steps[kind], title)
