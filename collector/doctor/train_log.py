"""What a vime training log says of router, engines and profiler.

Lines are those of vime and vLLM (0.20 to 0.33), behind whatever Ray and loggers put before them. The last router
counts: a job that is restarted into the same log launches another one.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime_otel.data.errors import VimeOtelError

from ..addresses import server_url

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ROUTER = re.compile(
    r"Router launched at (?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:.]+|[\w.-]+):(?P<port>\d{1,5})(?![\w:])"
)
_PARSED = re.compile(r"vllm_profiler_config[ \t]*(?:\.{2,}|[=:])[ \t]*(?P<value>None\b|\{.*|\w*Config\(.*)")
_LAUNCH = re.compile(r"Launching vLLM server: (?P<command>.*)")
_SERVER = re.compile(r"Starting vLLM server on (?P<url>https?://\S+)")
_ROUTE = re.compile(r"Route: (?P<path>/(?:start|stop)_profile)\b")
_SETTING = re.compile(r"(?P<name>VLLM_RPC_TIMEOUT|VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)\W{1,6}(?P<value>\d+)")
_OPTION = re.compile(r"--profiler-config[= ]+(?P<value>.*)")
_FIELD = re.compile(
    r"""['"]?(?P<name>profiler|torch_profiler_dir|max_iterations)['"]?\s*[=:]\s*(?P<value>'[^']*'|"[^"]*"|[\w/.-]+)"""
)

_LONGEST_LINE = 1 << 16
"""A longer one is read as several."""

ROUTES = ("/start_profile", "/stop_profile")
SYMPTOMS = (
    "Failed to start profiler",
    "Failed to stop profiler",
    'POST /start_profile HTTP/1.1" 404',
    'POST /start_profile HTTP/1.1" 409',
    "RPC call to execute_model timed out",
)
"""Texts in vLLM's lines that tell of a profile's failure."""


@dataclass
class TrainLog:
    """What was found of the last job in the log; a job begins where its arguments are shown.

    Ray prints what many engines say alike once only, so the lists may be short.
    """

    path: Path
    routers: list[str] = field(default_factory=list)
    """URLs, in the order of their launches, of all jobs."""
    parsed: dict[str, str] | None = None
    """The profiler config as vime parsed it; empty where it is None, None where no line shows it."""
    launched: list[dict[str, str] | None] = field(default_factory=list)
    """For each launched server the profiler config it was given; None where it was given none."""
    servers: list[str] = field(default_factory=list)
    routes: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)
    symptoms: dict[str, int] = field(default_factory=dict)
    """How many lines have each of SYMPTOMS."""

    @property
    def router_url(self) -> str:
        """The last router's; raises VimeOtelError where none was launched."""
        if not self.routers:
            raise VimeOtelError(
                f"{self.path} has no line `Router launched at HOST:PORT`: the job is still starting, or this is the log"
                " of another process; look again later, or name the router with --router URL"
            )
        return self.routers[-1]

    @property
    def trace_dir(self) -> str | None:
        """Where the servers write their torch traces, as the last one that says so was told."""
        for config in (*reversed(self.launched), self.parsed):
            if config and config.get("torch_profiler_dir"):
                return config["torch_profiler_dir"]
        return None


def read_train_log(path: Path) -> TrainLog:
    """Read a log of any size; raises VimeOtelError where it can't be read."""
    try:
        if path.exists() and not path.is_file():
            raise VimeOtelError(f"{path} is no file; name the training log with --log FILE")
        with path.open(encoding="utf-8", errors="replace") as file:
            return parse_train_log(path, iter(lambda: file.readline(_LONGEST_LINE), ""))
    except OSError as error:
        raise VimeOtelError(
            f"{path} can't be read ({error.strerror}); name the training log with --log FILE"
        ) from error


def parse_train_log(path: Path, lines: Iterable[str]) -> TrainLog:
    """The same for lines that were read already."""
    log = TrainLog(path)
    for raw in lines:
        line = _ANSI.sub("", raw)
        if (found := _ROUTER.search(line)) and (url := _router_url(found["host"], found["port"])):
            log.routers.append(url)
        elif found := _LAUNCH.search(line):
            log.launched.append(_given(found["command"]))
        elif found := _SERVER.search(line):
            log.servers.append(server_url(found["url"].rstrip(",")))
        elif found := _ROUTE.search(line):
            log.routes.add(found["path"])
        elif found := _PARSED.search(line):
            if log.launched or log.servers:
                log = TrainLog(path, log.routers)
            log.parsed = _fields(found["value"])
        for symptom in SYMPTOMS:
            if symptom in line:
                log.symptoms[symptom] = log.symptoms.get(symptom, 0) + 1
        for setting in _SETTING.finditer(line):
            log.settings[setting["name"]] = setting["value"]
    return log


def _router_url(host: str, port: str) -> str:
    """Empty for what is no place: a host that was not known when the line was written."""
    if host in ("None", "[]") or not 0 < int(port) < 65536:
        return ""
    bare = host.removeprefix("[").removesuffix("]")
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"


def _given(command: str) -> dict[str, str] | None:
    """The profiler config in a server's command, which is a command line or the repr of a dict of arguments."""
    text = command.strip()
    if text.startswith("{"):
        return _given_in_dict(text)
    option = _OPTION.search(text)
    return _fields(option["value"]) if option else None


def _given_in_dict(text: str) -> dict[str, str] | None:
    try:
        arguments = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _fields(text) if "profiler_config" in text and "torch_profiler_dir" in text else None
    value = arguments.get("profiler_config", arguments.get("profiler-config")) if isinstance(arguments, dict) else None
    if not value:
        return None
    return _texts(value) if isinstance(value, Mapping) else _fields(str(value))


def _fields(text: str) -> dict[str, str]:
    """The fields of a profiler config, written as JSON, as a dict or as a call; empty for None."""
    start = text.find("{")
    if start >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(text[start:])
            return _texts(value)
        except (ValueError, RecursionError):
            pass
    return {found["name"]: found["value"].strip("'\"") for found in _FIELD.finditer(text)}


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(each) for name, each in value.items() if each is not None}
