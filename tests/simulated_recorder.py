"""A simulated engine: it polls a collector over real HTTP, "makes" steps, and sends spans and totals by OTLP.

It stands for the real recorder where real vLLM would be too slow or could not be made to misbehave.
Everything that it sends is a function of recording, engine and step, so that tests can compute it too.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import requests

from collector.addresses import addresses_of
from vime_otel.data import otlp
from vime_otel.data.folded import Folded
from vime_otel.data.recording import ENGINE_PART, IDLE, StepRow, StepTotals
from vime_otel.data.spans import Span

BASE_UNIX_NANO = 1_764_460_800_000_000_000
STEP_NS = 10_000_000
OVERLAP_NS = 123_456
"""By so much a step's interval is shorter than the step itself."""

POLL: dict[str, Any] = {
    "protocol": 1,
    "recorder": {
        "engine": "00000000000000a1",
        "label": "127.0.0.1:8001/0",
        "addresses": sorted(addresses_of("127.0.0.1")),
        "host": "node7",
        "pid": 4711,
        "api_ports": [8001],
        "model": "m",
        "dp_rank": 0,
        "ranks": 1,
        "vllm_version": "0.32.0",
        "vime_otel_version": "0.1.0",
        "execution": "eager",
        "dp_group": None,
        "dp_size": 1,
    },
    "status": {
        "phase": "idle",
        "recording": None,
        "steps_done": 0,
        "steps_asked": 0,
        "reason": None,
        "position": None,
        "steps_per_second": 0.0,
    },
    "seen": None,
    "wait_seconds": 0,
}
"""A poll as any recorder sends it."""

# (frame, start, end) with the children below, in nanoseconds of the step.
Tree = tuple[str, int, int, "list[Tree]"]
_LAYER: list[Tree] = [
    ("input_layernorm:RMSNorm", 0, 40_000, []),
    ("self_attn:Attention", 50_000, 600_123, []),
    (
        "mlp:SparseMoeBlock",
        650_000,
        1_900_777,
        [("moe.route", 660_000, 700_001, []), ("moe.experts", 700_001, 1_800_500, [])],
    ),
]
RANK_TREES: list[Tree] = [
    (
        "execute_model",
        600_000,
        6_500_000,
        [
            ("preprocess", 610_000, 900_333, []),
            (
                "forward",
                910_000,
                6_400_000,
                [
                    ("Qwen3MoeDecoderLayer", 1_000_000, 3_000_000, _LAYER),
                    ("Qwen3MoeDecoderLayer", 3_000_000, 5_000_000, _LAYER),
                ],
            ),
        ],
    ),
    ("sample_tokens", 6_600_000, 7_000_000, []),
]
ENGINE_TREES: list[Tree] = [
    ("schedule", 0, 500_000, []),
    ("wait", 500_000, 600_000, []),
    ("update_from_output", 7_100_000, 8_000_000, []),
]


def by_layer(trees: list[Tree]) -> list[Tree]:
    """The same with a name of its own for each layer, as a recording by layer has it."""
    numbers = itertools.count()

    def named(tree: Tree) -> Tree:
        name, start, end, below = tree
        if re.fullmatch(r"\w+DecoderLayer", name):
            name = f"layers.{next(numbers)}:{name}"
        return name, start, end, [named(each) for each in below]

    return [named(tree) for tree in trees]


@dataclass(frozen=True)
class Lockstep:
    """An engine's place in a lockstep group, and where the group stands."""

    group: str
    rank: int
    size: int
    position: tuple[int, int] = (0, 0)
    steps_per_second: float = 0.0

    def ahead(self, steps: int) -> Lockstep:
        """The same so many steps later."""
        wave, step = self.position
        return replace(self, position=(wave, step + steps))


@dataclass(frozen=True)
class Behaviour:
    """What an engine does, and what goes wrong with it."""

    ranks: int = 1
    most_steps: int | None = None
    """It makes no more steps than this: there are no requests."""
    every_request_twice: bool = False
    last_spans_lost: int = 0
    totals_off_by_ns: int = 0
    closing_event: bool = True
    silent_once_armed: bool = False
    refuses: str | None = None
    busy_with: str | None = None
    """The recording of another collector that it is still at work on; it makes no steps of it."""
    exporting_seconds: float = 0.0
    """So long it exports before it sends anything."""
    dies_exporting: float | None = None
    """Its engine ends with the last step: it polls no more; its exporter sends, so many seconds between requests."""
    says_waiting: bool = False
    """It told that its data waits, sends it, and does not poll again until much later."""
    reasons: tuple[str, ...] = ()
    execution: str = "eager"
    closing: dict[str, Any] = field(default_factory=dict)
    """What the closing event tells beside, or instead of, the usual."""
    lockstep: Lockstep | None = None
    only_idle: bool = False
    """It has no requests, and keeps its lockstep group company."""
    has_started: bool = False
    """Its group is beyond any position at which it is told to start."""


