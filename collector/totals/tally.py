"""What became of the items of accepted requests: spans and log records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MALFORMED = "malformed"
NOT_KEPT = "not_kept"
NO_RECORDING = "no_recording"
TOO_MANY_SERVICES = "too_many_services"


@dataclass
class Tally:
    """Items that were summed, that had been summed before, and that were passed over, by reason."""

    kept: int = 0
    duplicate: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def accepted(self) -> int:
        """All of them."""
        return self.kept + self.duplicate + self.dropped.total()

    def add(self, other: Tally) -> None:
        """Add what became of other items."""
        self.kept += other.kept
        self.duplicate += other.duplicate
        if other.dropped:
            self.dropped.update(other.dropped)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, as docs/formats.md has it."""
        return {
            "accepted": self.accepted,
            "kept": self.kept,
            "duplicate": self.duplicate,
            "dropped": dict(sorted(self.dropped.items())),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Tally:
        """What `as_dict` made."""
        return cls(content["kept"], content["duplicate"], Counter(content["dropped"]))
