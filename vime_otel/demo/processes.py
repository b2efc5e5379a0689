"""Child processes with a log file each, stopped together with all that they started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_TERMINATE_S = 15.0
_LOG_TAIL_LINES = 15


class LoggedProcess:
    """A child process in a session of its own, so that Ctrl-C reaches it only through `stop_all`."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]):
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the child itself."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._process.poll()

    def log_tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def family(self) -> list[psutil.Process]:
        """The child and every process below it that still runs."""
        try:
            head = psutil.Process(self.pid)
            return [head, *head.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def reap(self) -> None:
        """Collect the exit status of the ended child."""
        self._process.wait()


def stop_all(processes: Sequence[LoggedProcess]) -> None:
    """End the processes and their children: politely first, by force after 15 s."""
    families = [member for process in processes for member in process.family()]
    for process in processes:
        if process.exit_status() is None:
            psutil.Process(process.pid).terminate()
    _, alive = psutil.wait_procs(families, timeout=_TERMINATE_S)
    for member in alive:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=_TERMINATE_S)
    for process in processes:
        process.reap()