@dataclass(frozen=True)
class Part:
    """What is sent of one rank, or of the engine itself, for one step."""

    spans: list[Span]
    totals: StepTotals


@dataclass(frozen=True)
class Step:
    """One step with all its parts; the engine's own is the last."""

    row: StepRow
    trace_id: bytes
    root_id: bytes
    parts: list[Part]


def make_step(
    recording: str,
    engine: str,
    index: int,
    ranks: int,
    totals_off_by_ns: int = 0,
    execution: str = "eager",
    lockstep: Lockstep | None = None,
    idle: bool = False,
    per_layer: bool = False,
) -> Step:
    """A step: the first of a recording is a prefill, the others decode; in an `idle` one no rank does anything."""
    trace_id, root_id = otlp.step_ids(recording, engine, index)
    parent_id = b""
    if lockstep is not None:
        trace_id, group_root = otlp.group_ids(recording, lockstep.group, *lockstep.position)
        root_id, parent_id = (root_id, group_root) if lockstep.rank else (group_root, b"")
    start = BASE_UNIX_NANO + index * STEP_NS
    kind = IDLE if idle else "decode" if index else "prefill"
    length = 8_000_000 + 1000 * index
    row = StepRow(
        engine, index, kind, False, execution, start, length, length - OVERLAP_NS,
        0 if index or idle else 128, 0 if idle else 4, 0 if idle else 4, trace_id.hex(),
    )  # fmt: skip
    root = Span(f"{kind} step", "", "step", start, start + length, root_id, parent_id)
    trees = by_layer(RANK_TREES) if per_layer else RANK_TREES
    parts = [_part(row, root, str(rank), 0, trees, totals_off_by_ns) for rank in range(0 if idle else ranks)]
    own = _part(row, root, ENGINE_PART, -1, [] if idle else ENGINE_TREES, 0)
    own.spans.insert(0, root)
    totals = replace(
        own.totals,
        stacks=("step", *own.totals.stacks),
        inclusive_ns=(row.interval_ns, *own.totals.inclusive_ns),
        calls=(1, *own.totals.calls),
        spans_made=own.totals.spans_made + 1,
    )
    return Step(row, trace_id, root_id, [*parts, Part(own.spans, totals)])


def _part(row: StepRow, root: Span, rank: str, stage: int, trees: list[Tree], off_by_ns: int) -> Part:
    numbers = itertools.count(1)
    spans = list(_spans(trees, root, row.start_unix_nano, f"{row.engine}/{row.index}/{rank}", numbers))
    folded = Folded()
    for span in spans:
        folded.add(span.stack, span.duration_ns + off_by_ns)
    totals = StepTotals(
        row.engine, rank, stage, row.index, row.kind, tuple(folded.inclusive_ns),
        tuple(folded.inclusive_ns.values()), tuple(folded.calls.values()), len(spans), 0,
    )  # fmt: skip
    return Part(spans, totals)


def _spans(trees: list[Tree], parent: Span, start: int, seed: str, numbers: Iterator[int]) -> Iterator[Span]:
    for name, begin, end, children in trees:
        # Any 8 bytes will do that differ from every other span's.
        span_id = otlp.step_ids(seed, "span", next(numbers))[1]
        stack = f"{parent.stack};{name}"
        span = Span(name, "", stack, start + begin, start + end, span_id, parent.span_id)
        yield span
        yield from _spans(children, span, start + begin, seed, numbers)


def resource_of(recording: str, engine: str, rank: str) -> Any:
    """The resource of what an engine sends."""
    return otlp.resource(
        {
            "service.name": "vllm",
            otlp.INSTANCE_ID: engine,
            otlp.RECORDING_ID: recording,
            otlp.RANK: None if rank == ENGINE_PART else int(rank),
        }
    )


