"""The flame graph in a real browser: there, zoomed, searched, switched, with the mouse."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from graphs import LAYERED, Graph
from samples import ENGINE_STACKS, ENGINES, LAYERS, RECORDING_ID, WORKER_STACKS, sample_recording, write_sample

from viewer.app import create_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

HIT = (194, 0, 122)


@pytest.fixture
def graph(page: Page, site: str) -> Graph:
    """The flame graph of the sample run, drawn."""
    page.goto(f"{site}/runs/{RECORDING_ID}")
    return Graph(page).wait()


def query(page: Page) -> dict[str, list[str]]:
    """The state in the page's address."""
    return parse_qs(urlsplit(page.url).query)


def test_every_frame_of_the_recording_has_its_box(graph: Graph) -> None:
    assert len(graph.names()) == len(WORKER_STACKS) + len(ENGINE_STACKS)
    api.expect(graph.page.locator(".loading")).to_be_hidden()


def test_boxes_are_as_wide_as_their_share_and_labelled_with_name_and_time(graph: Graph) -> None:
    whole, experts = graph.box("step"), graph.box("moe.experts")
    assert experts["width"] / whole["width"] == pytest.approx(0.334, abs=0.003)
    label = "graph.look && (i => graph.look.amountOf(i))(find(argument))"
    assert graph.ask(label, "moe.experts") == "4.08 ms"


def test_boxes_and_legend_are_coloured_by_what_the_frames_are(graph: Graph) -> None:
    assert graph.pixel("moe.experts", 40) == (238, 136, 102)
    assert graph.pixel("self_attn:Qwen3MoeAttention", 3) == (119, 170, 221)
    legend = graph.page.get_by_label("Colours").locator("li")
    assert "MLP and linear" not in legend.all_inner_texts()  # this model has no plain MLP
    assert len(legend.all()) == 8


def test_a_click_zooms_and_reset_shows_all_again(graph: Graph) -> None:
    reset = graph.page.get_by_role("button", name="Reset zoom")
    whole, before = graph.box("step")["width"], graph.box("self_attn:Qwen3MoeAttention")["width"]
    api.expect(reset).to_be_disabled()
    graph.click("self_attn:Qwen3MoeAttention")
    assert graph.box("self_attn:Qwen3MoeAttention")["width"] == pytest.approx(whole, abs=1)
    reset.click()
    assert graph.box("self_attn:Qwen3MoeAttention")["width"] == pytest.approx(before, abs=1)
    api.expect(reset).to_be_disabled()


def test_the_wheel_with_ctrl_zooms_where_it_points(graph: Graph) -> None:
    x, y = graph.middle("attn:Attention")
    before = graph.box("attn:Attention")
    graph.page.mouse.move(x, y)
    graph.page.keyboard.down("Control")
    graph.page.mouse.wheel(0, -120)
    graph.page.keyboard.up("Control")
    graph.page.wait_for_function("() => page.panel.graph.isZoomed")
    after = graph.box("attn:Attention")
    assert after["width"] > 1.3 * before["width"]
    assert after["x"] + after["width"] / 2 == pytest.approx(x, abs=2)
    assert "x" in query(graph.page)


def test_a_plain_wheel_scrolls_the_page_and_tells_how_to_zoom(graph: Graph) -> None:
    graph.hover("step")
    graph.page.mouse.wheel(0, 40)
    api.expect(graph.page.locator("#flamegraph .wheel-hint")).to_have_text("Ctrl + wheel zooms")
    assert not graph.ask("graph.isZoomed")


def test_a_drag_zooms_to_what_it_covers(graph: Graph) -> None:
    box = graph.box("attn:Attention")
    graph.page.mouse.move(box["x"] + 1, box["y"] + 5)
    graph.page.mouse.down()
    graph.page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 5, steps=4)
    graph.page.mouse.up()
    width = graph.ask("graph.width")
    assert graph.box("attn:Attention")["width"] == pytest.approx(width, rel=0.05)


