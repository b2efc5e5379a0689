"""What several engines under one VIME_OTEL_DIR agree on: who lives, who is done, who merges.

`.engines/<id>` is locked by its engine for as long as it lives, and names the start file that the engine
is done with, the one that it last began with, and its label. Everything that changes the directory as a
whole happens under `.lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from vime_otel.data.lockstep import Position

MAX_STEPS = 1_000_000
LOCK_SECONDS = 60.0
"""So long the directory's lock is waited for: one who holds it merges, or is stopped, or its host is gone."""

_LOCK_LOOK_SECONDS = 0.02
_START_BYTES = 128
_KEY_CHARACTERS = 16
_VANISHED = "vanished"
_OPTIONS = {"force-eager": "force_eager", "per-layer": "per_layer"}
_NUMBER = re.compile(r"0*[1-9][0-9]*", re.ASCII)


@dataclass(frozen=True)
class Start:
    """A start file: 16 hex digits that tell it from any other one, what it asks for, and what to say about it."""

    key: str
    steps: int
    note: str = ""
    force_eager: bool = False
    per_layer: bool = False


class SharedDirectory:
    """One engine's view of the directory. Raises OSError where the directory can't be used."""

    def __init__(self, directory: Path, engine: str):
        self.directory = directory
        self._engine = engine
        self._presence: int | None = None

    @property
    def _engines(self) -> Path:
        return self.directory / ".engines"

    def enter(self) -> None:
        """Be counted among the living, until `leave` or the end of the process."""
        self._engines.mkdir(parents=True, exist_ok=True)
        path = self._engines / self._engine
        while self._presence is None:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            # Another engine may have found it unlocked and taken it for a dead one's.
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                self._presence = file
                os.pwrite(file, b" " * 2 * _KEY_CHARACTERS, 0)  # room for `mark_done` on a disk that is full by then
            else:
                os.close(file)

    def entered(self) -> bool:
        """Whether the others can see this engine: not before `enter`, nor when the folder was removed since."""
        path = self._engines / self._engine
        if self._presence is None:
            return False
        if path.exists() and os.path.samestat(os.fstat(self._presence), path.stat()):
            return True
        os.close(self._presence)
        self._presence = None
        return False

    def leave(self) -> None:
        """Be counted no more."""
        if self._presence is not None:
            (self._engines / self._engine).unlink(missing_ok=True)
            os.close(self._presence)
            self._presence = None

    def start(self) -> Start | None:
        """The start file, if there is one: a number of steps, then `force-eager`, `per-layer` where wanted.

        What is no whole number from 1 on means one step; that, and any other word, gives a note.
        """
        path = self.directory / "start"
        try:
            status = path.stat()
            with open(path, "rb") as file:
                text = file.read(_START_BYTES).decode(errors="replace").strip()
        except FileNotFoundError:  # one that can't be read just now is there all the same
            return None
        identity = f"{status.st_dev}/{status.st_ino}/{status.st_mtime_ns}"
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        number, *words = text.split() or [""]
        unknown = [word for word in words if word not in _OPTIONS]
        options = {option: word in words for word, option in _OPTIONS.items()}
        if not _NUMBER.fullmatch(number):
            note = f"{path} says {text[:40]!r}, which is no number of steps: one step is recorded"
            return Start(key, 1, note, **options)
        if int(number) > MAX_STEPS:
            return Start(key, MAX_STEPS, f"{path} asks for {int(number)} steps: {MAX_STEPS} is the most", **options)
        note = ""
        if unknown:
            note = f"{path} says {unknown[0][:40]!r}, which is none of {', '.join(_OPTIONS)}: it is passed over"
        return Start(key, int(number), note, **options)

    def living(self) -> dict[str, str]:
        """Every living engine's id with the start file that it is done with.

        One that is found dead is forgotten; that it died while it recorded is noted for `vanished`.
        """
        found: dict[str, str] = {}
        for path in sorted(self._engines.glob("[!.]*")):
            try:
                with open(path, "r+") as file:
                    dead = path.name != self._engine and _lockable(file.fileno())
                    done, begun, label = _presence(file.read())
                    if not dead:
                        found[path.name] = done
                        continue
                    if begun not in ("", done):
                        (self._engines / f".{begun}-{_VANISHED}-{path.name}").write_text(label)
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
        return found

    def vanished(self, key: str) -> list[str]:
        """The labels of engines that died while they recorded for that start file, as far as anyone noticed."""
        return sorted(path.read_text() for path in self._engines.glob(f".{key}-{_VANISHED}-*"))

    def mark_begun(self, key: str, label: str) -> None:
        """Note that this engine, of that label, records for that start file."""
        with self._own_file() as file:
            file.seek(_KEY_CHARACTERS)
            file.write(key.ljust(_KEY_CHARACTERS) + label)
            file.truncate()

    def mark_done(self, key: str) -> None:
        """Note that this engine is done with that start file."""
        with self._own_file() as file:
            file.write(key.ljust(_KEY_CHARACTERS))

    def _own_file(self) -> TextIO:
        # Written in place: a new file would not be the locked one.
        return open(self._engines / self._engine, "r+")

    def all_done(self, key: str) -> bool:
        """Whether every living engine is done with that start file."""
        return all(done == key for done in self.living().values())

    def agree(self, key: str, group: str, proposal: Position, members: int = 0) -> Position | None:
        """Where the engines of a lockstep group begin: what the first of them proposed for that start file.

        Nobody proposes before `members` of them came here: until then the answer is None.
        """
        path = self._engines / f".{key}-{group}"
        own = path.with_name(f"{path.name}-{self._engine}")
        if not path.exists():
            own.write_text("{} {}".format(*proposal))
            if len(list(self._engines.glob(f"{path.name}-*"))) < members:
                return None
            with contextlib.suppress(FileExistsError):
                os.link(own, path)  # whole from the start, unlike a file that is opened
        wave, step = path.read_text().split()
        return int(wave), int(step)

    def remove_start(self, key: str) -> None:
        """Remove the start file, unless a newer one has taken its place."""
        start = self.start()
        if start is not None and start.key == key:
            (self.directory / "start").unlink(missing_ok=True)
        for path in self._engines.glob(f".{key}-*"):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the engines under this directory. Raises OSError where another process keeps the lock."""
        path = self.directory / ".lock"
        with open(path, "w") as file:
            deadline = time.monotonic() + LOCK_SECONDS
            while not _lockable(file.fileno()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} is locked by another process for {LOCK_SECONDS:g} s already")
                time.sleep(_LOCK_LOOK_SECONDS)
            yield


def _presence(content: str) -> tuple[str, str, str]:
    """What an engine's file says: the start file that it is done with, the one that it began with, its label."""
    begun = 2 * _KEY_CHARACTERS
    return content[:_KEY_CHARACTERS].strip(), content[_KEY_CHARACTERS:begun].strip(), content[begun:]


def _lockable(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
