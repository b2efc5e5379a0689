"""`vime-otel analyze`: what torch traces tell, as a report and as flame graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import orjson

from ..analyze.beside import recorded_beside
from ..analyze.engines import Engine, group, rank_of
from ..analyze.names import find_traces, parse_name
from ..analyze.parallel import Progress, summarize_all
from ..analyze.report import Report, build
from ..analyze.summary import TraceSummary
from ..analyze.thresholds import TABLE, parse
from ..data.errors import VimeOtelError
from ..data.find_runs import runs_root
from .options import FOLDER, Text, runs_option
from .output import console, unfailing
from .output_file import write_output

_FORMATS = ("text", "json", "md", "html")
_THRESHOLDS = ", ".join(f"{threshold.name}={threshold.value:g}" for threshold in TABLE)


@click.command()
@click.option("--profile-dir", required=True, type=FOLDER, metavar="DIR", help="Folder of the traces, or one trace.")
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="N", help="Only this rank of every engine (default: the lowest)."
)
@click.option(
    "--all-ranks", is_flag=True, help="Every rank: each one's report, their table, and who makes others wait."
)
@click.option("--top-n", type=click.IntRange(min=1), default=15, show_default=True, help="Rows of each ranking.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True, help="What to write.")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to; `-` (the default) is stdout.")
@click.option("--baseline", type=FOLDER, metavar="DIR2", help="Traces to compare with.")
@click.option(
    "--threshold",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"From where on a finding is one: {_THRESHOLDS}.",
)
@click.option("--no-run", is_flag=True, help="Make no run of the flame graphs.")
@click.option("--label", type=Text(60), help="The run's label (default: torch-traces).")
@runs_option
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Files read at once (default: one a core).")
def analyze(
    profile_dir: str,
    rank: int | None,
    all_ranks: bool,
    top_n: int,
    form: str,
    output: str,
    baseline: str | None,
    settings: tuple[str, ...],
    no_run: bool,
    label: str | None,
    runs: str | None,
    jobs: int | None,
) -> int:
    """Report where the steps in torch profiler traces spent their time, and make a run of their flame graphs.

    Traces are found in DIR and below it: vLLM's, and those of any other torch program. Engines are told apart from
    ranks. The run opens with `vime-otel view`, `top`, `diff` and `export` like any other.
    """
    if rank is not None and all_ranks:
        raise click.UsageError("--rank names one rank and --all-ranks asks for all; give one of them")
    thresholds = parse(settings)
    paths = find_traces(Path(profile_dir))
    baseline_paths = find_traces(Path(baseline)) if baseline else []
    _check_output(output, (*paths, *baseline_paths))
    engines, unread = _engines(profile_dir, paths, rank, all_ranks, jobs)
    report = build(profile_dir, engines, thresholds, top_n, unread)
    report.recorded = recorded_beside(Path(profile_dir), engines, top_n)
    if baseline:
        from ..analyze.comparing import compare_engines

        before, unread_before = _engines(baseline, baseline_paths, rank, all_ranks, jobs)
        report.baseline = compare_engines(baseline, before, engines, top_n)
        report.baseline["unread"] = unread_before
        unread = unread + unread_before
    if not no_run:
        from ..analyze.runs import write

        beside = Path(report.recorded.run).name if report.recorded else None
        report.run = str(write(runs_root(runs), engines, label, beside))
    _write(report, form, output, all_ranks)
    _say_next(report, runs)
    return 1 if unread else 0


def _check_output(output: str, traces: Sequence[Path]) -> None:
    """Before traces are read for minutes. Raises VimeOtelError where the report can't go or would replace a trace."""
    if output == "-":
        return
    path = Path(output)
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else "there is no such folder"
        raise VimeOtelError(f"can't write {output}: {why}; name another file with -o")
    if path.exists() and any(trace.exists() and path.samefile(trace) for trace in traces):
        raise VimeOtelError(f"{output} is one of the traces; name another file with -o")


def _engines(
    directory: str, paths: Sequence[Path], rank: int | None, all_ranks: bool, jobs: int | None
) -> tuple[list[Engine], list[str]]:
    """(the engines below a folder with the ranks that were asked for, why files could not be read)."""
    chosen = paths if all_ranks else _of_rank(paths, rank)
    summaries: list[TraceSummary] = []
    unread: list[str] = []
    if chosen:
        with _progress(chosen) as progress:
            summaries, unread = summarize_all(chosen, jobs, progress)
    if rank is not None:
        summaries = [summary for summary in summaries if rank_of(summary) == rank]
    engines = group(summaries)
    if not all_ranks and rank is None:
        for engine in engines:
            del engine.traces[1:]
    if not engines:
        what = f"of rank {rank} " if rank is not None else ""
        raise VimeOtelError(f"no trace {what}in {directory} could be read: {'; '.join(unread) or 'other ranks only'}")
    return engines, unread


def _of_rank(paths: Sequence[Path], rank: int | None) -> list[Path]:
    """The files that may be of a rank, by their names: without a number, the lowest of each folder and prefix."""
    lowest: dict[tuple[Path, str, int], int] = {}
    named = [(path, parse_name(path.name)) for path in paths]
    for path, name in named:
        if "rank" in name.ranks:
            key = (path.parent, name.prefix, name.ranks.get("dp", 0))
            lowest[key] = min(lowest.get(key, name.ranks["rank"]), name.ranks["rank"])
    return [
        path
        for path, name in named
        if "rank" not in name.ranks
        or name.ranks["rank"] == (lowest[path.parent, name.prefix, name.ranks.get("dp", 0)] if rank is None else rank)
    ]


@contextmanager
def _progress(paths: Sequence[Path]) -> Iterator[Progress]:
    """A bar over the bytes of all files, where somebody can see it move."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    on_stderr = Console(file=unfailing(sys.stderr), highlight=False, markup=False, emoji=False)
    if not on_stderr.is_terminal:
        yield lambda path, count: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=on_stderr, transient=True) as bars:
        tasks = {path: bars.add_task(path.name[-60:], total=_size(path)) for path in paths}
        yield lambda path, count: bars.advance(tasks[path], count)


def _size(path: Path) -> int | None:
    """None where the file is gone meanwhile: whoever reads it says so."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _write(report: Report, form: str, output: str, all_ranks: bool) -> None:
    from ..analyze.layout import lay_out
    from ..analyze.rendering import html, markdown, print_text

    if form == "json":
        content = orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    elif form == "text" and output == "-":
        print_text(console(), lay_out(report, all_ranks))
        return
    else:
        sections = lay_out(report, all_ranks)
        content = (
            _text(sections) if form == "text" else markdown(sections) if form == "md" else html(sections)
        ).encode()
    if output == "-":
        click.echo(content.decode(), nl=False)
        return
    try:
        write_output(Path(output), content)
    except OSError as error:
        raise VimeOtelError(f"can't write {output}: {error.strerror}; name another file with -o") from error
    click.echo(f"wrote {output} ({len(content):,} bytes)", err=True)


def _text(sections: Sequence[Any]) -> str:
    import io

    from rich.console import Console

    from ..analyze.rendering import print_text

    file = io.StringIO()
    print_text(Console(file=file, width=200, highlight=False, emoji=False, markup=False, color_system=None), sections)
    return file.getvalue()


def _say_next(report: Report, runs: str | None) -> None:
    """Where the flame graphs are, on stderr: stdout is the report's."""
    if report.run:
        click.echo(f"run: {report.run}\nnext: vime-otel view{f' --runs {runs}' if runs else ''}", err=True)
