"""`vime-otel view`: the runs in the browser."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from ..data.errors import UsageError
from ..data.find_runs import runs_root
from ..data.trace_link import parse_trace_link
from .options import runs_option
from .signals import all_like_ctrl_c


def host_name(text: str) -> str:
    """The name of a host, without a port; UsageError for anything else."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise UsageError(f"{text!r} is not a host's name such as viewer.lan")
    return text


def base_path(text: str) -> str:
    """A path such as /vime; UsageError for anything else."""
    from viewer.base_path import clean

    return clean(text)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@runs_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--insecure", is_flag=True, help="Ask nobody for a token, also beyond loopback.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    type=host_name,
    metavar="NAME",
    help="Answer to this host name, too; may be repeated.",
)
@click.option(
    "--base-path", default="", type=base_path, metavar="PATH", help="Below this path of a proxy, such as /vime."
)
@click.option(
    "--trace-link",
    default="",
    type=lambda text: parse_trace_link(text) if text else "",
    metavar="URL",
    help="Where a step's trace opens: a URL with {trace_id} in it.",
)
def view(
    files: tuple[Path, ...],
    runs: str | None,
    host: str,
    port: int,
    insecure: bool,
    allowed_hosts: tuple[str, ...],
    base_path: str,
    trace_link: str,
) -> None:
    """Show the runs in the browser, until Ctrl-C or SIGTERM.

    FILEs are shown besides: folded stacks (UTF-8 or UTF-16), speedscope JSON, or what `vime-otel export` wrote as
    html, folded, speedscope, csv or json.
    """
    from viewer.serve import Place, serve

    root = runs_root(runs)
    if os.path.exists(root) and not os.path.isdir(root):
        raise UsageError(f"{root} is not a folder; name the folder of the runs with --runs")

    def on_ready(url: str) -> None:
        what = ", ".join(str(file) for file in files) or str(root)
        click.echo(f"showing {what} at {url} (Ctrl-C ends it)")
        if not files and not os.path.exists(root):
            click.echo(f"{root} does not exist yet; runs appear once `vime-otel collect` has made some there")

    place = Place(host, port, allowed_hosts, base_path, insecure)
    with all_like_ctrl_c():
        serve(root, place, on_ready=on_ready, files=files, trace_link=trace_link)