def step_requests(recording: str, step: Step, last_spans_lost: int = 0) -> Iterator[tuple[str, bytes]]:
    """(path, protobuf) of everything that tells of one step."""
    for part in step.parts:
        rank = part.totals.rank
        of = resource_of(recording, step.row.engine, rank)
        sent = part.spans[: len(part.spans) - last_spans_lost]
        messages = [otlp.span_message(span, step.trace_id, step.row.kind, {}) for span in sent]
        yield "/v1/traces", otlp.trace_request(of, messages).SerializeToString()
        row = step.row if rank == ENGINE_PART else None
        record = otlp.totals_record(part.totals, row, step.trace_id, step.root_id, BASE_UNIX_NANO)
        yield "/v1/logs", otlp.logs_request(of, [record]).SerializeToString()


def closing_request(recording: str, engine: str, steps: list[Step], **told: Any) -> bytes:
    """The closing event after these steps, as protobuf; what is `told` comes on top."""
    announced: dict[str, dict[str, Any]] = {}
    for part in (part for step in steps for part in step.parts):
        totals = part.totals
        entry = announced.setdefault(
            totals.rank, {"rank": totals.rank, "stage": totals.stage, "totals": 0, "spans": 0, "dropped": 0}
        )
        entry["totals"] += 1
        entry["spans"] += totals.spans_made
    kinds = [step.row.kind for step in steps]
    body = {
        "steps": {kind: kinds.count(kind) for kind in set(kinds)},
        "parts": list(announced.values()),
        "timing": "sync",
        "execution": "eager",
        "pause_ns": 700_000,
        "hooks": {"found": ["execute_model"], "missing": []},
        "overhead": {"span_ns": 250.0, "sync_ns": 4000.0, "spans_per_step": 14.0, "added_us_per_step": 115.5},
        "unrecorded": {"decode": {"batch": 4, "before_ms": 3.0, "after_ms": 3.5}},
        "notes": [],
        "reasons": [],
        "label": "simulated",
        **told,
    }
    record = otlp.closing_record(body, BASE_UNIX_NANO)
    return otlp.logs_request(resource_of(recording, engine, ENGINE_PART), [record]).SerializeToString()


