"""Steps, ranks, comparisons, files, what is under way, and how it all looks: in a real browser."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from graphs import SLOWER, Graph, serious_findings
from samples import ENGINES, RECORDING_ID, sample_recording, write_sample

from viewer.app import create_app
from vime_otel.cli.main import main
from vime_otel.data.journal import LOGS, JournalWriter
from vime_otel.data.otlp import logs_request, resource, totals_record
from vime_otel.data.recording import ENGINE_PART

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture
def run_page(page: Page, site: str) -> Page:
    """The page of the sample run, its steps there, too."""
    page.goto(f"{site}/runs/{RECORDING_ID}")
    page.wait_for_function("() => window.page?.strip?.columns")
    return page


# Steps


def place_of_step(page: Page, index: int, lane: int) -> tuple[float, float]:
    """A point on a step's bar in the strip."""
    box = page.locator("#strip canvas").bounding_box()
    assert box
    return box["x"] + (index + 0.5) / 20 * box["width"], box["y"] + (lane + 0.5) * box["height"] / 2


def test_the_strip_tells_its_colours_and_how_far_its_bars_reach(run_page: Page) -> None:
    told = run_page.locator(".strip-told")
    api.expect(told).to_contain_text("decode")
    api.expect(told).to_contain_text(re.compile(r"bars end at \d+\.\d+ ms(, \d+ longer steps? cut off)?$"))
    api.expect(told.locator(".swatch")).to_have_count(2)


def test_a_click_on_a_step_shows_its_flame_graph(run_page: Page) -> None:
    run_page.mouse.click(*place_of_step(run_page, 13, 1))
    run_page.wait_for_function("() => page.panel.view.steps === 1")
    assert run_page.evaluate("page.panel.view.title").endswith("decode · 10.0.0.2:8001/0 · step 13")
    row = next(row for row in sample_recording().rows if (row.engine, row.index) == (ENGINES[1], 13))
    api.expect(run_page.locator(".facts")).to_contain_text(f"{row.interval_ns / 1e6:.2f} ms")
    run_page.get_by_role("button", name="steps 13 ×").click()
    run_page.wait_for_function("() => page.panel.view.steps === 36")


def test_a_step_of_the_other_kind_brings_its_kind_along(run_page: Page) -> None:
    run_page.mouse.click(*place_of_step(run_page, 0, 0))
    run_page.wait_for_function("() => page.panel.view.kind === 'prefill' && page.panel.view.steps === 1")


def test_a_drag_over_the_strip_shows_a_range_of_steps(run_page: Page) -> None:
    run_page.mouse.move(*place_of_step(run_page, 2, 0))
    run_page.mouse.down()
    run_page.mouse.move(*place_of_step(run_page, 6, 0), steps=3)
    run_page.mouse.up()
    run_page.wait_for_function("() => page.state.get('steps') === '2-6'")
    run_page.wait_for_function("() => page.panel.view.steps === 10")  # of both engines


def test_an_outlier_is_one_click_from_its_flame_graph_and_its_trace(run_page: Page) -> None:
    run_page.get_by_role("button", name="2 outliers").click()
    run_page.wait_for_function("() => page.panel.view.steps === 1 && page.state.get('steps') === '13'")
    run_page.get_by_label("Which steps").select_option(label="outliers")
    rows = run_page.locator("table.steps tbody tr")
    api.expect(rows).to_have_count(2)
    row = next(row for row in sample_recording().rows if (row.engine, row.index) == (ENGINES[0], 13))
    link = run_page.locator(f'a[href="http://127.0.0.1:9/trace/{row.trace_id}"]')
    api.expect(link).to_have_attribute("rel", "noopener noreferrer")
    rows.first.get_by_role("button").click()
    run_page.wait_for_function("() => page.panel.view.steps === 1")


def test_the_list_of_steps_has_every_number(run_page: Page) -> None:
    rows = run_page.locator("table.steps tbody tr")
    api.expect(rows).to_have_count(40)
    mixed = rows.filter(has_text="mixed").first
    api.expect(mixed).to_contain_text("1536 + 64")


