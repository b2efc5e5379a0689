"""The bodies of the control routes (docs/formats.md), read strictly: one clear sentence for what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from vime_otel.data.errors import VimeOtelError
from vime_otel.data.lockstep import Position
from vime_otel.data.recording import KINDS
from vime_otel.data.settings import TIMINGS
from vime_otel.data.urls import shown

PROTOCOL = 1
PHASES = ("idle", "armed", "recording", "exporting", "waiting", "done", "cancelled", "failed", "refused")
BUSY_PHASES = frozenset({"armed", "recording", "exporting"})
MOST_STEPS = 1_000_000
MOST_REQUESTS = 100_000
MOST_TOKENS = 1_000_000
MOST_SECONDS = 86_400
MOST_TEXT = 4000
_ID = re.compile(r"[0-9a-f]{16}")
_MAX_INT = 2**53
_MOST_STEPS_PER_SECOND = 1e9
_MAX_LIST = 1000
_T = TypeVar("_T")


def is_id(text: str) -> bool:
    """Whether it can be an engine's or a recording's id: 16 hexadecimal digits."""
    return _ID.fullmatch(text) is not None


class Invalid(VimeOtelError):
    """A body that is not in the format."""


class _Fields:
    """The fields of one JSON object, taken one by one with a check."""

    def __init__(self, body: Any, name: str) -> None:
        if not isinstance(body, dict):
            raise Invalid(f"{name} must be a JSON object")
        self._body: Mapping[str, Any] = body
        self._name = name

    def refuse_others(self, known: Mapping[str, Any]) -> None:
        """Raise Invalid for a field that nobody reads."""
        unknown = sorted(set(self._body) - set(known))
        if unknown:
            raise Invalid(f"{self._name} has no field {unknown[0]!r}; it has {', '.join(known)}")

    def object(self, key: str) -> Any:
        return self._body.get(key)

    def text(self, key: str, default: str | None = None, *, may_be_empty: bool = False) -> str:
        value = self._body.get(key, default)
        if not isinstance(value, str) or len(value) > MOST_TEXT or not (value or may_be_empty):
            raise self._wrong(key, f"a text of at most {MOST_TEXT} characters", value)
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self._body.get(key) is None else self.text(key, may_be_empty=True) or None

    def identifier(self, key: str) -> str:
        value = self._body.get(key)
        if not isinstance(value, str) or not is_id(value):
            raise self._wrong(key, "16 hexadecimal digits", value)
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        value = self._body.get(key, default)
        if value not in choices:
            raise self._wrong(key, f"one of {', '.join(choices)}", value)
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._body.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def position(self, key: str) -> Position | None:
        value = self._body.get(key)
        if value is None:
            return None
        whole = isinstance(value, list) and all(type(number) is int and 0 <= number <= _MAX_INT for number in value)
        if not whole or len(value) != 2:
            raise self._wrong(key, "two whole numbers, wave and step", value)
        return (value[0], value[1])

    def integer(self, key: str, minimum: int, default: int | None = None, maximum: int = _MAX_INT) -> int:
        value = self._body.get(key, default)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self._wrong(key, f"a whole number from {minimum} to {maximum}", value)
        return value

    def seconds(self, key: str, default: float, maximum: float) -> float:
        return self.number(key, default, maximum, "a number of seconds")

    def number(self, key: str, default: float, maximum: float, what: str = "a number") -> float:
        value = self._body.get(key, default)
        if type(value) not in (int, float) or not 0 <= value <= maximum:
            raise self._wrong(key, f"{what} from 0 to {maximum:g}", value)
        return float(value)

    def list_of(self, key: str, kind: type[_T], default: list[_T] | None = None) -> tuple[_T, ...]:
        value = self._body.get(key, default)
        if not isinstance(value, list) or len(value) > _MAX_LIST or any(type(item) is not kind for item in value):
            raise self._wrong(key, f"a list of at most {_MAX_LIST} {kind.__name__}", value)
        return tuple(value)

    def _wrong(self, key: str, wanted: str, value: Any) -> Invalid:
        found = f"not {value!r:.60}" if key in self._body else "but it is missing"
        return Invalid(f"{key!r} of {self._name} must be {wanted}, {found}")


@dataclass(frozen=True)
class Introduction:
    """What a recorder tells of its engine. Engines of one `dp_group` (of `dp_size`) run in lockstep."""

    engine: str
    label: str
    addresses: tuple[str, ...]
    host: str
    pid: int
    api_ports: tuple[int, ...]
    model: str
    dp_rank: int
    ranks: int
    vllm_version: str
    vime_otel_version: str
    execution: str
    dp_group: str | None = None
    dp_size: int = 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Status:
    """Where a recorder stands; `recording` is the one it works on, or the last one.

    One that waits for its lockstep group tells the group's `position`, and how many steps it makes a second.
    """

    phase: str
    recording: str | None
    steps_done: int
    steps_asked: int
    reason: str | None
    position: Position | None = None
    steps_per_second: float = 0.0

    @property
    def busy_with(self) -> str | None:
        """The recording that it is at work on right now."""
        return self.recording if self.phase in BUSY_PHASES else None


@dataclass(frozen=True)
class Poll:
    """One poll of a recorder."""

    recorder: Introduction
    status: Status
    seen: str | None
    wait_seconds: float


@dataclass(frozen=True)
class RecordingRequest:
    """What a recording is asked to be. Without router and workers all recorders are meant."""

    steps: int = 20
    kind: str | None = None
    timing: str = "sync"
    force_eager: bool = False
    per_layer: bool = False
    label: str | None = None
    router: str | None = None
    workers: tuple[str, ...] = ()
    limit: int | None = None
    wait_seconds: float = 60
    timeout_seconds: float = 300
    requests: int = 0
    prompt: str | None = None
    max_tokens: int = 64

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_poll(body: Any) -> Poll:
    """A recorder's poll; raises Invalid."""
    fields = _Fields(body, "a poll")
    protocol = fields.object("protocol")
    if protocol != PROTOCOL:
        raise Invalid(
            f"the recorder speaks protocol {protocol!r}, this collector {PROTOCOL}:"
            " install the same version of vime-otel on both sides"
        )
    who = _Fields(fields.object("recorder"), "'recorder'")
    status = _Fields(fields.object("status"), "'status'")
    return Poll(
        Introduction(
            engine=who.identifier("engine"),
            label=who.text("label"),
            addresses=who.list_of("addresses", str),
            host=who.text("host", may_be_empty=True),
            pid=who.integer("pid", 0),
            api_ports=who.list_of("api_ports", int),
            model=who.text("model", may_be_empty=True),
            dp_rank=who.integer("dp_rank", 0),
            ranks=who.integer("ranks", 1),
            vllm_version=who.text("vllm_version", may_be_empty=True),
            vime_otel_version=who.text("vime_otel_version", may_be_empty=True),
            execution=who.text("execution", may_be_empty=True),
            dp_group=None if who.object("dp_group") is None else who.identifier("dp_group"),
            dp_size=who.integer("dp_size", 1, 1),
        ),
        Status(
            phase=status.choice("phase", PHASES),
            recording=status.optional_text("recording"),
            steps_done=status.integer("steps_done", 0, 0),
            steps_asked=status.integer("steps_asked", 0, 0),
            reason=status.optional_text("reason"),
            position=status.position("position"),
            steps_per_second=status.number("steps_per_second", 0.0, _MOST_STEPS_PER_SECOND),
        ),
        fields.optional_text("seen"),
        fields.seconds("wait_seconds", 0, 3600),
    )


