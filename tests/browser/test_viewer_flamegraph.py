"""The flame graph in a real browser: there, zoomed, searched, switched."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samples import (
    ENGINE_STACKS,
    ENGINES,
    LAYERS,
    RECORDING_ID,
    WORKER_STACKS,
    by_layer,
    sample_recording,
    write_sample,
)

from viewer.app import create_app

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture
def run_page(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> Page:
    """The page of the sample run, its graph drawn."""
    write_sample(tmp_path)
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    box(page, "step").wait_for()
    return page


def box(page: Page, name: str) -> Locator:
    """The box of a frame, by what its label begins with."""
    return page.locator(f'#flamegraph g.frame[name^="{name}"]')


def width(locator: Locator) -> float:
    found = locator.bounding_box()
    return found["width"] if found else 0.0


def test_every_frame_of_the_recording_has_its_box(run_page: Page) -> None:
    api.expect(run_page.locator("#flamegraph g.frame")).to_have_count(len(WORKER_STACKS) + len(ENGINE_STACKS))
    api.expect(run_page.locator("#flamegraph-note")).to_have_count(0)


def test_boxes_are_as_wide_as_their_share_and_labelled_with_name_and_time(run_page: Page) -> None:
    experts = box(run_page, "moe.experts")
    api.expect(experts).to_have_text("moe.experts  4.08 ms")
    whole = width(box(run_page, "step").locator("rect"))
    assert width(experts.locator("rect")) / whole == pytest.approx(0.334, abs=0.003)


def test_boxes_and_legend_are_coloured_by_what_the_frames_are(run_page: Page) -> None:
    fill = "element => getComputedStyle(element).fill"
    assert box(run_page, "moe.experts").locator("rect").evaluate(fill) == "rgb(238, 136, 102)"
    assert box(run_page, "self_attn").locator("rect").evaluate(fill) == "rgb(119, 170, 221)"
    api.expect(run_page.locator(".legend li:visible")).to_have_count(8)  # this model has no plain MLP
    api.expect(run_page.locator(".legend li", has_text="MLP")).to_be_hidden()


def test_a_click_zooms_and_reset_shows_all_again(run_page: Page) -> None:
    attention, reset = box(run_page, "self_attn"), run_page.get_by_role("button", name="Reset zoom")
    whole, before = width(box(run_page, "step").locator("rect")), width(attention.locator("rect"))
    api.expect(reset).to_be_disabled()
    attention.click()
    _expect_width(attention, whole)
    api.expect(box(run_page, "moe.experts")).to_have_count(0)
    api.expect(box(run_page, "rotary_emb")).to_have_text("rotary_emb")
    reset.click()
    _expect_width(attention, before)
    api.expect(box(run_page, "moe.experts")).to_be_visible()
    api.expect(reset).to_be_disabled()


def test_a_search_highlights_counts_and_tells_the_share(run_page: Page) -> None:
    search, hits = run_page.get_by_role("searchbox"), run_page.locator("#hits")
    search.fill("MOE.")
    api.expect(hits).to_have_text("4 frames · 44.1%")
    marked = run_page.locator("#flamegraph g.hit")
    api.expect(marked).to_have_count(4)
    assert {name.partition(" ")[0] for name in _names(marked)} == {"moe.experts", "dispatch", "combine", "route"}
    search.fill("")
    api.expect(hits).to_have_text("")
    api.expect(marked).to_have_count(0)


def test_a_hit_below_a_hit_counts_its_time_once(run_page: Page) -> None:
    run_page.get_by_role("searchbox").fill("e")
    api.expect(run_page.locator("#hits")).to_have_text(re.compile(r"^\d+ frames · 100\.0%$"))


def test_a_hit_in_a_hairline_box_can_be_seen(run_page: Page) -> None:
    run_page.get_by_role("searchbox").fill("norm:RMSNorm")
    rect = run_page.locator("#flamegraph g.hit rect").last
    style = rect.evaluate("element => [getComputedStyle(element).stroke, getComputedStyle(element).strokeWidth]")
    assert style == ["rgb(194, 0, 122)", "2px"]
    dimmed = box(run_page, "moe.experts").locator("rect")
    assert dimmed.evaluate("element => Number(getComputedStyle(element).fillOpacity)") < 0.5


def test_hits_stay_marked_through_a_zoom(run_page: Page) -> None:
    run_page.get_by_role("searchbox").fill("norm")
    api.expect(run_page.locator("#flamegraph g.hit")).to_have_count(5)
    box(run_page, "self_attn").click()
    api.expect(run_page.locator("#flamegraph g.hit")).to_have_count(2)


def test_a_frame_of_the_table_is_found_in_the_graph(run_page: Page) -> None:
    run_page.get_by_role("button", name="attn:Attention", exact=True).click()
    api.expect(run_page.get_by_role("searchbox")).to_have_value("attn:Attention")
    api.expect(run_page.locator("#hits")).to_have_text("1 frame · 11.6%")


def test_the_tooltip_tells_all_the_numbers(run_page: Page) -> None:
    tooltip = run_page.get_by_role("tooltip")
    api.expect(tooltip).to_be_hidden()
    box(run_page, "attn:Attention").hover()
    api.expect(tooltip).to_be_visible()
    rows = ("ms per step1.41", "share of step11.6%", "self ms1.41", "calls per step24", "ms per call0.059")
    api.expect(tooltip).to_have_text(f"attn:Attention{''.join(rows)}")
    run_page.mouse.move(5, 5)
    api.expect(tooltip).to_be_hidden()


def test_the_kind_switch_shows_the_other_kind_under_its_own_address(run_page: Page) -> None:
    run_page.get_by_role("link", name="prefill").click()
    api.expect(run_page).to_have_url(re.compile(r"\?kind=prefill$"))
    api.expect(box(run_page, "step")).to_have_text("step  84.65 ms")


def test_the_rank_choice_shows_that_rank_and_keeps_the_kind(run_page: Page) -> None:
    run_page.get_by_role("link", name="prefill").click()
    run_page.get_by_label("Rank").select_option(label="10.0.0.1:8001/0 rank 0")
    api.expect(run_page).to_have_url(re.compile(rf"\?kind=prefill&rank={ENGINES[0]}-0$"))
    api.expect(run_page.locator(".facts")).to_contain_text("steps2")
    api.expect(box(run_page, "execute_model")).to_be_visible()


def test_the_layer_switch_shows_every_layer_in_the_order_of_its_number(
    page: Page, serving: Callable[[Any], str], tmp_path: Path
) -> None:
    write_sample(tmp_path, by_layer(sample_recording(notes=["this is to be known"])))
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    box(page, "step").wait_for()
    api.expect(page.get_by_label("Notes")).to_have_text("this is to be known")
    layers = [page.locator(f'#flamegraph g.frame[name="{number}"]') for number in range(LAYERS)]
    api.expect(layers[7]).to_have_count(0)
    page.get_by_role("link", name="by layer").click()
    api.expect(page).to_have_url(re.compile(r"\?kind=decode&layers=1$"))
    for layer in layers:  # the boxes have room for the number alone
        api.expect(layer).to_have_count(1)
    places = [found["x"] for layer in layers if (found := layer.bounding_box())]
    assert places == sorted(places)
    assert len(places) == LAYERS
    page.get_by_role("searchbox").fill("layers.")
    api.expect(page.locator("#hits")).to_have_text(re.compile(rf"^{LAYERS} frames · "))
    page.get_by_role("link", name="prefill").click()
    api.expect(layers[7]).to_have_count(1)
    page.get_by_label("Rank").select_option(label="10.0.0.1:8001/0 rank 0")
    api.expect(page).to_have_url(re.compile(rf"\?kind=prefill&layers=1&rank={ENGINES[0]}-0$"))
    page.get_by_role("link", name="merged").click()
    api.expect(layers[7]).to_have_count(0)
    api.expect(box(page, "Qwen3MoeDecoderLayer")).to_have_count(1)


def test_the_graph_follows_the_width_of_the_window(run_page: Page) -> None:
    before = width(box(run_page, "step").locator("rect"))
    run_page.set_viewport_size({"width": 1920, "height": 900})
    _expect_width(box(run_page, "step"), before + 640)


def test_the_saved_svg_is_the_view_that_is_shown(run_page: Page) -> None:
    run_page.get_by_role("link", name="prefill").click()
    with run_page.expect_download() as download:
        run_page.get_by_role("link", name="SVG").click()
    assert download.value.suggested_filename == "5eed0123-prefill.svg"
    assert "prefill · 84.65 ms per step · 4 steps" in Path(download.value.path()).read_text()


def test_hostile_names_are_shown_and_not_run(page: Page, serving: Callable[[Any], str], tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    write_sample(tmp_path, sample_recording({f"step;execute_model;{evil}": (9000, 3)}, label=evil))
    page.on("dialog", lambda dialog: pytest.fail(f"a name was run: {dialog.message}"))
    page.goto(f"{serving(create_app(tmp_path))}/runs/{RECORDING_ID}")
    hostile = box(page, "<img")
    hostile.hover()
    api.expect(page.get_by_role("tooltip")).to_contain_text(evil)
    api.expect(page.get_by_role("heading", level=1)).to_have_text(evil)
    api.expect(page.locator("img[src=x]")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [1280, 1920])
def test_nothing_juts_out_and_texts_contrast(run_page: Page, scheme: str, viewport: int) -> None:
    run_page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    run_page.set_viewport_size({"width": viewport, "height": 900})
    assert run_page.evaluate("document.documentElement.scrollWidth") <= viewport
    colors = run_page.evaluate(
        "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name].match(/\\d+/g).map(Number))"
    )
    text, back = (sum(color) for color in colors)
    assert (text < back) == (scheme == "light")
    assert abs(text - back) > 500


def _names(boxes: Locator) -> list[str]:
    return [str(box.get_attribute("name")) for box in boxes.all()]


def _expect_width(boxes: Locator, expected: float) -> None:
    """Wait until a box has this width in pixels."""
    boxes.page.wait_for_function(
        "([element, expected]) => Math.abs(element.getBBox().width - expected) < 1.5",
        arg=[boxes.locator("rect").element_handle(), expected],
        timeout=5000,
    )
