"""`vime-otel serve`: the collector as a long-running process."""

from __future__ import annotations

import asyncio
import re
import signal
from dataclasses import replace

import click

from collector.logs import write_log
from collector.server import Collector, CollectorConfig

from ..data import settings
from ..data.errors import UsageError
from .collector_options import collector_options
from .signals import Interrupts

_SIZE = re.compile(r"([0-9]{1,15})(?:([KMGT])(?:i?B)?)?", re.IGNORECASE)
_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def disk_size(text: str) -> int:
    """Bytes from a size such as `500M` or `2TiB` (powers of 1024); UsageError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if not found or not int(found[1]):
        raise UsageError(f"{text!r} is no size such as 50G (K, M, G, T: powers of 1024)")
    return int(found[1]) * _FACTORS[(found[2] or "").upper()]


@click.command()
@collector_options
@click.option(
    "--max-disk",
    type=disk_size,
    metavar="SIZE",
    help="Remove the oldest runs beyond this size (such as 50G), but none that is being recorded or has a `keep` file.",
)
def serve(config: CollectorConfig, max_disk: int | None) -> int:
    """Run the collector until Ctrl-C, SIGTERM or SIGHUP.

    `vime-otel collect --collector URL` asks it for recordings.
    """
    headers = [value for endpoint in config.forward for _, value in endpoint.headers]
    write_log([config.token, settings.get(settings.ROUTER_KEY), *headers])
    return asyncio.run(_serve(replace(config, serves=True, max_disk=max_disk)))


async def _serve(config: CollectorConfig) -> int:
    collector = Collector(config)
    with Interrupts() as interrupts:
        await collector.start()
        try:
            for line in _greeting(collector):
                click.echo(line)
            caught = await interrupts.wait()
        finally:
            await collector.stop()
    return 130 if caught == signal.SIGINT else 0


def _greeting(collector: Collector) -> list[str]:
    lines = [
        f"collector: {collector.url} (OTLP over HTTP, control), {collector.grpc_address} (OTLP over gRPC)",
        f"runs: {collector.config.runs_root.absolute()}",
        *(f"forwarding to: {each.endpoint.url}" for each in collector.forwarders),
        "put into the engines' environment (for vime: into the Ray runtime env's env_vars):",
        f"  {settings.COLLECTOR.name}={collector.url}",
    ]
    if collector.config.token:
        lines.append(f"  {settings.TOKEN.name}=<the token that was given to this process>")
    if collector.config.tls:
        lines.append(f"  {settings.CA.name}=<file of the authority that signed {collector.config.tls.certificate}>")
    lines.append(f"next: vime-otel collect --collector {collector.url}")
    return lines