def read_recording_request(body: Any) -> RecordingRequest:
    """The wish for a recording; raises Invalid."""
    fields = _Fields(body, "a recording")
    default = RecordingRequest()
    fields.refuse_others(default.as_dict())
    kind, limit = fields.object("kind"), fields.object("limit")
    router = fields.optional_text("router")
    workers = fields.list_of("workers", str, [])
    for url in (router, *workers):
        if url is not None and not url.startswith(("http://", "https://")):
            raise Invalid(f"{shown(url)!r:.60} is not a URL such as http://127.0.0.1:3521")
    return RecordingRequest(
        steps=fields.integer("steps", 1, default.steps, MOST_STEPS),
        kind=None if kind is None else fields.choice("kind", KINDS),
        timing=fields.choice("timing", TIMINGS, default.timing),
        force_eager=fields.flag("force_eager", default.force_eager),
        per_layer=fields.flag("per_layer", default.per_layer),
        label=fields.optional_text("label"),
        router=router,
        workers=workers,
        limit=None if limit is None else fields.integer("limit", 1),
        wait_seconds=fields.seconds("wait_seconds", default.wait_seconds, MOST_SECONDS),
        timeout_seconds=fields.seconds("timeout_seconds", default.timeout_seconds, MOST_SECONDS),
        requests=fields.integer("requests", 0, default.requests, MOST_REQUESTS),
        prompt=fields.optional_text("prompt"),
        max_tokens=fields.integer("max_tokens", 1, default.max_tokens, MOST_TOKENS),
    )
