"""`vime-otel serve`: the collector as a long-running process."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import replace

import click

from collector.server import Collector, CollectorConfig

from ..data import settings
from .collector_options import Place, collector_config, collector_options
from .signals import Interrupts


@click.command()
@collector_options
def serve(grpc: Place, http: Place, out: str | None, insecure: bool) -> int:
    """Run the collector until Ctrl-C, SIGTERM or SIGHUP.

    `vime-otel collect --collector URL` asks it for recordings.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    return asyncio.run(_serve(replace(collector_config(grpc, http, out, insecure), samples=True)))


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
        "put into the engines' environment (for vime: into the Ray runtime env's env_vars):",
        f"  {settings.COLLECTOR.name}={collector.url}",
    ]
    if collector.config.token:
        lines.append(f"  {settings.TOKEN.name}=<the token that was given to this process>")
    lines.append(f"next: vime-otel collect --collector {collector.url}")
    return lines