class SimulatedRecorder(threading.Thread):
    """The engine; a context manager that starts and ends it. `answers` are the OTLP answers' statuses."""

    def __init__(
        self,
        url: str,
        engine: str = "00000000000000a1",
        port: int = 8001,
        behaviour: Behaviour | None = None,
        token: str = "",
    ) -> None:
        super().__init__(name=f"simulated engine {engine}")
        self.engine = engine
        self.behaviour = behaviour or Behaviour()
        self.answers: list[int] = []
        self.commands: list[dict[str, Any]] = []
        self._url = url
        self._port = port
        self._session = requests.Session()
        self._session.trust_env = False
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"
        self._ending = threading.Event()
        self._seen: str | None = None
        self._status: dict[str, Any] = {
            "phase": "idle", "recording": None, "steps_done": 0, "steps_asked": 0, "reason": None,
        }  # fmt: skip
        if self.behaviour.busy_with:
            self._status |= {"phase": "recording", "recording": self.behaviour.busy_with, "steps_asked": 20}
        self._command: dict[str, Any] = {}
        self._sends_at = 0.0
        self._steps: list[Step] = []
        self._lockstep = self.behaviour.lockstep

    def __enter__(self) -> SimulatedRecorder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()
        self._session.close()

    @property
    def phase(self) -> str:
        """What it told last."""
        return str(self._status["phase"])

    def run(self) -> None:
        """Until it is ended: poll, obey, make steps."""
        while not self._ending.is_set():
            try:
                command = self._poll()
                if command is not None:
                    self._seen = command["id"]
                    self.commands.append(command)
                    self._obey(command)
                if self.behaviour.silent_once_armed and self._command:
                    return
                self._advance()
                if self.phase == "exporting" and self.behaviour.dies_exporting is not None:
                    self._poll()
                    self._send_all()
                    return
            except requests.RequestException:
                self._ending.wait(0.05)  # no collector there: look again

    def _poll(self) -> dict[str, Any] | None:
        busy = self.phase in ("armed", "recording", "exporting")
        body = {
            "protocol": 1,
            "recorder": {
                "engine": self.engine,
                "label": f"127.0.0.1:{self._port}/{self._lockstep.rank if self._lockstep else 0}",
                "addresses": sorted(addresses_of("127.0.0.1")),
                "host": "simulated", "pid": 1, "api_ports": [self._port], "model": "simulated/moe",
                "dp_rank": self._lockstep.rank if self._lockstep else 0,
                "ranks": self.behaviour.ranks, "vllm_version": "0.32.0", "vime_otel_version": "0.1.0",
                "execution": self.behaviour.execution,
                "dp_group": self._lockstep.group if self._lockstep else None,
                "dp_size": self._lockstep.size if self._lockstep else 1,
            },
            "status": self._status,
            "seen": self._seen,
            "wait_seconds": 0.02 if busy else 0.3,
        }  # fmt: skip
        answer = self._session.post(f"{self._url}/control/v1/recorders/poll", json=body, timeout=10)
        answer.raise_for_status()
        command: dict[str, Any] | None = answer.json()["command"]
        return command

    def _obey(self, command: dict[str, Any]) -> None:
        if command["type"] == "arm":
            self._command, self._steps = command, []
            phase = "refused" if self.behaviour.refuses else "armed"
            self._status = {
                "phase": phase, "recording": command["recording"], "steps_done": 0,
                "steps_asked": command["steps"], "reason": self.behaviour.refuses,
            }  # fmt: skip
            if command["together"] and self._lockstep:
                self._status |= {
                    "position": self._lockstep.position, "steps_per_second": self._lockstep.steps_per_second,
                }  # fmt: skip
        elif command["type"] == "start":
            self._start(tuple(command["position"]))
        elif self.phase in ("armed", "recording") and command["recording"] == self._status["recording"]:
            if not self._waits:
                self._send_all()
            self._status |= {"phase": "cancelled", "reason": "cancelled by the collector"}

    def _start(self, position: tuple[int, int]) -> None:
        """Record from there on; the group makes the steps until then at once."""
        if self.behaviour.has_started:
            reason = f"the command to start with the group at {position} came when it was at {position} already"
            self._status |= {"phase": "failed", "reason": reason}
        elif self._lockstep is not None:
            self._lockstep = replace(self._lockstep, position=position)
            self._status["position"] = None

    @property
    def _waits(self) -> bool:
        return self.phase == "armed" and self._status.get("position") is not None

    def _advance(self) -> None:
        """One step on: armed → recording, one step each time → exporting → done."""
        if self.phase == "exporting":
            if time.monotonic() < self._sends_at:
                return
            self._send_all()
            self._status |= {"phase": "waiting" if self.behaviour.says_waiting else "done"}
        elif self.phase in ("armed", "recording"):
            most = self.behaviour.most_steps
            if (most is not None and len(self._steps) >= most) or not self._command or self._waits:
                return
            recording, index = self._status["recording"], len(self._steps)
            forced = self._command["force_eager"] and self.behaviour.execution != "eager"
            step = make_step(
                recording,
                self.engine,
                index,
                self.behaviour.ranks,
                self.behaviour.totals_off_by_ns,
                "forced_eager" if forced else self.behaviour.execution,
                self._lockstep and self._lockstep.ahead(index),
                self.behaviour.only_idle,
                self._command["per_layer"],
            )
            self._steps.append(step)
            counted = sum(self._command["kind"] in (None, step.row.kind) for step in self._steps)
            phase = "exporting" if counted >= self._command["steps"] else "recording"
            self._sends_at = time.monotonic() + self.behaviour.exporting_seconds
            self._status |= {"phase": phase, "steps_done": counted}

    def _send_all(self) -> None:
        recording = self._status["recording"]
        for number, step in enumerate(self._steps, 1):
            lost = self.behaviour.last_spans_lost if number == len(self._steps) else 0
            for path, content in step_requests(recording, step, lost):
                self._send(path, content)
        if self.behaviour.closing_event:
            told = {"reasons": list(self.behaviour.reasons), **self.behaviour.closing}
            self._send("/v1/logs", closing_request(recording, self.engine, self._steps, **told))

    def _send(self, path: str, content: bytes) -> None:
        self._ending.wait(self.behaviour.dies_exporting or 0.0)
        for _ in range(2 if self.behaviour.every_request_twice else 1):
            headers = {"Content-Type": "application/x-protobuf"}
            answer = self._session.post(f"{self._url}{path}", data=content, headers=headers, timeout=10)
            self.answers.append(answer.status_code)
