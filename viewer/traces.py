"""A run's torch traces: the files in its torch folder, with what the manifest says of each."""

from __future__ import annotations

import os
from typing import Annotated, TypedDict

import msgspec

from vime_otel.data.run_files import JOURNAL_FILE, MANIFEST_FILE, TORCH_DIR
from vime_otel.data.rundir import RunDirectory

from .store import Store, torch_name

_MOST_BYTES = 64 << 20
_Text = Annotated[str, msgspec.Meta(max_length=4000)]


class _Entry(TypedDict, total=False):
    file: _Text
    worker: _Text | None
    rank: int | None
    status: _Text
    why: _Text
    note: _Text


class _Missing(TypedDict, total=False):
    worker: _Text
    why: _Text


class _Manifest(TypedDict, total=False):
    traces: list[_Entry]
    missing: list[_Missing]


class Trace(TypedDict):
    """One trace for the page: `remark` is what is wrong with it, or what to know before opening it."""

    name: str
    bytes: int
    worker: str | None
    rank: int | None
    remark: str


class Traces(TypedDict):
    """All of them, and the workers that left none."""

    files: list[Trace]
    missing: list[_Missing]


def traces_of(store: Store, run: RunDirectory) -> Traces:
    """What there is; a manifest that can't be read is passed over."""
    manifest = _manifest(store, run)
    told = {entry.get("file"): entry for entry in manifest.get("traces", [])}
    files = []
    for path in store.torch_traces(run):
        name = torch_name(run, path)
        entry = told.get(name, _Entry())
        remark = "; ".join(filter(None, (entry.get("why"), entry.get("note"))))
        files.append(
            Trace(
                name=name,
                bytes=path.stat().st_size,
                worker=entry.get("worker"),
                rank=entry.get("rank"),
                remark=remark,
            )
        )
    return Traces(files=files, missing=manifest.get("missing", []))


def has_spans(store: Store, run: RunDirectory) -> bool:
    """Whether the recorded steps can be shown on a timeline."""
    path = run.path / JOURNAL_FILE
    return path.is_file() and store.is_inside(path) and bool(run.header.get("engines"))


def _manifest(store: Store, run: RunDirectory) -> _Manifest:
    path = run.path / TORCH_DIR / MANIFEST_FILE
    try:
        if not store.is_inside(path) or os.stat(path).st_size > _MOST_BYTES:
            return _Manifest()
        return msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (OSError, msgspec.MsgspecError):
        return _Manifest()
