"""`vime-otel export`: what is shown of a run, as a file."""

from __future__ import annotations

from pathlib import Path

import click

from ..data.errors import VimeOtelError
from ..data.rundir import find_run, runs_root
from .options import by_layer_option, run_argument, runs_option
from .output_file import write_output
from .selecting import kind_option, rank_option, select, steps_option
from .tables import warn_of_skipped

_FORMATS = ("svg", "html", "folded", "speedscope", "csv", "json")


@click.command()
@run_argument
@runs_option
@kind_option
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="svg",
    show_default=True,
    help="What to write; `html` is a page of its own, with search and zoom.",
)
@rank_option
@steps_option
@by_layer_option
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to; `-` (the default) is stdout.")
def export(
    run: str,
    runs: str | None,
    kind: str | None,
    form: str,
    rank: str | None,
    steps: tuple[int, int] | None,
    mixed: str,
    by_layer: bool,
    output: str,
) -> None:
    """Write the flame graph or the stacks of RUN to a file.

    RUN is a path, the beginning of an id or of a folder's name, or `latest`.
    """
    from viewer.exports import EXPORTS
    from viewer.view import View

    selected = select(find_run(runs_root(runs), run), kind, rank, by_layer, steps, mixed)
    content = EXPORTS[form].write(View(selected))
    warn_of_skipped(selected)
    if output == "-":
        click.echo(content.decode(), nl=False)
        return
    try:
        write_output(Path(output), content)
    except OSError as error:
        raise VimeOtelError(f"can't write {output}: {error.strerror}; name another file with -o") from error
    if not Path(output).is_file():  # a pipe or a device, maybe our own stdout
        return
    opener = EXPORTS[form].opener.replace("{}", output)
    click.echo(f"wrote {output} ({len(content):,} bytes)\nnext: {opener}")
