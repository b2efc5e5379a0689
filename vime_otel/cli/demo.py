"""`vime-otel demo`: the whole path on this machine, with real engines."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from ..data import settings
from ..data.errors import VimeOtelError
from ..data.find_runs import runs_root
from .options import runs_option
from .signals import all_like_ctrl_c

_FILES = Path(".demo")
_NEEDED = ("vllm", "vllm_router", "tokenizers")


@click.command()
@runs_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="The viewer's port; a free one where it is taken.",
)
@click.option(
    "--exit",
    "exit_at_end",
    is_flag=True,
    envvar="DEMO_EXIT",
    help="End once the viewer answers (also DEMO_EXIT=1).",
)
@all_like_ctrl_c()
def demo(runs: str | None, port: int, exit_at_end: bool) -> int:
    """Start two vLLM engines on the CPU behind a router, record them, and show the run.

    Takes about a minute, two CPU cores and 8 GB of memory. Logs and the model go to ./.demo.
    """
    from ..demo.ports import free_port, is_free
    from ..demo.stack import EngineStack
    from ..demo.viewing import wait_for_viewer

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise VimeOtelError(
            f"the demo needs {', '.join(missing)} in this environment; `make demo` in a clone installs all of it"
        )
    root = runs_root(runs)
    http_port = free_port()
    env = {settings.COLLECTOR.name: f"http://127.0.0.1:{http_port}"}
    with EngineStack(_FILES, env=env, say=click.echo) as stack:
        asyncio.run(_warm_up(stack.worker_urls))
        status = _collect(stack.router_url, http_port, root)
    if status != 0:
        return status
    with wait_for_viewer(root, port if is_free(port) else 0, _FILES / "viewer.log") as viewer:
        click.echo(f"\nthe run is shown at {viewer.url}")
        if not exit_at_end:
            click.echo("Ctrl-C ends the viewer")
            with contextlib.suppress(KeyboardInterrupt):
                viewer.wait()
    return 0


async def _warm_up(worker_urls: Sequence[str]) -> None:
    """Let every engine answer a few requests, so that what is recorded are not its first, slow ones."""
    from collector.http_client import new_session
    from collector.traffic import send_completions

    async with new_session() as session:
        results = await asyncio.gather(*(send_completions(session, url, 4, "warm up", 8) for url in worker_urls))
    for result in results:
        if result.failed:
            raise VimeOtelError(f"an engine does not answer ({'; '.join(result.reasons)}); see the logs in {_FILES}")


def _collect(router_url: str, http_port: int, root: Path) -> int:
    """Run `vime-otel collect`, its output going to ours; returns its exit status."""
    command = ["collect", "--router", router_url, "--requests", "4", "--steps", "20", "--out", str(root)]
    addresses = ["--http", f"127.0.0.1:{http_port}", "--grpc", "127.0.0.1:0"]
    click.echo(f"$ vime-otel {' '.join(command)}")
    return subprocess.run([sys.executable, "-m", "vime_otel", *command, *addresses], check=False).returncode