def test_a_drag_with_shift_moves_what_is_shown(graph: Graph) -> None:
    graph.click("self_attn:Qwen3MoeAttention")
    left = graph.ask("graph.view.left")
    x, y = graph.middle("step")
    graph.page.keyboard.down("Shift")
    graph.page.mouse.move(x, y)
    graph.page.mouse.down()
    graph.page.mouse.move(x + 200, y, steps=4)
    graph.page.mouse.up()
    graph.page.keyboard.up("Shift")
    assert graph.ask("graph.view.left") < left


def test_a_search_highlights_counts_and_tells_the_share(graph: Graph) -> None:
    hits = graph.page.locator("#hits")
    graph.page.get_by_role("searchbox").fill("MOE.")
    api.expect(hits).to_have_text("4 frames · 44.1%")
    graph.ask("graph.drawNow()")
    assert graph.pixel("moe.experts", 40) == (238, 136, 102)
    assert graph.pixel("step", 40) != (238, 221, 136)  # what is no hit is pale
    graph.page.get_by_role("searchbox").fill("")
    api.expect(hits).to_have_text("")


def test_a_search_by_regular_expression_and_a_wrong_one_in_words(graph: Graph) -> None:
    hits, search = graph.page.locator("#hits"), graph.page.get_by_role("searchbox")
    graph.page.get_by_role("button", name="Regular expression").click()
    search.fill("^(q|k)_norm")
    api.expect(hits).to_have_text("2 frames · 2.3%")
    assert query(graph.page)["re"] == ["1"]
    search.fill("(")
    api.expect(hits).to_contain_text("not a regular expression")
    api.expect(search).to_have_attribute("aria-invalid", "true")


def test_next_and_previous_walk_over_the_hits(graph: Graph) -> None:
    graph.page.get_by_role("searchbox").fill("norm")
    forward, back = (graph.page.get_by_role("button", name=f"{which} hit") for which in ("Next", "Previous"))
    seen = []
    for _ in range(6):
        forward.click()
        seen.append(graph.ask("graph.focused"))
    assert len(set(seen)) == 5
    assert seen[0] == seen[5]
    api.expect(graph.page.locator("#hits")).to_have_text(re.compile(r"^1 of 5 frames · "))
    back.click()
    assert graph.ask("graph.focused") == seen[4]


def test_a_hit_below_a_hit_counts_its_time_once(graph: Graph) -> None:
    graph.page.get_by_role("searchbox").fill("e")
    api.expect(graph.page.locator("#hits")).to_have_text(re.compile(r"^\d+ frames · 100\.0%$"))