# Ranks


def test_the_spread_over_ranks_names_the_straggler(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> None:
    recording = sample_recording()
    slow = {(ENGINES[1], "1")}
    recording.totals = [
        part
        if (part.engine, part.rank) not in slow
        else type(part)(**{**vars(part), "inclusive_ns": tuple(int(ns * 1.3) for ns in part.inclusive_ns)})
        for part in recording.totals
    ]
    write_sample(tmp_path, recording)
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    page.get_by_text("Spread over 4 ranks").click()
    first = page.locator("table.ranks tbody tr").first
    api.expect(first).to_contain_text("10.0.0.2:8001/0 rank 1")
    api.expect(first).to_contain_text("straggler")
    api.expect(page.locator("table.ranks .outlier")).to_have_count(1)
    experts = page.locator("table.spread tbody tr").first
    api.expect(experts).to_contain_text("moe.experts")
    api.expect(experts).to_contain_text("10.0.0.2:8001/0 rank 1")
    first.get_by_role("button").click()
    page.wait_for_function("rank => page.panel.view.rank === rank", arg=f"{ENGINES[1]}-1")


# Comparisons


def test_two_ticked_runs_are_compared(page: Page, site: str) -> None:
    page.goto(site)
    button = page.get_by_role("button", name="Compare the two ticked")
    api.expect(button).to_be_disabled()
    page.get_by_label("Compare qwen3-moe rollout").check()
    page.get_by_label("Compare slower experts").check()
    button.click()
    graph = Graph(page, "page.graph").wait()
    verdict = page.locator("#verdict")
    api.expect(verdict).to_contain_text("moe.experts")
    api.expect(page.locator("#changes tbody tr").first).to_contain_text("moe.experts")
    api.expect(page.locator("table.loads tbody tr").first).to_contain_text("alike")
    changed, same = graph.pixel("moe.experts", 40), graph.pixel("self_attn:Qwen3MoeAttention", 3)
    assert changed[0] > changed[2] + 50 or changed[2] > changed[0] + 50
    assert max(same) - min(same) < 12  # neutral
    before = verdict.inner_text()
    page.keyboard.press("v")
    assert "relative=1" in page.url
    page.keyboard.press("x")
    api.expect(verdict).not_to_have_text(before)
    api.expect(verdict).to_contain_text("moe.experts")


def test_where_loads_differ_no_graph_is_shown(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> None:
    other = sample_recording(id=SLOWER)
    other.rows = [replace(row, requests=4 * row.requests, generation_tokens=9) for row in other.rows]
    write_sample(tmp_path)
    write_sample(tmp_path, other)
    page.goto(f"{serving(create_app(tmp_path))}/compare?a={RECORDING_ID}&b={SLOWER}")
    api.expect(page.locator("#verdict")).to_contain_text("loads differ (requests a step")
    api.expect(page.locator("table.loads tr.unlike").first).to_contain_text("differ")
    api.expect(page.locator("#app")).to_be_hidden()
    assert page.locator("section.panel:visible").count() == 1


def test_a_view_is_compared_from_its_own_page(run_page: Page) -> None:
    run_page.get_by_role("button", name="prefill").click()
    run_page.wait_for_function("() => page.panel.view.kind === 'prefill'")
    run_page.locator("#compare-form select").select_option(value=SLOWER)
    run_page.get_by_role("button", name="Compare").click()
    Graph(run_page, "page.graph").wait()
    assert f"kind=prefill&b={SLOWER}" in run_page.url
    api.expect(run_page.locator("#verdict")).to_contain_text("prefill ")


# Files


def test_a_file_that_is_dropped_is_shown(page: Page, site: str, tmp_path: Path) -> None:
    file = tmp_path / "perf.folded"
    file.write_text("main;work 30\r\nmain 10\r\nnonsense\r\n")
    page.goto(site)
    page.get_by_label("File to show").set_input_files(file)
    graph = Graph(page).wait()
    api.expect(page.get_by_role("heading", level=1)).to_have_text("perf.folded")
    api.expect(page.get_by_label("Notes")).to_have_text("1 line of the file is in no format and is left out")
    api.expect(page.locator(".heading .state")).to_have_text("file")
    assert graph.ask("graph.look.amountOf(0)") == "40 samples"
    file.write_text("main;work 10\nmain 10\n")
    page.goto(site)
    page.get_by_label("File to show").set_input_files(file)
    Graph(page).wait()
    earlier = page.locator("#compare-form option", has_text="perf.folded").get_attribute("value")
    page.locator("#compare-form select").select_option(value=earlier)
    page.get_by_role("button", name="Compare").click()
    changes = Graph(page, "page.graph").wait()
    assert changes.ask("graph.look.amountOf(0)") == "+20 samples"
    api.expect(page.locator("#verdict")).to_contain_text("all 20 → 40 samples")


def test_a_file_that_is_none_says_so(browser: Browser, site: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no stacks")
    tab = browser.new_page()  # not the fixture's: the browser tells its console of the refusal
    tab.goto(site)
    tab.get_by_label("File to show").set_input_files(tmp_path / "text")
    api.expect(tab.locator("#bring [role=status]")).to_contain_text("text can't be shown: text: no stacks in it")
    tab.close()


def test_a_recording_that_ends_becomes_the_runs_page_at_the_same_address(
    browser: Browser, serving: Callable[[Any], str], tmp_path: Path
) -> None:
    recording = sample_recording()
    directory = tmp_path / "20251130T000000Z-5eed0123-qwen3-moe_rollout"
    directory.mkdir()
    write_progress(directory, 3)
    tab = browser.new_page()  # as above
    tab.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    api.expect(tab.locator("#live-engines")).to_contain_text("3 of 20")
    assert write_sample(tmp_path, recording) == directory
    api.expect(tab.locator(".heading .state")).to_have_text("complete", timeout=20_000)
    Graph(tab).wait()
    tab.close()


def test_a_stand_alone_file_works_from_the_disk_without_a_network(browser: Browser, tmp_path: Path) -> None:
    write_sample(tmp_path / "runs")
    target = tmp_path / "decode.html"
    assert main(["export", "--runs", str(tmp_path / "runs"), "--format", "html", "-o", str(target)]) == 0
    context = browser.new_context(offline=True, reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(target.as_uri())
    graph = Graph(tab).wait()
    graph.click("self_attn:Qwen3MoeAttention")
    assert graph.ask("graph.isZoomed")
    tab.get_by_role("searchbox").fill("moe.")
    api.expect(tab.locator("#hits")).to_have_text("4 frames · 44.1%")
    api.expect(tab.locator("table.frames tr[data-row]")).to_have_count(4)
    view = graph.ask("graph.view")
    other = context.new_page()
    other.goto(tab.url)  # the state stands after #
    assert Graph(other).wait().ask("graph.view") == view
    assert complaints == []
    assert {url.partition("#")[0] for url in asked} == {target.as_uri()}
    context.close()


# Under way


def write_progress(directory: Path, done: int, state: str = "recording", **more: object) -> None:
    engines = [
        {
            "engine": engine,
            "label": f"10.0.0.{n}:8001/0",
            "phase": state,
            "steps_done": done,
            "steps_asked": 20,
            "reason": None,
        }
        for n, engine in enumerate(ENGINES, 1)
    ]
    progress = {"id": RECORDING_ID, "state": state, "message": "2 engines told to record", "engines": engines, **more}
    (directory / "progress.json.new").write_text(json.dumps(progress))
    os.replace(directory / "progress.json.new", directory / "progress.json")


def test_a_recording_under_way_shows_engines_progress_and_totals(
    page: Page, serving: Callable[[Any], str], tmp_path: Path
) -> None:
    whole = sample_recording()
    directory = tmp_path / "20251130T000000Z-5eed0123-live"
    directory.mkdir()
    write_progress(directory, 7)
    url = serving(create_app(tmp_path))
    page.goto(url)
    api.expect(page.locator("#live")).to_contain_text("14 of 40 steps on 2 engines")
    page.get_by_role("link", name=directory.name).click()
    api.expect(page.locator("#live-engines tr")).to_have_count(2)
    api.expect(page.locator("#live-engines")).to_contain_text("7 of 20")
    api.expect(page.locator(".loading")).to_contain_text("No totals have arrived yet")
    write_progress(directory, 20, "exporting")
    api.expect(page.locator("#live-engines")).to_contain_text("20 of 20")
    journal = JournalWriter(directory / "spans.otlp")
    rows = {(row.engine, row.index): row for row in whole.rows}
    for part in whole.totals:
        row = rows[part.engine, part.index] if part.rank == ENGINE_PART else None
        record = totals_record(part, row, b"\0" * 16, b"\0" * 8, 0)
        journal.append(LOGS, logs_request(resource({"service.instance.id": part.engine}), [record]).SerializeToString())
    journal.close()
    graph = Graph(page)
    page.wait_for_function("() => page.panel?.tree && page.panel.view.steps === 36", timeout=20_000)
    assert graph.ask("graph.look.amountOf(0)") == "12.19 ms"
    page.get_by_role("button", name="prefill 4").click()
    page.wait_for_function("() => page.panel.view.kind === 'prefill'")
    api.expect(page.get_by_role("button", name="prefill 4")).to_have_attribute("aria-pressed", "true")
    # Polls would wait for axe, and find their sockets closed.
    page.evaluate("void (window.fetch = () => new Promise(() => {}))")
    assert serious_findings(page) == []


def test_a_recording_under_way_tells_which_workers_it_leaves_out_and_when_it_falls_silent(
    page: Page, serving: Callable[[Any], str], tmp_path: Path
) -> None:
    directory = tmp_path / "20251130T000000Z-5eed0123-live"
    directory.mkdir()
    write_progress(directory, 7, unmatched_workers=[{"url": "http://10.0.0.3:8001", "reason": "no <b>recorder</b>"}])
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    left_out = page.get_by_label("Workers that are not recorded")
    api.expect(left_out).to_contain_text("http://10.0.0.3:8001: no <b>recorder</b>")
    api.expect(page.locator(".heading .state")).to_have_text("under way")
    write_progress(directory, 8)
    api.expect(left_out).to_be_hidden()
    long_ago = time.time() - 100
    os.utime(directory / "progress.json", (long_ago, long_ago))
    api.expect(page.locator(".heading .state")).to_have_text("silent")
    api.expect(page.locator("#live-silent")).to_contain_text(re.compile("Nothing was written for 10[0-9] s"))
    page.get_by_role("button", name="Keys").click()
    api.expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


# How it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [1280, 1920])
def test_nothing_juts_out_and_axe_finds_nothing_serious(page: Page, site: str, scheme: Any, viewport: int) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": viewport, "height": 1000})
    shots = os.environ.get("VIME_OTEL_SHOTS")
    for name, address, graph in (
        ("run", f"/runs/{RECORDING_ID}?q=moe", "page.panel.graph"),
        ("compare", f"/compare?a={RECORDING_ID}&b={SLOWER}", "page.graph"),
        ("runs", "/", ""),
    ):
        page.goto(f"{site}{address}")
        if graph:
            Graph(page, graph).wait()
        if name == "run":
            page.get_by_text("Spread over 4 ranks").click()
            api.expect(page.locator("table.spread")).to_be_visible()
        if shots:
            (Path(shots) / f"{name}-{viewport}-{scheme}.png").write_bytes(page.screenshot(full_page=True))
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport, name
        assert serious_findings(page) == [], name
    text, back = page.evaluate(
        "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name].match(/\\d+/g).map(Number))"
    )
    assert (sum(text) < sum(back)) == (scheme == "light")
    assert abs(sum(text) - sum(back)) > 500
