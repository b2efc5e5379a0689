"""How long the collector waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """All in seconds."""

    tick: float = 0.05
    """Between two looks at how a recording stands."""
    look: float = 0.25
    """Between two looks for the workers' recorders."""
    relist: float = 2.0
    """Between two looks at the router's list while recorders are awaited."""
    settle: float = 4.0
    """Where nobody says how many recorders to expect: no new one came for so long. They look for us every 2-3 s."""
    silent: float = 10.0
    """A recorder at work that was not heard for so long has vanished."""
    word: float = 1.0
    """All of an engine has arrived, and its recorder was not heard for so long: it need not say that it is done."""
    exporting: float = 300.0
    """Nothing arrived for so long while an engine says that it is exporting: a busy machine takes minutes for it."""
    disarming: float = 30.0
    """The same while engines are yet to disarm, or when the recording was stopped."""
    late: float = 5.0
    """The same, when every engine has said that it has sent all: a gateway may hold some back."""
    rolling: float = 15.0
    """Between two times that a rolling recording's files are brought up to date."""
    forget: float = 60.0
    """A recorder that was not heard for so long is no longer listed."""
