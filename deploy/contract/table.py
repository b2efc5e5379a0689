"""The kept table, docs/vllm-versions.md: which release has which hook target."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vime_otel.recorder import vllm_targets
from vime_otel.recorder.vllm_targets import Target

from .layout import CHANGED, FOUND, MISSING, Verdict

Column = Mapping[str, Verdict]
"""A release's verdicts by target name."""

_MARKS = {FOUND: "✓", CHANGED: "changed", MISSING: "–"}
_SECTIONS = (
    ("Engine", vllm_targets.ENGINE),
    ("Configuration", vllm_targets.CONFIGURATION),
    ("Workers", vllm_targets.WORKER),
    ("Parts of the V2 runner", vllm_targets.RUNNER_METHODS),
    ("Eager steps", vllm_targets.EAGER),
    ("MoE phases", vllm_targets.MOE_PHASES),
    ("What the MoE phases depend on", vllm_targets.MOE_CONDITIONS),
)
_INTRODUCTION = """\
# vLLM's releases and the recorder

What the recorder hooks or reads in vLLM (`vime_otel/recorder/vllm_targets.py`) and which releases have it. Written by
`make contract`, which reads the source of the newest release of each minor version; nothing is installed or run.

✓: there, with the parameters that the recorder uses · changed: there, but not so (listed at the end) · –: absent.
A target in *italics* belongs to some releases or set-ups only. A recording tells under `hooks` what its engines had:
the same names, but without the model runner's `(V1)`, `(V2)` or `(CPU)`.
"""


def render(columns: Mapping[str, Column]) -> str:
    """The page for these releases, in the order given."""
    parts = [_INTRODUCTION]
    for title, targets in _SECTIONS:
        parts += [f"## {title}\n", _render_section(targets, columns)]
    parts.append("## Changed\n")
    changed = [
        f"- {version}: `{name}` {verdict.detail}"
        for version, column in columns.items()
        for name, verdict in column.items()
        if verdict.status == CHANGED
    ]
    parts.append("\n".join(changed or ["Nothing."]) + "\n")
    return "\n".join(parts)


def _render_section(targets: tuple[Target, ...], columns: Mapping[str, Column]) -> str:
    lines = [f"| target | use | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for target in targets:
        name = f"*`{target.name}`*" if target.optional else f"`{target.name}`"
        marks = [_MARKS[column[target.name].status] for column in columns.values()]
        lines.append(f"| {name} | {target.use} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, dict[str, str]]:
    """Version → target name → status, as a kept page says."""
    statuses = {mark: status for status, mark in _MARKS.items()}
    found: dict[str, dict[str, str]] = {}
    versions: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| target |"):
            versions = cells[2:]
        elif match := re.fullmatch(r"\*?`(.+)`\*?", cells[0]) if line.startswith("| ") else None:
            for version, mark in zip(versions, cells[2:], strict=True):
                found.setdefault(version, {})[match[1]] = statuses[mark]
    return found


def lacking(column: Column) -> list[str]:
    """Names of targets that a release should have and has not, or not as needed."""
    needed = {target.name for target in vllm_targets.TARGETS if not target.optional}
    return [name for name, verdict in column.items() if name in needed and verdict.status != FOUND]
