"""Our packages `collector` and `viewer` have common names: make sure that nobody else's are imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from ..data.errors import VimeOtelError

_OUR_PARENT = Path(__file__).resolve().parents[2]


def check_ours(packages: Iterable[str]) -> None:
    """Raise VimeOtelError, naming the culprit, where a package does not lie beside vime_otel."""
    for name in packages:
        found = _directory(name)
        if found is None:
            raise VimeOtelError(
                f"the package `{name}` is missing beside {_OUR_PARENT / 'vime_otel'}; reinstall vime-otel"
            )
        if found != _OUR_PARENT / name:
            raise VimeOtelError(
                f"{found} hides vime-otel's own package `{name}`;"
                " take its parent folder off PYTHONPATH, or call from another folder"
            )


def _directory(name: str) -> Path | None:
    """The folder (or file) that `import name` would load."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin or name).resolve()
