"""Stand-ins for servers: small aiohttp applications on a free port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from vime_otel.demo.ports import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Routes = Mapping[str, Handler]
"""`"GET /path"` → handler."""


def answer(status: int = 200, body: object = None, text: str | None = None) -> Handler:
    """A handler that always answers the same: `body` as JSON, or `text`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if text is not None:
            return web.Response(status=status, text=text)
        return web.json_response(body, status=status) if body is not None else web.Response(status=status)

    return handle


async def never(request: web.Request) -> web.StreamResponse:
    """A handler that does not answer while the client waits."""
    await asyncio.Event().wait()
    raise AssertionError


async def hang_up(request: web.Request) -> web.StreamResponse:
    """A handler that closes the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@asynccontextmanager
async def serving(routes: Routes) -> AsyncIterator[str]:
    """A stand-in in the running event loop; gives its URL."""
    app = web.Application(client_max_size=2**26)
    for route, handler in routes.items():
        method, path = route.split(" ")
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@contextmanager
def serving_in_thread(*all_routes: Routes) -> Iterator[list[str]]:
    """Stand-ins in a thread of their own, for code that runs its own event loop; gives their URLs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stand-ins")
    thread.start()

    def run(coroutine: Awaitable[object]) -> object:
        return asyncio.run_coroutine_threadsafe(_awaited(coroutine), loop).result()

    contexts = [serving(routes) for routes in all_routes]
    try:
        yield [str(run(context.__aenter__())) for context in contexts]
    finally:
        for context in contexts:
            run(context.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable


def closed_port_url() -> str:
    """A URL of this machine where nothing listens."""
    return f"http://127.0.0.1:{free_port()}"