def test_a_hit_in_a_hairline_box_can_be_seen(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> None:
    thin = {f"step;execute_model;hair{number:03}": (1, 1) for number in range(300)}
    write_sample(tmp_path, sample_recording(thin))
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    graph = Graph(page).wait()
    assert graph.box("hair150")["width"] < 0.5
    page.get_by_role("searchbox").fill("hair150")
    api.expect(page.locator("#hits")).to_have_text("1 frame · 0.0%")
    graph.ask("graph.drawNow()")
    assert HIT in {graph.pixel("hair150", dx) for dx in (-1, 0, 1)}


def test_hits_stay_marked_through_a_zoom(graph: Graph) -> None:
    graph.page.get_by_role("searchbox").fill("q_norm")
    graph.click("self_attn:Qwen3MoeAttention")
    assert graph.ask("graph.search.isHit[find('q_norm:RMSNorm')]") == 1
    assert graph.pixel("q_norm:RMSNorm", 1) == HIT


def test_icicle_and_flame(graph: Graph) -> None:
    assert graph.box("step")["y"] < graph.box("moe.experts")["y"]
    graph.page.get_by_role("button", name="Flame", exact=True).click()
    assert graph.box("step")["y"] > graph.box("moe.experts")["y"]
    assert query(graph.page)["flip"] == ["1"]


def test_the_sandwich_shows_callers_and_callees_over_all_stacks(graph: Graph) -> None:
    page = graph.page
    page.get_by_role("searchbox").fill("experts:FusedMoE")
    page.get_by_role("button", name="Callers and callees of experts:FusedMoE").click()
    callers, callees = Graph(page, "page.panel.callers").wait(), Graph(page, "page.panel.callees").wait()
    assert {"moe.route", "moe.dispatch", "moe.experts", "moe.combine"} == set(callees.names()[1:])
    assert callers.names()[:2] == ["experts:FusedMoE", "mlp:Qwen3MoeSparseMoeBlock"]
    assert callers.names()[-1] == "step"
    assert callees.ask("tree.total[0]") == pytest.approx(callers.ask("tree.total[0]"))
    assert callers.box("experts:FusedMoE")["y"] > callers.box("step")["y"]
    api.expect(page.locator(".sandwich-head")).to_contain_text("5.48 ms · 44.9% of the step")
    assert query(page)["sandwich"] == ["experts:FusedMoE"]
    page.get_by_role("button", name="Back to all").click()
    api.expect(page.locator("#flamegraph")).to_be_visible()


def test_the_tooltip_tells_all_the_numbers(graph: Graph) -> None:
    tooltip = graph.page.locator(".tooltip:visible")
    api.expect(tooltip).to_have_count(0)
    graph.hover("attn:Attention")
    rows = ("ms per step1.41", "share of step11.6%", "share of parent41.6%", "self ms1.41")
    api.expect(tooltip).to_have_text(f"attn:Attention{''.join(rows)}calls per step24ms per call0.059")
    graph.page.mouse.move(5, 5)
    api.expect(tooltip).to_have_count(0)


def test_units_per_step_per_second_and_in_all(graph: Graph) -> None:
    amount = "graph.look.amountOf(0)"
    assert graph.ask(amount) == "12.19 ms"
    graph.page.get_by_role("button", name="ms in all").click()
    assert graph.ask(amount) == "438.9 ms"
    graph.page.get_by_role("button", name="ms per second").click()
    assert 600 < float(graph.ask(amount).split()[0]) < 900  # the prefill step between them took the rest
    assert query(graph.page)["unit"] == ["second"]


def test_the_table_and_the_graph_are_linked_both_ways(graph: Graph) -> None:
    page = graph.page
    page.get_by_role("button", name="attn:Attention", exact=True).click()
    api.expect(page.get_by_role("searchbox")).to_have_value("attn:Attention")
    api.expect(page.locator("#hits")).to_have_text("1 frame · 11.6%")
    assert graph.focused() == "attn:Attention"
    api.expect(page.locator("table.frames tr[data-row]")).to_have_count(1)
    page.get_by_role("searchbox").fill("norm")
    api.expect(page.locator("table.frames tr[data-row]")).to_have_count(5)


def test_the_table_is_sorted_by_any_column(graph: Graph) -> None:
    page = graph.page
    first = page.locator("table.frames tr[data-row='0']")
    api.expect(first).to_contain_text("moe.experts")
    api.expect(first.locator("td")).to_have_text([re.compile("moe.experts"), "4.08", "4.08", "33.4%", "24", "0.170"])
    page.get_by_role("button", name="Total ms").click()
    api.expect(first).to_contain_text("step")
    assert query(page)["sort"] == ["-total"]
    page.get_by_role("button", name="Total ms").click()
    api.expect(page.get_by_role("columnheader", name="Total ms")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("button", name="Frame", exact=True).click()
    api.expect(first).to_contain_text("attn:Attention")


def test_the_stack_of_a_frame_can_be_copied(graph: Graph) -> None:
    page = graph.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    graph.click("lm_head:ParallelLMHead")
    page.get_by_role("button", name="Copy stack").click()
    api.expect(page.locator("#hits")).to_have_text("stack copied")
    stack = "step;execute_model;postprocess;logits_processor:LogitsProcessor;lm_head:ParallelLMHead"
    assert page.evaluate("navigator.clipboard.readText()") == stack
    page.get_by_role("button", name="Copy frame").click()
    api.expect(page.locator("#hits")).to_have_text("frame copied")
    assert page.evaluate("navigator.clipboard.readText()") == "lm_head:ParallelLMHead"


def test_a_link_shows_the_same_view_to_someone_else(graph: Graph, site: str) -> None:
    page = graph.page
    page.get_by_role("button", name="prefill").click()
    page.wait_for_function("() => window.page.panel.view.kind === 'prefill'")
    graph.click("self_attn:Qwen3MoeAttention")
    page.get_by_role("searchbox").fill("proj")
    page.get_by_role("button", name="Flame", exact=True).click()
    page.get_by_role("button", name="ms in all").click()
    page.get_by_role("button", name="Total ms").click()
    state = "[page.panel.view.kind, graph.view, graph.flipped, page.panel.table.sort, graph.look.amountOf(0)]"
    mine, hits = graph.ask(state), page.locator("#hits").inner_text()
    other = page.context.new_page()
    other.goto(page.url)
    theirs = Graph(other).wait()
    assert theirs.ask(state) == mine
    assert other.locator("#hits").inner_text() == hits
    other.close()


def test_back_returns_to_what_was_shown_before(graph: Graph) -> None:
    page = graph.page
    page.get_by_role("button", name="prefill").click()
    page.wait_for_function("() => window.page.panel.view.kind === 'prefill'")
    page.go_back()
    page.wait_for_function("() => window.page.panel.view.kind === 'decode'")
    api.expect(page.get_by_role("button", name="decode 36")).to_have_attribute("aria-pressed", "true")


def test_the_rank_choice_shows_that_rank_and_keeps_the_kind(graph: Graph) -> None:
    page = graph.page
    page.get_by_role("button", name="prefill").click()
    page.locator("select[data-key=rank]").select_option(label="10.0.0.1:8001/0 rank 0")
    api.expect(page.locator(".facts")).to_contain_text("steps2")
    assert query(page) == {"kind": ["prefill"], "rank": [f"{ENGINES[0]}-0"]}
    page.locator("select[data-key=rank]").select_option(label="10.0.0.2:8001/0")
    page.wait_for_function("engine => page.panel.view.rank === engine", arg=ENGINES[1])
    assert graph.ask("page.panel.view.steps") == 2


def test_mixed_steps_can_be_left_out_or_shown_alone(graph: Graph) -> None:
    page = graph.page
    page.get_by_role("button", name="prefill").click()
    for choice, steps in (("out", 2), ("alone", 2), ("in", 4)):
        page.get_by_label("Mixed steps").select_option(label=choice)
        api.expect(page.locator(".facts")).to_contain_text(f"steps{steps}")
    page.get_by_label("Mixed steps").select_option(label="alone")
    api.expect(page.locator(".facts")).to_contain_text("tokens a step1,600.0")


def test_a_choice_that_nothing_fits_shows_nothing_but_that(browser: Browser, site: str) -> None:
    tab = browser.new_page()  # not the fixture's: the browser tells its console of the refusal
    tab.goto(f"{site}/runs/{RECORDING_ID}")
    Graph(tab).wait()
    tab.get_by_label("Mixed steps").select_option(label="alone")
    api.expect(tab.locator(".loading")).to_contain_text("no step fits this choice")
    for gone in ("#flamegraph", "table.frames", ".facts dt", "#download"):
        api.expect(tab.locator(gone)).not_to_be_visible()
    tab.keyboard.press("s")  # no key does anything to what is not shown
    tab.get_by_label("Mixed steps").select_option(label="in")
    api.expect(tab.locator("#flamegraph")).to_be_visible()
    api.expect(tab.locator(".facts")).to_contain_text("steps36")
    api.expect(tab.locator("#download")).to_be_visible()
    tab.close()


def test_what_is_typed_and_pressed_before_the_graph_has_come_does_no_harm(page: Page, site: str) -> None:
    held: list[Any] = []
    page.route("**/flamegraph*", lambda route: held.append(route))
    page.goto(f"{site}/runs/{RECORDING_ID}")
    page.get_by_role("searchbox").fill("proj")
    page.get_by_role("button", name="Flame", exact=True).click()
    page.locator("body").press("s")
    page.locator("body").press("u")
    page.locator("body").press("c")
    for route in held:
        route.continue_()
    graph = Graph(page).wait()
    assert graph.ask("graph.flipped")
    api.expect(page.locator("#hits")).to_contain_text("frames · ")


def test_the_layer_switch_shows_every_layer_in_the_order_of_its_number(page: Page, site: str) -> None:
    page.goto(f"{site}/runs/{LAYERED}")
    graph = Graph(page).wait()
    api.expect(page.get_by_label("Notes")).to_have_text("this is to be known")
    page.get_by_role("button", name="by layer").click()
    page.wait_for_function("() => page.panel.view.by_layer")
    names = [f"layers.{number}:Qwen3MoeDecoderLayer" for number in range(LAYERS)]
    places = [graph.box(name)["x"] for name in names]
    assert places == sorted(places)
    page.get_by_role("searchbox").fill("layers.")
    api.expect(page.locator("#hits")).to_have_text(re.compile(rf"^{LAYERS} frames · "))
    page.get_by_role("searchbox").fill("moe.experts")
    api.expect(page.locator("table.frames tr[data-row]").first).to_contain_text("layers.")
    page.get_by_role("button", name="merged").click()
    page.wait_for_function("() => !page.panel.view.by_layer")
    assert "Qwen3MoeDecoderLayer" in graph.names()


def test_the_graph_follows_the_width_of_the_window(graph: Graph) -> None:
    before = graph.ask("graph.width")
    graph.page.set_viewport_size({"width": 1480, "height": 900})
    graph.page.wait_for_function("before => page.panel.graph.width > before + 150", arg=before)


@pytest.mark.parametrize(
    ("link", "name", "holds"),
    [
        ("SVG", "5eed0123-prefill.svg", "prefill · 84.65 ms per step · 4 steps"),
        ("folded", "5eed0123-prefill.folded", "step;execute_model;preprocess"),
        ("speedscope", "5eed0123-prefill.speedscope.json", "https://www.speedscope.app/file-format-schema.json"),
        ("CSV", "5eed0123-prefill.csv", '"stack","frame","self","total","calls","steps","unit"'),
        ("JSON", "5eed0123-prefill.json", '"format":"vime-otel stacks"'),
        ("HTML", "5eed0123-prefill.html", '<script type="application/json" id="profile">'),
    ],
)
def test_what_is_saved_is_what_is_shown(graph: Graph, link: str, name: str, holds: str) -> None:
    graph.page.get_by_role("button", name="prefill").click()
    graph.page.wait_for_function("() => window.page.panel.view.kind === 'prefill'")
    graph.page.get_by_text("Download", exact=True).click()
    with graph.page.expect_download() as download:
        graph.page.get_by_role("link", name=link, exact=True).click()
    assert download.value.suggested_filename == name
    assert holds in Path(download.value.path()).read_text()


def test_nothing_moves_when_the_steps_come_late_and_the_kind_may_change_before(page: Page, site: str) -> None:
    held: list[Any] = []
    page.route("**/steps", lambda route: held.append(route))
    with page.expect_request("**/steps"):
        page.goto(f"{site}/runs/{RECORDING_ID}")
    graph = Graph(page).wait()
    before = graph.box("step")["y"]
    page.get_by_role("button", name="prefill").click()
    page.wait_for_function("() => window.page.panel.view.kind === 'prefill'")
    assert graph.box("step")["y"] == before
    for route in held:
        route.continue_()
    page.wait_for_function("() => window.page.strip?.columns")
    assert graph.box("step")["y"] == before


def test_hostile_names_are_shown_and_not_run(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    write_sample(tmp_path, sample_recording({f"step;execute_model;{evil}": (9000, 3)}, label=evil))
    page.on("dialog", lambda dialog: pytest.fail(f"a name was run: {dialog.message}"))
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}?sandwich={evil}&q={evil}")
    Graph(page, "page.panel.callees").wait()
    page.keyboard.press("Escape")
    graph = Graph(page)
    graph.hover(evil)
    api.expect(page.locator(".tooltip:visible")).to_contain_text(evil)
    graph.click(evil)
    api.expect(page.locator(".path")).to_contain_text(evil)
    api.expect(page.get_by_role("heading", level=1)).to_have_text(evil)
    api.expect(page.locator("img[src=x]")).to_have_count(0)


def test_steps_without_time_say_so(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> None:
    directory = write_sample(tmp_path)
    (directory / "decode.folded").write_text("step 0\n")
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    api.expect(page.locator(".loading")).to_have_text("These steps took no measurable time.")
