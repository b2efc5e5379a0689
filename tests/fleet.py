"""A fleet of stand-in workers in a process of its own: `python fleet.py BEHAVIOUR:COUNT …`.

Prints one JSON line, {"urls": {behaviour: [URL, …]}}, then serves until standard input ends; at `report` on standard
input it prints {"starts": [monotonic seconds at which each start came in]}. Raw sockets: a thousand frameworks would
be what is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from vime_otel.demo.ports import free_port

SLOW_S = 3.0
STATUS = {"healthy": 200, "no_route": 404, "busy": 409, "broken": 500, "slow": 200}


class Fleet:
    """The servers, by behaviour, and when starts came in at those that answer."""

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self.starts: list[float] = []

    async def add(self, behaviour: str) -> str:
        """One more stand-in; gives its URL."""
        if behaviour == "dead":
            return f"http://127.0.0.1:{free_port()}"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(behaviour, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, behaviour: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(behaviour, head, reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client has left, or all of it ends
        finally:
            writer.close()

    async def _answer(
        self, behaviour: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        lines = head.decode().lower().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
        await reader.readexactly(length)
        if not lines[0].startswith("post /start_profile"):
            _write(writer, 200, b'{"version": "0.32.0"}')
            return
        self.starts.append(time.monotonic())
        if behaviour == "half_closed":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
            await writer.drain()
            writer.close()
            return
        if behaviour == "silent":
            await asyncio.Event().wait()
        if behaviour == "slow":
            await asyncio.sleep(SLOW_S)
        _write(writer, STATUS[behaviour], b"")


def _write(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
    writer.write(body)


async def main() -> None:
    """Serve what the arguments ask for."""
    fleet = Fleet()
    urls: dict[str, list[str]] = {}
    for argument in sys.argv[1:]:
        behaviour, count = argument.split(":")
        urls[behaviour] = [await fleet.add(behaviour) for _ in range(int(count))]
    print(json.dumps({"urls": urls}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps({"starts": fleet.starts}), flush=True)
    os._exit(0)  # connections are left open on purpose


asyncio.run(main())
