"""`vime-otel view`: the runs in the browser."""

from __future__ import annotations

import os
import re

import click

from ..data.errors import UsageError
from ..data.rundir import runs_root
from .options import runs_option


def host_name(text: str) -> str:
    """The name of a host, without a port; UsageError for anything else."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise UsageError(f"{text!r} is not a host's name such as viewer.lan")
    return text


@click.command()
@runs_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--insecure", is_flag=True, help="Listen beyond loopback, for whoever reaches the port.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    type=host_name,
    metavar="NAME",
    help="Answer to this host name, too; may be repeated.",
)
def view(runs: str | None, host: str, port: int, insecure: bool, allowed_hosts: tuple[str, ...]) -> None:
    """Show the runs in the browser, until Ctrl-C."""
    from viewer.serve import serve

    root = runs_root(runs)
    if os.path.exists(root) and not os.path.isdir(root):
        raise UsageError(f"{root} is not a folder; name the folder of the runs with --runs")

    def on_ready(url: str) -> None:
        click.echo(f"showing {root} at {url} (Ctrl-C ends it)")
        if not os.path.exists(root):
            click.echo(f"{root} does not exist yet; runs appear once `vime-otel collect` has made some there")

    serve(root, host, port, on_ready=on_ready, allowed_hosts=allowed_hosts, insecure=insecure)
