"""Everything by keyboard alone: no test here touches the mouse."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from graphs import LAYERED, Graph
from samples import ENGINES, RECORDING_ID

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture
def graph(page: Page, site: str) -> Graph:
    """The flame graph of the sample run, with the keyboard in it."""
    page.goto(f"{site}/runs/{RECORDING_ID}")
    graph = Graph(page).wait()
    page.keyboard.press("g")
    return graph


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_arrows_walk_over_the_frames_and_say_where(graph: Graph) -> None:
    page = graph.page
    press(page, "ArrowDown", "ArrowDown")
    assert graph.focused() == "Qwen3MoeForCausalLM"
    press(page, "ArrowRight", "ArrowDown")
    assert graph.focused() == "logits_processor:LogitsProcessor"
    api.expect(page.locator(".path")).to_contain_text("step")
    api.expect(page.locator(".path")).to_contain_text("share of step 4.8%")
    press(page, "ArrowUp", "ArrowLeft", "ArrowUp")
    assert graph.focused() == "execute_model"
    press(page, "Home")
    assert graph.focused() == "step"


def test_zoom_reset_pan_and_flip(graph: Graph) -> None:
    page = graph.page
    whole = graph.box("step")["width"]
    press(page, "ArrowDown", "ArrowDown", "ArrowRight", "Enter")
    assert graph.box(graph.focused())["width"] == pytest.approx(whole, abs=1)
    left = graph.ask("graph.view.left")
    press(page, "Shift+ArrowLeft")
    assert graph.ask("graph.view.left") < left
    press(page, "0")
    assert not graph.ask("graph.isZoomed")
    press(page, "g", "+")
    assert graph.ask("graph.isZoomed")
    press(page, "-", "-")
    assert not graph.ask("graph.isZoomed")
    press(page, "f")
    assert graph.box("step")["y"] > graph.box("moe.experts")["y"]
    press(page, "ArrowUp")
    assert graph.focused() != "step"


def test_search_next_previous_and_back_with_escape(graph: Graph) -> None:
    page = graph.page
    press(page, "/")
    page.keyboard.type("norm")
    press(page, "Enter", "Enter", "Shift+Enter")
    api.expect(page.locator("#hits")).to_have_text(re.compile(r"^1 of 5 frames · "))
    press(page, "Escape")
    api.expect(page.get_by_role("searchbox")).to_have_value("")
    press(page, "Escape")
    page.keyboard.press("/")
    page.keyboard.type("moe")
    page.keyboard.press("Tab")
    press(page, "n", "n", "N")
    api.expect(page.locator("#hits")).to_have_text(re.compile(r"^1 of \d+ frames"))


def test_the_sandwich_and_back(graph: Graph) -> None:
    page = graph.page
    press(page, *["ArrowDown"] * 5, "s")
    Graph(page, "page.panel.callees").wait()
    api.expect(page.locator(".sandwich-head strong")).to_have_text("mlp:Qwen3MoeSparseMoeBlock")
    press(page, "Escape")
    api.expect(page.locator("#flamegraph")).to_be_visible()


def test_kind_rank_mixed_unit_and_steps(graph: Graph) -> None:
    page = graph.page
    press(page, "k")
    page.wait_for_function("() => page.panel.view.kind === 'prefill'")
    press(page, "m")
    page.wait_for_function("() => page.panel.view.steps === 2")
    press(page, "r")
    page.wait_for_function("engine => page.panel.view.rank === engine", arg=ENGINES[0])
    press(page, "R", "u")
    assert "unit=second" in page.url
    press(page, "k")
    page.wait_for_function("() => page.panel.view.kind === 'decode'")


def test_layers(page: Page, site: str) -> None:
    page.goto(f"{site}/runs/{LAYERED}")
    Graph(page).wait()
    press(page, "l")
    page.wait_for_function("() => page.panel.view.by_layer")


def test_the_strip_of_steps(graph: Graph) -> None:
    page = graph.page
    page.wait_for_function("() => page.strip?.columns")
    press(page, "p", "ArrowRight", "ArrowRight", "Enter")
    page.wait_for_function("() => page.panel.view.steps === 1")
    assert "steps=2" in page.url
    press(page, "p", "Shift+ArrowRight", "Shift+ArrowRight", "Enter")
    page.wait_for_function("() => page.state.get('steps') === '2-4'")
    press(page, "p", "Escape")
    page.wait_for_function("() => page.panel.view.steps === 36")
    press(page, "o")
    page.wait_for_function("() => page.state.get('steps') === '13'")
    press(page, "a")
    page.wait_for_function("() => page.panel.view.steps === 36")


def test_the_table(graph: Graph) -> None:
    page = graph.page
    api.expect(page.locator("table.frames tr[data-row]").first).to_be_visible()
    press(page, "t", "ArrowDown", "ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "attn:Attention"
    press(page, "Enter")
    assert graph.focused() == "attn:Attention"


def test_copying(graph: Graph) -> None:
    page = graph.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    press(page, "ArrowDown", "c")
    api.expect(page.locator("#hits")).to_have_text("frame copied")
    assert page.evaluate("navigator.clipboard.readText()") == "execute_model"
    press(page, "Shift+C")
    api.expect(page.locator("#hits")).to_have_text("stack copied")
    assert page.evaluate("navigator.clipboard.readText()") == "step;execute_model"


def test_the_list_of_keys_names_every_key_there_is(graph: Graph) -> None:
    page = graph.page
    press(page, "?")
    keys = page.get_by_role("dialog", name="Keys")
    api.expect(keys).to_be_visible()
    shown = keys.locator("kbd").all_inner_texts()
    assert {
        "/",
        "n",
        "N",
        "g",
        "0",
        "f",
        "s",
        "u",
        "c",
        "C",
        "t",
        "k",
        "r",
        "R",
        "l",
        "m",
        "o",
        "p",
        "a",
        "w",
        "d",
    } <= set(shown)
    assert len(shown) == page.evaluate("page.keys.bindings.length")
    press(page, "?")
    api.expect(keys).to_be_hidden()


def test_light_and_dark(graph: Graph) -> None:
    page = graph.page
    back = "getComputedStyle(document.body).backgroundColor"
    light, fill = page.evaluate(back), graph.pixel("execute_model", 60)
    press(page, "d")
    assert page.evaluate(back) != light
    graph.ask("graph.drawNow()")
    assert graph.pixel("execute_model", 60) != fill
    page.reload()
    Graph(page).wait()
    assert page.evaluate(back) != light  # it is remembered


def test_every_control_can_be_reached_and_seen(graph: Graph) -> None:
    page = graph.page
    page.reload()
    graph.wait()
    reached = set()
    for _ in range(36):
        press(page, "Tab")
        reached.add(
            page.evaluate(
                "(({id, textContent, ariaLabel}) => id || ariaLabel || textContent.trim())(document.activeElement)"
            )
        )
    assert {"keys", "theme", "search", "Flame graph", "Callers and callees", "Frames"} <= reached
    assert any(name.startswith("Steps: arrow keys") for name in reached)
