"""`make bench-viewer`: how soon the viewer shows, zooms and finds, beside speedscope on the same stacks.

Both run in the same Chromium, in turn, each time in a fresh context with an empty cache. First paint is the moment at
which the flame graph is on the screen, from the navigation on: the frame after the viewer marks that it has painted,
and for speedscope the frame after the first labels of boxes are there. speedscope comes from npm; without npm it is
left out.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_otel.data import folded
from vime_otel.data.folded import Folded
from vime_otel.data.imported import write_imported
from vime_otel.data.profile import Profile
from vime_otel.data.recording import ENGINE_PART, Recording, StepRow, StepTotals
from vime_otel.data.write_run import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STACKS = 100_000
STEPS = 5_000
RANKS = 8
ROUNDS = 5
SPEEDSCOPE = "speedscope@1.25.0"
CHROMIUM = "/usr/bin/chromium"
_PATIENCE_MS = 180_000
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vime-otel-bench"

# speedscope paints labels on 2D canvases over its WebGL ones, in the same frame; those can be looked at.
_SPEEDSCOPE_PAINT = """() => new Promise((resolve) => {
  const labelled = (canvas) => {
    if (canvas.height < 200) return false;
    const copy = document.createElement('canvas');
    copy.width = 400; copy.height = 200;
    const context = copy.getContext('2d', { willReadFrequently: true });
    context.drawImage(canvas, 0, 0, 400, 200);
    return context.getImageData(0, 0, 400, 200).data.some((value, i) => i % 4 === 3 && value > 0);
  };
  const look = () => {
    const canvases = [...document.querySelectorAll('canvas')].slice(1);
    if (/Time Order/.test(document.body?.innerText ?? '') && canvases.some(labelled)) {
      requestAnimationFrame(() => resolve(performance.now()));
    } else {
      requestAnimationFrame(look);
    }
  };
  look();
})"""
_OUR_PAINT = """() => new Promise((resolve) => {
  const look = () => {
    if (performance.getEntriesByName('flamegraph-painted').length) {
      requestAnimationFrame(() => resolve(performance.now()));
    } else {
      requestAnimationFrame(look);
    }
  };
  look();
})"""


def many_stacks(count: int, seed: int = 7) -> dict[str, int]:
    """Self microseconds by stack: a tree of modules some 40 deep, wide at the top, with a long tail of thin frames."""
    chance = random.Random(seed)
    names = [f"module_{number}:Class{number % 97}" for number in range(3000)]
    stacks = {"step": 1000}
    grown = ["step"]
    while len(stacks) < count:
        stack = chance.choice(grown)
        for _ in range(chance.randint(1, 6)):
            below = f"{stack};{chance.choice(names)}"
            if below.count(";") < 40 and below not in stacks and len(stacks) < count:
                stacks[below] = int(chance.paretovariate(1.1) * 50)
                if chance.random() < 0.35:
                    grown.append(below)
                stack = below if chance.random() < 0.5 else stack
    return dict(sorted(stacks.items()))


def many_steps(steps: int, ranks: int, stacks: int = 300, seed: int = 7) -> Recording:
    """A recording of one engine: every step's totals on every rank, each varying from step to step."""
    chance = random.Random(seed)
    shape = list(many_stacks(stacks, seed))
    worker = tuple(stack.replace("step;", "step;execute_model;", 1) for stack in shape[1:])
    engine = "0a1b2c3d4e5f6071"
    rows, totals = [], []
    start = 1_764_460_800_000_000_000
    base = Folded()
    for stack in worker:
        base.add(stack, 20_000)
    for index in range(steps):
        pace = chance.gauss(1, 0.03) * (1.8 if chance.random() < 0.002 else 1)
        values = tuple(int(20_000 * pace) for _ in worker)
        interval = int(8_000_000 * pace)
        for rank in range(ranks):
            totals.append(StepTotals(engine, str(rank), 0, index, "decode", worker, values, (1,) * len(worker), 300, 0))
        own = (interval, int(100_000 * pace))
        totals.append(StepTotals(engine, ENGINE_PART, -1, index, "decode", ("step", "step;wait"), own, (1, 1), 2, 0))
        trace = f"{index:032x}"
        rows.append(StepRow(engine, index, "decode", False, "eager", start, interval, interval, 0, 64, 64, trace))
        start += interval
    header = {
        "id": "5" * 16,
        "label": f"{steps} steps x {ranks} ranks",
        "complete": True,
        "reasons": [],
        "notes": [],
        "created": "2026-01-01T00:00:00Z",
        "engines": [{"id": engine, "label": "127.0.0.1:8000/0", "steps": {"decode": steps}, "ranks": []}],
    }
    return Recording(header, rows, totals)


