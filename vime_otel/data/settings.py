"""Every environment variable of vime-otel, in one table (the README shows the same one)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import UsageError
from .urls import is_http_url, shown, without_user


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
CA = Setting(
    "VIME_OTEL_CA",
    "",
    "file of the certificate authorities that recorders and commands trust on `https://`; without it the system's",
)
TIMING = Setting(
    "VIME_OTEL_TIMING",
    "sync",
    "`sync`: the device is synchronised at both ends of a span; `events`: device events at both ends, read after the"
    " window; `host`: neither",
)
DECODE_TOKENS = Setting(
    "VIME_OTEL_DECODE_TOKENS",
    "",
    "a number N: steps with more than N scheduled tokens count as prefill, whatever the scheduler says",
)
MAX_SPANS = Setting(
    "VIME_OTEL_MAX_SPANS",
    "2000000",
    "spans that a rank keeps of one window (24 bytes each); beyond, totals go on and spans are dropped by whole steps",
)
MIN_FREE_MIB = Setting(
    "VIME_OTEL_MIN_FREE_MIB", "1024", "a forced eager run is refused where less device memory than this is free"
)
OUTBOX_MIB = Setting(
    "VIME_OTEL_OUTBOX_MIB",
    "256",
    "what an engine keeps at the most while nobody takes it, in `VIME_OTEL_DIR` if that is set, else in memory; beyond,"
    " the oldest spans go first, totals last",
)
SAMPLE_EVERY = Setting(
    "VIME_OTEL_SAMPLE_EVERY",
    "",
    "a number K: one step in K is recorded for as long as the engine runs and a `vime-otel serve` takes it",
)
VIEW_TOKEN = Setting(
    "VIME_OTEL_VIEW_TOKEN",
    "",
    "token that `vime-otel view` asks for beyond loopback; without it one is made at every start",
)
RUNS = Setting("VIME_OTEL_RUNS", "runs", "folder of the run directories, for every command")
ROUTER_KEY = Setting("VIME_OTEL_ROUTER_KEY", "", "bearer token of a router that was started with `--api-key`")
FORWARD_HEADERS = Setting(
    "VIME_OTEL_FORWARD_HEADERS",
    "",
    "headers for what is forwarded or replayed: `NAME=VALUE,…`, values percent-encoded; `HOST/NAME=VALUE` goes to that"
    " host alone",
)
DEBUG = Setting("VIME_OTEL_DEBUG", "", "any value: an unexpected error of a command shows its traceback")

ALL = (
    COLLECTOR,
    DIR,
    TOKEN,
    CA,
    TIMING,
    DECODE_TOKENS,
    MAX_SPANS,
    MIN_FREE_MIB,
    OUTBOX_MIB,
    SAMPLE_EVERY,
    VIEW_TOKEN,
    RUNS,
    ROUTER_KEY,
    FORWARD_HEADERS,
    DEBUG,
)
TIMINGS = ("sync", "events", "host")
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


def collector_url() -> str:
    """The collector's URL without a trailing slash, or an empty text; raises UsageError, which repeats no password."""
    url = get(COLLECTOR).rstrip("/")
    if url and not is_http_url(url):
        raise UsageError(f"{COLLECTOR.name}={without_user(url)!r:.60} is not a URL such as http://127.0.0.1:4318")
    if shown(url) != url:
        raise UsageError(f"{COLLECTOR.name}={shown(url)} has a user name; a token belongs into {TOKEN.name}")
    return url


def timing() -> str:
    """One of TIMINGS; raises UsageError for anything else."""
    value = get(TIMING)
    if value not in TIMINGS:
        raise UsageError(f"{TIMING.name}={value!r:.60} is none of {', '.join(TIMINGS)}; unset it or choose one")
    return value


def decode_tokens() -> int | None:
    """The N of the token rule, or None where the scheduler's own numbers decide."""
    return whole_number(DECODE_TOKENS) if get(DECODE_TOKENS) else None


def sample_every() -> int | None:
    """The K of one step in K, or None where nothing is sampled; raises UsageError for 0."""
    every = whole_number(SAMPLE_EVERY) if get(SAMPLE_EVERY) else None
    if every == 0:
        raise UsageError(f"{SAMPLE_EVERY.name}=0 means nothing; unset it, or give a number from 1")
    return every


def whole_number(setting: Setting) -> int:
    """The variable's value as a number; raises UsageError for one that is none."""
    value = get(setting)
    if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
        raise UsageError(f"{setting.name}={value!r:.60} is not a whole number from 0 on; unset it or give one")
    return int(value)
