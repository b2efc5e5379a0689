"""Every environment variable of vime-otel, in one table (the README shows the same one)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import UsageError


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, the default as text, and what it means."""

    name: str
    default: str
    meaning: str


COLLECTOR = Setting(
    "VIME_OTEL_COLLECTOR",
    "",
    "URL of the collector, `http://host:4318`; recorders look for it and send all to it",
)
DIR = Setting(
    "VIME_OTEL_DIR",
    "",
    "folder for the file trigger: write N into `DIR/start`, the folded files appear beside it",
)
TOKEN = Setting("VIME_OTEL_TOKEN", "", "bearer token, sent by recorders and commands, asked for by the collector")
TIMING = Setting("VIME_OTEL_TIMING", "sync", "`sync`: the device is synchronised at both ends of a span; `host`: never")
DECODE_TOKENS = Setting(
    "VIME_OTEL_DECODE_TOKENS",
    "",
    "a number N: steps with more than N scheduled tokens count as prefill, whatever the scheduler says",
)
RUNS = Setting("VIME_OTEL_RUNS", "runs", "folder of the run directories, for every command")
ROUTER_KEY = Setting("VIME_OTEL_ROUTER_KEY", "", "bearer token of a router that was started with `--api-key`")
DEBUG = Setting("VIME_OTEL_DEBUG", "", "any value: an unexpected error of a command shows its traceback")

ALL = (COLLECTOR, DIR, TOKEN, TIMING, DECODE_TOKENS, RUNS, ROUTER_KEY, DEBUG)
_MOST_DIGITS = 15


def get(setting: Setting) -> str:
    """The variable's value, or its default; surrounding blanks are dropped."""
    return os.environ.get(setting.name, "").strip() or setting.default


def secret(setting: Setting) -> str:
    """A bearer token that can stand in a header; raises UsageError for one that can't."""
    value = get(setting)
    if not (value.isascii() and value.isprintable()):
        raise UsageError(
            f"{setting.name} holds characters that no HTTP header can carry; choose a token of printable ASCII"
            " (the same on both sides)"
        )
    return value


def timing() -> str:
    """`sync` or `host`; raises UsageError for anything else."""
    value = get(TIMING)
    if value not in ("sync", "host"):
        raise UsageError(f"{TIMING.name}={value!r} is neither `sync` nor `host`; unset it or choose one")
    return value


def decode_tokens() -> int | None:
    """The N of the token rule, or None where the scheduler's own numbers decide."""
    value = get(DECODE_TOKENS)
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
        raise UsageError(f"{DECODE_TOKENS.name}={value!r:.60} is not a whole number; unset it or give one")
    return int(value)
