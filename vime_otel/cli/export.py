"""`vime-otel export`: what is shown of a run, as a file."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from ..data.errors import UsageError, VimeOtelError
from ..data.find_runs import find_run, runs_root
from ..data.perfetto import perfetto_trace
from ..data.run_files import JOURNAL_FILE
from ..data.rundir import RunDirectory
from .options import by_layer_option, run_argument, runs_option
from .output_file import write_output
from .selecting import kind_option, rank_option, select, steps_option
from .tables import warn_of_skipped

_FORMATS = ("svg", "html", "folded", "speedscope", "csv", "json")
_PERFETTO = "perfetto"
_OF_A_VIEW = ("kind", "rank", "steps", "mixed", "by_layer")


@click.command()
@run_argument
@runs_option
@kind_option
@click.option(
    "--format",
    "form",
    type=click.Choice((*_FORMATS, _PERFETTO)),
    default="svg",
    show_default=True,
    help="What to write; `html` is a page of its own, `perfetto` a timeline of all recorded steps.",
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
    found = find_run(runs_root(runs), run)
    if form == _PERFETTO:
        content, opener = _timeline(found), "open it at https://ui.perfetto.dev"
    else:
        from viewer.exports import EXPORTS
        from viewer.view import View

        selected = select(found, kind, rank, by_layer, steps, mixed)
        content, opener = EXPORTS[form].write(View(selected)), EXPORTS[form].opener
        warn_of_skipped(selected)
    if output == "-":
        click.echo(content if form == _PERFETTO else content.decode(), nl=False)
        return
    try:
        write_output(Path(output), content)
    except OSError as error:
        raise VimeOtelError(f"can't write {output}: {error.strerror}; name another file with -o") from error
    if not Path(output).is_file():  # a pipe or a device, maybe our own stdout
        return
    click.echo(f"wrote {output} ({len(content):,} bytes)\nnext: {opener.replace('{}', output)}")


def _timeline(run: RunDirectory) -> bytes:
    """All spans of a run as a Perfetto trace."""
    source = click.get_current_context().get_parameter_source
    for name in _OF_A_VIEW:
        if source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} is not of --format perfetto, which holds all recorded steps")
    return b"".join(perfetto_trace(run.path / JOURNAL_FILE))
