"""A serving collector with little room for requests, as a process: `--out DIR --http HOST:PORT --grpc HOST:PORT`.

When it is terminated it leaves its counts beside DIR, in counts.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path

from collector.otlp import limits
from collector.server import Collector, CollectorConfig

PENDING_BYTES = 20 * 2**20
LONGEST_WAIT_S = 0.5


async def serve(runs: Path, http_port: int, grpc_port: int) -> None:
    """Until SIGTERM."""
    limits._LONGEST_WAIT_S = LONGEST_WAIT_S
    collector = Collector(
        CollectorConfig(
            runs, "test", grpc_port=grpc_port, http_port=http_port, serves=True, pending_bytes=PENDING_BYTES
        )
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await collector.start()
    await ended.wait()
    await collector.stop()
    counts = collector.counts
    content = {
        "accepted": sum(counts.accepted.values()),
        "kept": counts.kept["spans"],
        "refused": {reason: value for (_, _, reason), value in counts.refused.items()},
        "refusals": sum(counts.refused.values()),
        "pending": [counts.pending_bytes, counts.pending_requests],
    }
    (runs.parent / "counts.json").write_text(json.dumps(content))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--out", "--http", "--grpc"):
        parser.add_argument(option)
    given = parser.parse_args()
    ports = [int(place.rpartition(":")[2]) for place in (given.http, given.grpc)]
    asyncio.run(serve(Path(given.out), *ports))
