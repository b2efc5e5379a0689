"""How a recording goes, on stderr: a bar for each engine, or plain lines where nobody can see bars move."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from .output import unfailing

_REPEAT_S = 5.0


class View(Protocol):
    """Shows a recording as docs/formats.md has it."""

    def show(self, recording: Mapping[str, Any]) -> None:
        """Show how it stands now."""

    def note(self, text: str) -> None:
        """Say something beside it."""


def _message(recording: Mapping[str, Any]) -> str:
    """Why a recording failed is said by the command, as its error."""
    return "no run" if recording["state"] == "failed" else str(recording["message"])


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._overall = progress.add_task("", total=None, phase="", visible=False)
        self._tasks: dict[str, TaskID] = {}

    def show(self, recording: Mapping[str, Any]) -> None:
        message = f"{recording['state']}: {_message(recording)}"
        self._progress.update(self._overall, description=message, visible=not recording["engines"])
        for engine in recording["engines"]:
            key = engine["engine"]
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(engine["label"], total=engine["steps_asked"], phase="")
            phase = "waiting" if engine["phase"] == "idle" else engine["phase"]
            self._progress.update(self._tasks[key], completed=engine["steps_done"], phase=phase)

    def note(self, text: str) -> None:
        self._progress.console.print(text)


class _Lines:
    """A line when something changes, and while steps are counted one every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, tuple[str, str, float]] = {}

    def show(self, recording: Mapping[str, Any]) -> None:
        self._say("", recording["state"], _message(recording))
        for engine in recording["engines"]:
            phase = "waiting" if engine["phase"] == "idle" else engine["phase"]
            self._say(engine["label"], phase, f"{engine['steps_done']}/{engine['steps_asked']}")

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _say(self, subject: str, phase: str, detail: str) -> None:
        said_phase, said_detail, when = self._said.get(subject, ("", "", 0.0))
        now = time.monotonic()
        if phase == said_phase and (detail == said_detail or now - when < _REPEAT_S):
            return
        self._said[subject] = (phase, detail, now)
        self._console.print(f"{subject}: {phase} {detail}" if subject else f"{phase}: {detail}", soft_wrap=True)


@contextmanager
def progress_view() -> Iterator[View]:
    """A view on stderr that fits the terminal."""
    console = Console(file=unfailing(sys.stderr), highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[phase]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)
