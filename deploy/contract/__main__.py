"""`python -m contract [VERSION …]`: check the hook targets against vLLM's releases and write docs/vllm-versions.md.

Without versions: the newest release of each minor version. With versions only these are checked, and no page is
written. Exit status: 0 when the newest has all it should, 1 when not, 2 when releases can't be read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vime_otel.recorder.vllm_targets import TARGETS

from .layout import FOUND, Layout
from .releases import ContractError, Release, cache_directory, newest_of_each_minor, parse_version, released_versions
from .table import Column, lacking, render

PAGE = Path(__file__).parents[2] / "docs" / "vllm-versions.md"


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    try:
        versions = sorted(arguments, key=parse_version) or newest_of_each_minor(released_versions())
        columns = {version: _check(version) for version in versions}
    except (ContractError, ValueError) as error:
        print(f"contract: {error}", file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(render(columns))
        print(f"wrote {PAGE}")
    newest = versions[-1]
    lacks = lacking(columns[newest])
    print(f"{newest} lacks: {', '.join(lacks)}" if lacks else f"{newest} has all it should")
    return 1 if lacks else 0


def _check(version: str) -> Column:
    layout = Layout(Release(version, cache_directory()).module)
    column = {target.name: layout.check(target) for target in TARGETS}
    print(f"vLLM {version}: {sum(verdict.status == FOUND for verdict in column.values())} of {len(column)} found")
    for name, verdict in column.items():
        if verdict.status != FOUND:
            print(f"  {verdict.status:8} {name} {verdict.detail}".rstrip())
    return column


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
