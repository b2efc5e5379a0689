"""Recorders that call without the right token: nobody else can say why their engines seem to have no recorder."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from vime_otel.data import settings

_MOST_ADDRESSES = 64


class RefusedPolls:
    """Who was refused lately, by address; the oldest are forgotten beyond a bound."""

    def __init__(self, forget_seconds: float) -> None:
        self._forget_seconds = forget_seconds
        self._counts: dict[str, int] = {}
        self._last: dict[str, float] = {}
        """In the order of the last refusal."""

    def note(self, address: str) -> None:
        """A poll from this address was refused."""
        self._counts[address] = self._counts.get(address, 0) + 1
        self._last.pop(address, None)
        self._last[address] = time.monotonic()
        if len(self._last) > _MOST_ADDRESSES:
            self._forget(next(iter(self._last)))

    def lately(self) -> list[dict[str, Any]]:
        """For JSON, as docs/formats.md has it."""
        now = time.monotonic()
        for address in [each for each, last in self._last.items() if now - last > self._forget_seconds]:
            self._forget(address)
        return [
            {"address": address, "count": self._counts[address], "last_seen_seconds": round(now - last, 3)}
            for address, last in self._last.items()
        ]

    def _forget(self, address: str) -> None:
        del self._last[address], self._counts[address]


def addresses_in(listed: Iterable[Mapping[str, Any]]) -> list[str]:
    """The addresses of a list that `lately` made."""
    return sorted({str(each["address"]) for each in listed})


def why_refused(refused: Collection[str], expected: Collection[str] = ()) -> str:
    """A sentence about the refused addresses, of the `expected` ones alone where there are any; empty without any."""
    meant = [address for address in refused if address in expected] or list(refused)
    if not meant:
        return ""
    return (
        f"recorders call from {', '.join(meant[:3])}{', …' if len(meant) > 3 else ''} with a missing or wrong token:"
        f" {settings.TOKEN.name} must be the same in the engine's environment and here"
    )
