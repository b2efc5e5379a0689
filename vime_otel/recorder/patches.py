"""Attributes replaced for a while, and put back exactly as they were."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

_ABSENT = object()


@dataclass
class HookTargets:
    """Names of the hook targets that this version of vLLM has, and of those that it lacks."""

    found: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class Patches:
    """Replacements on instances and classes. `restore` undoes them, last first, and may be repeated."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._suspended: list[tuple[Any, str, Any]] = []

    def __len__(self) -> int:
        return len(self._done)

    def suspend(self) -> None:
        """Put everything back, but remember it for `resume`."""
        self._suspended = [(target, name, vars(target)[name]) for target, name, _ in self._done]
        self._undo()

    def resume(self) -> bool:
        """Make the suspended replacements again; False where there are none."""
        suspended, self._suspended = self._suspended, []
        for target, name, value in suspended:
            self.set(target, name, value)
        return bool(suspended)

    def set(self, target: Any, name: str, value: Any) -> None:
        """Shadow `target.name` on the instance or class itself; what it inherits stays untouched."""
        self._done.append((target, name, vars(target).get(name, _ABSENT)))
        if inspect.isclass(target) or inspect.ismodule(target):
            setattr(target, name, value)
        else:
            # Past __setattr__: torch modules make it slow, and some classes forbid it.
            vars(target)[name] = value

    def restore(self) -> None:
        """Put everything back for good."""
        self._suspended.clear()
        self._undo()

    def _undo(self) -> None:
        while self._done:
            target, name, before = self._done.pop()
            if inspect.isclass(target) or inspect.ismodule(target):
                if before is _ABSENT:
                    delattr(target, name)
                else:
                    setattr(target, name, before)
            elif before is _ABSENT:
                vars(target).pop(name, None)
            else:
                vars(target)[name] = before
