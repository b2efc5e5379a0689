"""Two views side by side, for the page and the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vime_otel.data.compare import boxes, compare
from vime_otel.data.errors import UsageError
from vime_otel.data.folded import escape_frame

from . import tree
from .store import RunNotFound, Store
from .view import View, choose

KEYS = ("a", "b", "kind", "layers", "mixed", "a_rank", "b_rank", "a_steps", "b_steps")
"""What an address says of a comparison; without `b` both sides are of the run `a`."""


def choose_sides(store: Store, query: Mapping[str, str]) -> tuple[View, View]:
    """The two views that a query asks for. Raises UsageError, RunNotFound or AmbiguousRun."""
    unknown = set(query) - set(KEYS)
    if unknown:
        raise UsageError(f"unknown in the query: {', '.join(sorted(unknown))}; known are {', '.join(KEYS)}")
    if not query.get("a"):
        raise UsageError("a comparison needs two recordings: a=ID&b=ID")
    runs = [store.find(query["a"]), store.find(query.get("b") or query["a"])]
    shared = [kind for kind in runs[0].steps if kind in runs[1].steps]
    kind = query.get("kind") or next(iter(shared), "")
    if kind not in shared:
        raise RunNotFound(f"the two runs have no {kind or 'kind of'} steps in common")
    sides = []
    for letter, run in zip("ab", runs, strict=True):
        chosen = {key: query[key] for key in ("layers", "mixed") if query.get(key)}
        chosen |= {key: query[f"{letter}_{key}"] for key in ("rank", "steps") if query.get(f"{letter}_{key}")}
        sides.append(choose(run, {"kind": kind, **chosen}))
    return sides[0], sides[1]


def compare_views(a: View, b: View) -> dict[str, Any]:
    """The comparison and its flame graph: boxes as wide as the mean of both, with each side's own total."""
    found = compare(a.selected, b.selected, (a.title, b.title))
    answer = found.as_dict()
    answer |= {"titles": [a.title, b.title], "unit": a.unit, "tree": None}
    if found.verdict == "loads differ":
        return answer
    per_step = [found.a.per_step_us, found.b.per_step_us]
    union = {
        stack: round(sum(side.get(stack, 0.0) for side in per_step) * 500) for stack in {**per_step[0], **per_step[1]}
    }
    graph = tree.build(union, {})
    columns = boxes(found)
    root_a, root_b = found.a.step_us, found.b.step_us
    stacks = list(_stacks(graph))
    answer["tree"] = {
        **graph.as_dict(),
        "a": [round(columns.a_us.get(stack, 0.0) if stack else root_a, 3) for stack in stacks],
        "b": [round(columns.b_us.get(stack, 0.0) if stack else root_b, 3) for stack in stacks],
        "noise": [round(columns.noise_us.get(stack, 0.0), 3) for stack in stacks],
    }
    return answer


def _stacks(graph: tree.Tree) -> Iterator[str]:
    """The stack of every frame, in the tree's order; empty for a made-up root."""
    path: list[str] = []
    first = 1 if graph.made_up_root else 0
    for name, depth in zip(graph.name, graph.depth, strict=True):
        path[depth:] = [escape_frame(graph.names[name])]
        yield ";".join(path[first:])
