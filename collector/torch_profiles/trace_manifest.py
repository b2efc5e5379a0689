"""Gathering traces into a run directory, and the manifest that says what each is; see docs/formats.md."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from vime_otel.data.run_files import MANIFEST_FILE, TORCH_DIR
from vime_otel.data.urls import shown
from vime_otel.data.write_run import write_atomically

from ..addresses import host_and_port
from ..router import Worker
from .profile_session import ProfilePlan, ProfileResult
from .trace_files import BROWSER_BYTES, TraceContent
from .trace_owners import FoundTrace

FORMAT = 1
TOO_BIG = (
    "too big for a browser's memory: `vime-otel analyze` reads it, and so does Perfetto with"
    " `trace_processor --httpd FILE` running beside it"
)
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")


def gather(run: Path, plan: ProfilePlan, result: ProfileResult, copy: bool = False) -> dict[str, Any]:
    """Link the traces into `run`/torch (or copy them, as is done where another disk allows no link).

    Writes manifest.json, in which earlier traces of the run stay, and returns what is new in it. A trace
    that can't be had any more is told of there. Raises OSError where nothing can be written.
    """
    directory = run / TORCH_DIR
    directory.mkdir(parents=True, exist_ok=True)
    earlier = _earlier(directory)
    entries = [_gathered(trace, directory, copy) for trace in result.traces]
    manifest = manifest_of(plan, result, entries)
    written = {**manifest, "traces": [*earlier, *entries]}
    write_atomically(directory / MANIFEST_FILE, _dumps(written))
    return manifest


def manifest_of(plan: ProfilePlan, result: ProfileResult, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What manifest.json says of one profile."""
    missing = [
        {"worker": shown(worker.url), "pool": worker.worker_type, "why": result.missing[shown(worker.url)]}
        for worker in result.workers
        if shown(worker.url) in result.missing
    ]
    return {
        "format": FORMAT,
        "session": plan.session,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "asked": {"iterations": plan.iterations, "requests": plan.requests, "max_seconds": plan.max_seconds},
        "traces": entries,
        "missing": missing,
        "failed_requests": {
            shown(url): {"failed": sent.failed, "of": sent.sent, "reasons": list(sent.reasons)}
            for url, sent in result.traffic.items()
            if sent.failed
        },
    }


def _earlier(directory: Path) -> list[dict[str, Any]]:
    """The traces of earlier profiles that are still there."""
    try:
        found = orjson.loads((directory / MANIFEST_FILE).read_bytes())["traces"]
        return [entry for entry in found if (directory / entry["file"]).is_file()]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _dumps(manifest: dict[str, Any]) -> bytes:
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2)


def _gathered(trace: FoundTrace, directory: Path, copy: bool) -> dict[str, Any]:
    try:
        return _entry(trace, directory, _placed(trace, directory, copy))
    except FileNotFoundError:
        gone = replace(trace.content, why="it went before it could be gathered")
        return _entry(replace(trace, content=gone), directory, directory / _folder(trace.worker) / _name(trace.path))


def _placed(trace: FoundTrace, directory: Path, copy: bool) -> Path:
    """Where a trace lies now: in a folder of its worker's, under its own name."""
    folder = directory / _folder(trace.worker)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / _name(trace.path)
    if place.exists():  # of the same name, in another of the worker's folders
        place = folder / f"{_UNUSUAL.sub('_', trace.path.parent.name)}-{place.name}"
        place.unlink(missing_ok=True)
    if not copy:
        try:
            os.link(trace.path.resolve(), place)
            return place
        except FileNotFoundError:
            raise
        except OSError:
            pass  # another disk, or one without links
    shutil.copyfile(trace.path, place)
    return place


def _name(path: Path) -> str:
    """A file's name, fit for JSON."""
    return path.name.encode(errors="backslashreplace").decode()


def _folder(worker: Worker | None) -> str:
    if worker is None:
        return "unassigned"
    host, port = host_and_port(worker.url)
    return _UNUSUAL.sub("_", f"{host}-{port}")


def _entry(trace: FoundTrace, directory: Path, place: Path) -> dict[str, Any]:
    content, worker = trace.content, trace.worker
    return {
        "file": place.relative_to(directory).as_posix(),
        "source": str(trace.path).encode(errors="backslashreplace").decode(),
        "worker": shown(worker.url) if worker else None,
        "pool": worker.worker_type if worker else None,
        "rank": trace.rank,
        "bytes": content.bytes,
        "inflated_bytes": content.inflated_bytes,
        "start_unix_nano": content.first_unix_nano,
        "end_unix_nano": content.last_unix_nano,
        "status": "whole" if content.whole else "truncated",
        "why": content.why,
        "note": browser_note(content),
    }


def browser_note(content: TraceContent) -> str:
    """What to do with a trace that no browser opens; empty where one does."""
    return TOO_BIG if content.inflated_bytes > BROWSER_BYTES else ""


def summary_lines(manifest: dict[str, Any]) -> Sequence[str]:
    """What is wrong, in lines for people."""
    lines = [f"{entry['file']}: {entry['status']}, {entry['why']}" for entry in manifest["traces"] if entry["why"]]
    lines += [f"{entry['file']}: {entry['note']}" for entry in manifest["traces"] if entry["note"]]
    lines += [f"{entry['worker']}: no whole trace; {entry['why']}" for entry in manifest["missing"]]
    return lines + [
        f"{worker}: {sent['failed']} of {sent['of']} completions failed: {'; '.join(sent['reasons'])}"
        for worker, sent in manifest["failed_requests"].items()
    ]
