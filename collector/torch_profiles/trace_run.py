"""A run directory for torch traces alone, or traces into one that is there."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.recording import Recording
from vime_otel.data.urls import shown
from vime_otel.data.write_run import new_run_name, write_run

from .profile_session import ProfilePlan, ProfileResult
from .trace_manifest import gather, manifest_of


def write_profile_run(
    target: Path | None,
    root: Path,
    plan: ProfilePlan,
    result: ProfileResult,
    version: str,
    label: str | None = None,
    copy: bool = False,
) -> tuple[Path | None, dict[str, Any]]:
    """Gather a profile's traces into `target`, or into a new run below `root`; returns the run and the manifest.

    Without any trace there is no new run. Raises VimeOtelError where they can't be written.
    """
    if target is None and not result.traces:
        return None, manifest_of(plan, result, [])
    path = target or root / new_run_name(plan.session, label or "torch")
    try:
        manifest = gather(path, plan, result, copy)
        if target is None:
            write_run(path, Recording(_header(plan, result, version, label)))
    except OSError as error:
        raise VimeOtelError(
            f"the traces can't be gathered into {path} ({error.strerror}); they lie in {plan.trace_dir}"
        ) from error
    return path, manifest


def _header(plan: ProfilePlan, result: ProfileResult, version: str, label: str | None) -> dict[str, Any]:
    """recording.json of a run without steps; `Header` of data.run_format."""
    return {
        "id": plan.session,
        "label": label,
        "complete": result.ok,
        "reasons": [f"{worker}: {why}" for worker, why in result.missing.items()],
        "notes": ["torch profiler traces alone: no steps were recorded as spans"],
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "asked": {"iterations": plan.iterations},
        "engines": [],
        "unmatched_workers": [],
        "versions": {
            "vime_otel": version,
            "vllm": sorted({outcome.version for outcome in result.started if outcome.version}),
        },
        "workers": [shown(worker.url) for worker in result.workers],
    }