@contextmanager
def our_viewer(runs: Path) -> Iterator[tuple[str, int]]:
    """(URL, process id) of `vime-otel view` on these runs."""
    command = [sys.executable, "-u", "-m", "vime_otel", "view", "--runs", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split(" at ")[1].split()[0], process.pid
        finally:
            process.terminate()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Requests are of no interest."""


@contextmanager
def static_server(folder: Path) -> Iterator[str]:
    """The URL of a server of plain files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def speedscope_release() -> tuple[Path | None, str]:
    """speedscope's static app, fetched once; or why there is none."""
    release = _CACHE / SPEEDSCOPE / "package" / "dist" / "release"
    if release.is_dir():
        return release, ""
    npm = shutil.which("npm")
    if npm is None:
        return None, "npm is not installed"
    folder = _CACHE / SPEEDSCOPE
    folder.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run([npm, "pack", SPEEDSCOPE], cwd=folder, capture_output=True, text=True, check=False)
    if packed.returncode:
        return None, f"npm pack {SPEEDSCOPE} failed: {packed.stderr.strip().splitlines()[-1]}"
    (archive,) = folder.glob("*.tgz")
    shutil.unpack_archive(archive, folder)
    return release, ""


def megabytes(pid: int) -> float:
    """Resident memory of a process."""
    import psutil

    return float(psutil.Process(pid).memory_info().rss / 1e6)


def heap_megabytes(page: Page) -> float:
    """What the page's JavaScript holds after a collection of garbage."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["JSHeapUsedSize"] / 1e6)


def first_paint(browser: Browser, url: str, script: str, then: Callable[[Page], dict[str, float]]) -> dict[str, float]:
    """Milliseconds from the navigation to the flame graph, and what `then` measures on the page."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000}, reduced_motion="reduce", bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    page.goto(url, wait_until="commit")
    measured = {"first paint ms": float(page.evaluate(script))}
    measured |= then(page)
    context.close()
    return measured


def our_actions(page: Page) -> dict[str, float]:
    """Zoom, search and their repaints, in milliseconds; memory."""
    page.wait_for_function("() => window.page.panel.tableShown")
    zoom, find = page.evaluate(
        """() => { const { graph } = page.panel, child = graph.tree.children(0)[0] ?? 0;
        const clock = (action) => {
          const begun = performance.now(); action(); graph.drawNow(); return performance.now() - begun; };
        const zoom = clock(() => graph.zoomTo(child)); graph.reset();
        return [zoom, clock(() => page.panel.setSearchText('module_12'))]; }"""
    )
    return {"zoom ms": zoom, "search ms": find, "page heap MB": heap_megabytes(page)}


def only_memory(page: Page) -> dict[str, float]:
    """The page's memory."""
    return {"page heap MB": heap_megabytes(page)}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of every measure."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def show(name: str, measured: dict[str, float]) -> None:
    """One line of results."""
    print(f"  {name:34s} " + "  ".join(f"{key} {value:8.1f}" for key, value in measured.items()), flush=True)


def against_speedscope(browser: Browser, folder: Path, rounds: int, count: int) -> None:
    """The stacks in both, in turn."""
    stacks = many_stacks(count)
    text = folded.dumps(stacks)
    runs = folder / "runs"
    run_id = write_imported(runs, Profile(stacks), f"{count} stacks", text.encode())
    release, why_not = speedscope_release()
    print(f"{count:,} stacks, {len(text) / 1e6:.1f} MB of folded text, {rounds} rounds in turn, medians")
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    site = folder / "speedscope"
    if release is not None:
        shutil.copytree(release, site)
        (site / "stacks.txt").write_text(text)
    else:
        site.mkdir()
        print(f"  speedscope is left out: {why_not}")
    with static_server(site) as peer:
        for _ in range(rounds):
            with our_viewer(runs) as (url, pid):  # a fresh process: nothing is read or kept
                measured = first_paint(browser, f"{url}/runs/{run_id}", _OUR_PAINT, our_actions)
                again = first_paint(browser, f"{url}/runs/{run_id}", _OUR_PAINT, only_memory)
                ours.append(
                    {**measured, "viewer MB": megabytes(pid), "second visitor's paint ms": again["first paint ms"]}
                )
            if release is not None:
                address = f"{peer}/index.html#profileURL={peer}/stacks.txt"
                theirs.append(first_paint(browser, address, _SPEEDSCOPE_PAINT, only_memory))
    show("vime-otel", medians(ours))
    if theirs:
        show("speedscope", medians(theirs))
        for name, each in (("vime-otel", ours), ("speedscope", theirs)):
            paints = ", ".join(f"{measured['first paint ms']:.0f}" for measured in each)
            print(f"  {name} first paints: {paints} ms")
        ratio = medians(ours)["first paint ms"] / medians(theirs)["first paint ms"]
        print(f"RATIO viewer_vs_speedscope_first_paint_time {ratio:.3f}")


def large_recording(browser: Browser, folder: Path, steps: int, ranks: int) -> None:
    """A recording of many steps: the page, a range of steps, the ranks."""
    begun = time.perf_counter()
    recording = many_steps(steps, ranks)
    write_run(folder / "large" / "20260101T000000Z-55555555", recording)
    del recording
    gc.collect()
    print(f"{steps:,} steps x {ranks} ranks x 300 stacks (written in {time.perf_counter() - begun:.0f} s)", flush=True)
    with our_viewer(folder / "large") as (url, pid):
        address = f"{url}/runs/{'5' * 16}"

        def strip(page: Page) -> dict[str, float]:
            page.wait_for_function("() => window.page.strip?.columns")
            at = page.evaluate("() => performance.now()")
            return {"steps shown ms": float(at), **our_actions(page)}

        show("the page", first_paint(browser, address, _OUR_PAINT, strip))
        for name, query in (
            ("one step", "steps=17"),
            ("100 steps", f"steps={steps // 5}-{steps // 5 + 99}"),
            (f"{steps - 1:,} steps", f"steps=1-{steps - 1}"),
        ):
            show(name, first_paint(browser, f"{address}?{query}", _OUR_PAINT, only_memory))
        print(f"  the viewer's process: {megabytes(pid):.0f} MB")


def main() -> int:
    """Measure, print, end with the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--stacks", type=int, default=STACKS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("skipped: playwright is not installed (`make install` does)")
        return 0
    if not Path(CHROMIUM).exists():
        print(f"skipped: no Chromium at {CHROMIUM}")
        return 0
    with tempfile.TemporaryDirectory(prefix="vime-otel-bench-") as name, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--ignore-gpu-blocklist"])
        print(f"Chromium {browser.version}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}", flush=True)
        large_recording(browser, Path(name), options.steps, RANKS)
        against_speedscope(browser, Path(name), options.rounds, options.stacks)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
