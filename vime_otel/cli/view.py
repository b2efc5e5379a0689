"""`vime-otel view`: the runs in the browser."""

from __future__ import annotations

import click

from ..data.rundir import runs_root
from .options import runs_option


@click.command()
@runs_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
def view(runs: str | None, host: str, port: int) -> None:
    """Show the runs in the browser, until Ctrl-C."""
    from viewer.serve import serve

    root = runs_root(runs)

    def on_ready(url: str) -> None:
        click.echo(f"showing {root} at {url} (Ctrl-C ends it)")

    serve(root, host, port, on_ready)
