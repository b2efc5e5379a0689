"""What was started is stopped, what was not is left alone, whatever goes wrong. The workers are stand-ins."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
from aiohttp import web
from standins import Routes, answer, hang_up, serving, serving_in_thread

from collector.http_client import new_session
from collector.router import Worker
from collector.torch_profiles import profile_session
from collector.torch_profiles.bounded_start import start_bounded
from collector.torch_profiles.profile_session import ProfilePlan, Silent, run_profile, stop_running
from collector.torch_profiles.torch_profiler import Outcome, ProfileOptions
from collector.torch_profiles.uninterrupted import to_its_end
from vime_otel.cli.main import main

OPTIONS = ProfileOptions(max_iterations=5)


class StandIn:
    """Counts starts and stops; `start` is what it does with a start beyond counting it."""

    def __init__(
        self,
        version: str | None = "0.28.0",
        start: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None,
        stop_status: int = 200,
    ) -> None:
        self.version = version
        self.start = start or answer()
        self.stop_status = stop_status
        self.calls: list[str] = []

    @property
    def routes(self) -> Routes:
        return {
            "GET /health": answer(),
            "GET /version": self._version,
            "GET /v1/models": answer(body={"data": [{"id": "m"}]}),
            "POST /v1/completions": answer(500),
            "POST /start_profile": self._start,
            "POST /stop_profile": self._stop,
        }

    async def _version(self, request: web.Request) -> web.StreamResponse:
        self.calls.append("version")
        if self.version is None:
            await asyncio.Event().wait()
        return web.json_response({"version": self.version})

    async def _start(self, request: web.Request) -> web.StreamResponse:
        self.calls.append("start")
        return await self.start(request)

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        self.calls.append("stop")
        return web.Response(status=self.stop_status)


def started(workers: list[StandIn], max_seconds: float | None = 0.1, restart: bool = False) -> list[Outcome]:
    """The outcomes of a bounded start."""

    async def run() -> list[Outcome]:
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(worker.routes)) for worker in workers]
            session = await stack.enter_async_context(new_session())
            return await start_bounded(session, urls, OPTIONS, 0.5, 5, restart, max_seconds, Silent())

    return asyncio.run(run())


async def late(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "10"})
    await response.prepare(request)
    await response.write(b"half")
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize("start", [late, cut, hang_up, answer(500)], ids=["late", "cut", "closed", "broken"])
def test_a_start_whose_answer_is_lost_is_stopped(start: Any) -> None:
    worker = StandIn(start=start)
    (outcome,) = started([worker])
    assert not outcome.ok
    assert worker.calls == ["version", "start", "stop"]


@pytest.mark.parametrize("start", [answer(404), answer(409), answer(401)], ids=["404", "409", "401"])
def test_a_start_that_was_refused_is_not_stopped(start: Any) -> None:
    worker = StandIn(start=start)
    started([worker])
    assert "stop" not in worker.calls


@pytest.mark.parametrize("version", ["0.28.0", "v0.28", "", "nonsense", "9" * 5000, "0.32\ud800", "[1]"])
def test_what_does_not_surely_end_is_stopped_by_hand(version: str) -> None:
    worker = StandIn(version)
    (outcome,) = started([worker])
    assert (outcome.ok, outcome.may_run) == (True, False)
    assert "stopped after 0.1 s" in outcome.notes
    assert worker.calls[-1] == "stop"
    assert "stop" not in _calls(StandIn("0.32.0"))
    assert "stop" not in _calls(StandIn(version), None)


def _calls(worker: StandIn, max_seconds: float | None = 0.1) -> list[str]:
    started([worker], max_seconds)
    return worker.calls


def test_a_stop_that_fails_fails_the_start() -> None:
    (outcome,) = started([StandIn(stop_status=500)])
    assert (outcome.state, outcome.ok) == ("not stopped", False)


def test_restart_starts_nothing_where_the_stop_failed() -> None:
    worker = StandIn(stop_status=500)
    (outcome,) = started([worker], restart=True)
    assert not outcome.ok
    assert worker.calls == ["version", "stop"]


def test_a_redirect_is_not_followed() -> None:
    elsewhere = StandIn("0.32.0")

    async def run() -> Outcome:
        async with serving(elsewhere.routes) as other:

            async def redirect(request: web.Request) -> web.StreamResponse:
                raise web.HTTPTemporaryRedirect(f"{other}/start_profile")

            async with serving(StandIn("0.32.0", redirect).routes) as url, new_session() as session:
                return (await start_bounded(session, [url], OPTIONS, 1, 1, False, 0.1, Silent()))[0]

    outcome = asyncio.run(run())
    assert (outcome.state, elsewhere.calls) == ("refused", [])


def test_a_page_that_answers_everything_is_no_worker() -> None:
    (outcome,) = started([StandIn("0.32.0", answer(text="<html>hello</html>"))])
    assert (outcome.ok, "web page" in outcome.detail) == (False, True)


def test_an_interruption_before_the_starts_stops_nobody(tmp_path: Path) -> None:
    colleague, slow = StandIn("0.32.0", answer(409)), StandIn(None)

    async def run() -> None:
        async with serving(colleague.routes) as one, serving(slow.routes) as two, new_session() as session:
            plan = ProfilePlan("0" * 16, tmp_path)
            work = asyncio.ensure_future(run_profile(session, [Worker(one), Worker(two)], plan))
            while not slow.calls:
                await asyncio.sleep(0.01)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    asyncio.run(run())
    assert colleague.calls + slow.calls == ["version", "version"]


def test_an_interruption_in_the_middle_of_the_starts_stops_those_that_were_sent(tmp_path: Path) -> None:
    fast, hanging, busy = StandIn(), StandIn(start=late), StandIn("0.32.0", answer(409))

    async def run() -> None:
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(each.routes)) for each in (fast, hanging, busy)]
            session = await stack.enter_async_context(new_session())
            work = asyncio.ensure_future(
                start_bounded(session, urls, OPTIONS, 60, 5, False, 60, Silent()),
            )
            while not all("start" in each.calls for each in (fast, hanging, busy)):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    asyncio.run(run())
    assert "stop" in fast.calls
    assert "stop" in hanging.calls


class Lines(Silent):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def doing(self, text: str) -> None:
        self.told.append(text)


def test_a_stop_that_takes_long_tells_who_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_session, "_TELL_S", 0.02)
    lines = Lines()

    async def slow(request: web.Request) -> web.StreamResponse:
        while not any("waiting for 1 of 2" in line for line in lines.told):
            await asyncio.sleep(0.01)
        return web.Response()

    async def run() -> list[str]:
        async with AsyncExitStack() as stack:
            fast = await stack.enter_async_context(serving(StandIn().routes))
            late = await stack.enter_async_context(serving({"POST /stop_profile": slow}))
            session = await stack.enter_async_context(new_session())
            outcomes = await stop_running(session, [fast, late], 5, lines)
            assert all(outcome.ok for outcome in outcomes)
            return [line for line in lines.told if line.startswith(f"waiting for 1 of 2 to stop, {late} among them")]

    assert "of at most 5" in asyncio.run(run())[0]


def test_a_restart_says_that_it_may_take_minutes(tmp_path: Path) -> None:
    worker, lines = StandIn("0.32.0"), Lines()

    async def run() -> None:
        async with serving(worker.routes) as url, new_session() as session:
            plan = ProfilePlan("0" * 16, tmp_path, requests=1, files_timeout_s=0, restart=True)
            await run_profile(session, [Worker(url)], plan, lines)
            await start_bounded(session, [url], OPTIONS, 1, 1, True, 0.1, lines)

    asyncio.run(run())
    assert sum("ended first" in line for line in lines.told) == 2


def test_an_interrupted_command_says_what_it_waits_for() -> None:
    calls: list[str] = []
    over = Event()

    async def stops_when_all_is_over(request: web.Request) -> web.StreamResponse:
        calls.append("stop")
        while not over.is_set():
            await asyncio.sleep(0.01)
        return web.Response()

    with serving_in_thread({"POST /stop_profile": stops_when_all_is_over}) as (url,):
        command = [sys.executable, "-m", "vime_otel", "profile", "stop", "--worker", url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stderr is not None
            told = process.stderr.readline()
            while not calls:
                sleep(0.01)
            process.send_signal(signal.SIGINT)
            while told and "interrupted" not in told:
                told = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.wait()
        over.set()
    assert "a second Ctrl-C leaves at once" in told
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_at_once_cuts_no_stop_off(tmp_path: Path, number: signal.Signals) -> None:
    worker = StandIn("0.32.0")
    stopped: list[str] = []

    async def stop(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        stopped.append("stop")
        return web.Response()

    with serving_in_thread({**worker.routes, "POST /stop_profile": stop}) as (url,):
        command = [sys.executable, "-m", "vime_otel", "profile", "run", "--worker", url, "--trace-dir", str(tmp_path)]
        with subprocess.Popen([*command, "--runs", str(tmp_path)], stderr=subprocess.DEVNULL) as process:
            while "start" not in worker.calls:
                sleep(0.01)
            process.send_signal(number)
            process.send_signal(number)
            sleep(0.02)
            process.send_signal(number)
    assert (process.returncode, stopped) == (130, ["stop"])


def test_the_command_to_type_next_means_the_same_workers(capsys: pytest.CaptureFixture[str]) -> None:
    def next_of(*words: str) -> str:
        assert main(["profile", "start", *words]) == 0
        return capsys.readouterr().out

    with serving_in_thread(StandIn("0.32.0").routes) as (url,):
        listed = {"workers": [{"url": url, "is_healthy": False, "worker_type": "decode", "model_id": "a b"}]}
        with serving_in_thread({"GET /workers": answer(body=listed)}) as (router,):
            told = next_of("--router", router, "--worker-type", "decode", "--model", "a b", "--all")
            named = next_of("--worker", f"{url}@1", "--worker", url)
    assert f"next: vime-otel profile stop --router {router} --worker-type decode --model 'a b' --all\n" in told
    assert f"next: vime-otel profile stop --worker {url}\n" in named


def test_unbounded_says_so_and_takes_no_bound(capsys: pytest.CaptureFixture[str]) -> None:
    worker = StandIn("0.32.0")
    with serving_in_thread(worker.routes) as (url,):
        for bound in ("--iterations", "--max-seconds"):
            assert main(["profile", "start", "--worker", url, "--unbounded", bound, "5"]) == 2
            assert bound in capsys.readouterr().err
        assert worker.calls == []
        assert main(["profile", "start", "--worker", url, "--unbounded"]) == 0
    assert "until it is stopped" in capsys.readouterr().out


def test_a_closed_stderr_keeps_nothing_from_being_stopped(tmp_path: Path) -> None:
    worker = StandIn("0.32.0")
    with serving_in_thread(worker.routes) as (url,):
        command = f"exec {sys.executable} -m vime_otel profile run --worker {url} --trace-dir {tmp_path} --requests 1"
        done = subprocess.run(f"{command} --files-timeout 0 --runs {tmp_path} 2>&- >&-", shell=True, check=False)
    assert (done.returncode, worker.calls) == (1, ["version", "start", "stop"])


def test_completions_that_fail_are_told_though_a_file_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()

    async def writes(request: web.Request) -> web.StreamResponse:
        packed = gzip.compress(json.dumps({"traceEvents": []}).encode())
        (traces / "dp0_rank0.1.pt.trace.json.gz").write_bytes(packed)
        return web.Response()

    worker = StandIn("0.28.0", writes)
    with serving_in_thread(worker.routes) as (url,):
        command = ["profile", "run", "--worker", url, "--trace-dir", str(traces), "--requests", "2", "--json"]
        assert main([*command, "--runs", str(tmp_path / "runs")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["failed_requests"][url]["failed"] == 2
    assert "no step was made" in found["missing"][0]["why"]
    assert "no events" in found["missing"][0]["why"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_that_is_interrupted_comes_to_its_end_and_then_the_interruption_counts(fails: bool) -> None:
    async def check() -> None:
        goes_on, ended = asyncio.Event(), []

        async def work() -> None:
            await goes_on.wait()
            ended.append(True)
            if fails:
                raise RuntimeError("the router is gone")

        stopping = asyncio.ensure_future(to_its_end(work()))
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert ended == [True]

    asyncio.run(check())


def test_user_and_password_are_shown_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {"workers": [{"url": "http://bob:hunter2@127.0.0.1:9", "is_healthy": True}]}
    sick = {"workers": [{"url": "http://bob:hunter2@127.0.0.1:9", "is_healthy": False}]}
    log = tmp_path / "train.log"
    log.write_text("Router launched at bob:hunter2@127.0.0.1:3000\n")
    with serving_in_thread({"GET /workers": answer(body=listed)}, {"GET /workers": answer(body=sick)}) as (well, ill):
        for words in (
            ["profile", "start", "--router", well, "--dry-run", "--json"],
            ["profile", "start", "--router", ill, "--json"],
            ["profile", "start", "--worker", "http://bob:hunter2@127.0.0.1:9", "--json"],
            ["profile", "start", "--router", "bob:hunter2@h:99999"],
            ["profile", "start", "--router", "http://bob:hunt hunter2@h:1"],
            ["doctor", "--log", str(log)],
        ):
            main(words)
    told = capsys.readouterr()
    assert "hunter2" not in told.out + told.err
