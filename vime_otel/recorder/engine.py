"""The recorder of one engine: arm, follow the steps, take, hand over. Knows nothing of vLLM.

Two kinds of threads meet here. Doors (the collector's poll, the file trigger) `submit` and
`cancel`; they never touch the engine. The engine's own thread does the work between two steps
(`run_due`, `finish_window`). Nothing in here raises into the engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vime_otel.data.lockstep import Position

from .lockstep import LockstepStart
from .pace import Pace
from .patches import Patches
from .port import NoPort, Port
from .status import ACTIVE_PHASES, Endings, Status
from .window import Command, EngineStep, RankLog, StepCounts, Window, WorkerOrder

logger = logging.getLogger("vllm.vime_otel")

Deliver = Callable[[Window], None]


PIECE_SECONDS = 60
"""A window of sampled steps is handed over when it is so old."""

PIECE_STEPS = 1000
"""Or when it holds so many."""


@dataclass(frozen=True)
class Sampling:
    """Continuous recording: `command` makes the order for each window, `deliver` gets each at its end."""

    command: Callable[[], Command]
    deliver: Deliver


def _drop(window: Window) -> None:
    """Nobody is there who would take it."""


class EngineRecorder:
    """Records windows of steps on one engine, one at a time."""

    def __init__(self, port: Port, clock: Callable[[], int] = time.perf_counter_ns):
        self.id = os.urandom(8).hex()
        self.port = port
        self.status = Status()
        # Read at every step by the wrapped step function: nothing else may stand there.
        self.due = False
        self.window_over = False
        self.pace = Pace(clock)
        self._clock = clock
        self._orders: deque[Callable[[], None]] = deque()
        self._patches = Patches()
        self._window: Window | None = None
        self._deliver: Deliver | None = None
        self._deadline: float | None = None
        self._counted = 0
        self._scheduled = 0
        self._seen = 0
        self._positions = 0
        self._discarding = False
        self._waiting: LockstepStart | None = None
        self._open: dict[int, EngineStep] = {}
        self._latest: EngineStep | None = None
        self._last_update_end = 0
        self._arm_answers: Callable[[], list[Any] | None] = list
        self._sampling: Sampling | None = None
        self._sampled: dict[str, int] = {}
        self._piece_end = 0
        self._sampling_trouble = ""
        self._workers_checked = False
        self._armed = False
        self._outcome: tuple[str, str | None] = ("done", None)
        self._endings = Endings()
        self._changing = threading.Lock()  # held wherever another thread may want to change the status, too

    # -- called by doors, on their threads ---------------------------------------------------

    def submit(self, command: Command, deliver: Deliver) -> str | None:
        """Ask for a recording; the answer is None, or why it is refused.

        `deliver` gets the finished window on the engine's thread and must return at once.
        """
        with self._changing:
            if self.status.phase in ACTIVE_PHASES:
                return f"recording {self.status.recording} is running on this engine"
            if command.together and self.port.lockstep() is None:
                return "this engine runs in no lockstep group, and can't start with one"
            self.status = Status("armed", command.recording, 0, command.steps)
            self._deadline = None if command.deadline_seconds is None else time.monotonic() + command.deadline_seconds
        self._order(lambda: self._arm(command, deliver))
        return None

    def cancel(self, recording: str, reason: str, outcome: str = "cancelled") -> None:
        """End that recording before its time; one that does not run is passed over."""
        if self.status.recording == recording and self.status.phase in ("armed", "recording"):
            self._order(lambda: self._end_early(recording, reason, outcome))

    def sample(self, sampling: Sampling) -> None:
        """Record one step in K, window after window, beside all that is asked for else. May be repeated."""
        if self._window is None and self.status.phase not in ACTIVE_PHASES:
            self._order(lambda: self._open_piece(sampling))

    def stop_sampling(self) -> None:
        """End that, and drop what was not handed over yet."""
        if self._sampling is not None:
            self._order(self._drop_piece)

    def start_at(self, recording: str, position: Position) -> None:
        """Let the steps of a recording that waits for its lockstep group begin at `position` at the earliest."""
        if self.status.recording == recording and self.status.phase == "armed":
            self._order(lambda: self._set_start(recording, position))

    def check_deadline(self) -> None:
        """Disarm when the command's deadline has passed. Doors call this now and then."""
        status, deadline = self.status, self._deadline
        if deadline is not None and time.monotonic() > deadline and status.recording is not None:
            self._deadline = None
            self.cancel(
                status.recording,
                f"the deadline passed after {status.steps_done} of {status.steps_asked} steps",
                "failed",
            )

    def ended(self, recording: str) -> Status | None:
        """How one of the last recordings ended, or that it waits, even where another has begun since."""
        return self._endings.get(recording)

    def exported(self, error: str | None, waits: bool = False) -> None:
        """The exporter is through with the last window; `error` says what it could not do, or not yet (`waits`)."""
        with self._changing:
            phase, reason = self._outcome
            self.status = self._endings.exported(replace(self.status, phase=phase, reason=reason), error, waits)

    def gone(self, recording: str, error: str | None) -> None:
        """What waited of a recording does so no more: it was sent, or `error` says why it never will be.

        It may be told before `exported` is, on another thread.
        """
        with self._changing:
            ended = self._endings.gone(recording, error)
            if ended is not None and self.status.recording == recording:
                self.status = ended

    def _end(self, status: Status) -> None:
        """A recording ended without an export."""
        with self._changing:
            self.status = self._endings.note(status)

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self.due = True
        self.port.wake()

    # -- called by the engine, on its thread -------------------------------------------------

    def run_due(self, stepping: bool = False) -> None:
        """Carry out what doors ordered; between two steps, with `stepping` right before one."""
        self.due = False
        while self._orders:
            order = self._orders.popleft()
            try:
                order()
            except Exception as error:  # noqa: BLE001 - never into the engine
                self._fail(error)
        if self._waiting is not None:
            self.due = True  # looks at every step where the group stands
            try:
                self._wait_for_group(self._waiting)
                if stepping and self._waiting is not None:
                    self._waiting.step_begins()
            except Exception as error:  # noqa: BLE001 - never into the engine
                self._fail(error)

    def finish_window(self) -> None:
        """Fetch the ranks' logs and hand the window over; between two steps."""
        self.window_over = False
        window, sampled = self._window, self._sampling
        try:
            self._finish()
            # Where a rank failed the next would, too: its door asks again, in a while.
            if sampled is not None and window is not None and not window.reasons:
                self._open_piece(sampled)
        except Exception as error:  # noqa: BLE001 - never into the engine
            self._fail(error)

    def on_schedule(self, output: Any, start: int, end: int) -> None:
        """A scheduler output was made, from `start` to `end` in ticks."""
        window = self._window
        if window is None or not output.total_num_scheduled_tokens:
            return
        if self._latest is not None:
            self._latest.next_schedule_start, self._latest = start, None
        if self._discarding:
            self._discarding = False
            return
        command = window.command
        if self._scheduled >= command.steps:
            return
        number, self._seen = self._seen, self._seen + 1
        if (number + 1) % command.every:
            return
        position, self._positions = self._positions, self._positions + 1
        counts = self.port.count(output)
        step = EngineStep(
            window.first_index + len(window.steps), counts, start, end, position=position, lockstep=self.port.lockstep()
        )
        window.steps.append(step)
        self._latest = self._open[id(output)] = step
        if command.kind is None or command.kind == counts.kind:
            self._scheduled += 1

    def on_update(self, output: Any, start: int, end: int) -> None:
        """The outputs of a scheduler output were processed, from `start` to `end` in ticks."""
        if not output.total_num_scheduled_tokens:
            return  # of a pipeline or an asynchronous engine, perhaps while a step is under way
        previous, self._last_update_end = self._last_update_end, end
        step = self._open.pop(id(output), None)
        if self._window is None or step is None:
            return
        self._close_step(self._window, step, start, end, previous)

    def on_dummy(self, start: int, end: int) -> None:
        """The engine kept its lockstep group company with a dummy batch, from `start` to `end` in ticks."""
        previous, self._last_update_end = self._last_update_end, end
        window = self._window
        if window is None or self._sampling or self._scheduled >= window.command.steps:
            return
        if self._discarding:
            self._discarding = False
            return
        step = EngineStep(len(window.steps), _IDLE, start, start, lockstep=self.port.lockstep())
        window.steps.append(step)
        self._scheduled += 1
        self._close_step(window, step, end, end, previous)

    def _close_step(self, window: Window, step: EngineStep, start: int, end: int, previous: int) -> None:
        step.update_start, step.update_end, step.previous_update_end = start, end, previous
        command = window.command
        if command.kind in (None, step.counts.kind) or step.position is None:
            self._counted += 1
        if not self._sampling:
            self.status = Status("recording", command.recording, self._counted, command.steps)
        answers = self._arm_answers()
        if answers is not None:
            errors = _told(answers)
            self._arm_answers = list
            if errors:
                window.reasons.extend(errors)
                window.outcome = "failed"
                self.window_over = True
        if self._counted >= command.steps or (self._sampling and end > self._piece_end):
            self.window_over = True

    def on_event(self, name: str) -> None:
        """Something was asked of the engine that may change what its steps take."""
        window = self._window
        if window is None:
            return
        window.events[name, self._counted] = window.events.get((name, self._counted), 0) + 1

    def watch_failed(self, error: BaseException) -> None:
        """Following the engine failed: give the window up at the end of this step."""
        if self._window is not None and self._window.outcome == "done":
            self._window.reasons.append(f"the engine's recorder failed: {error!r}")
            self._window.outcome = "failed"
            self.window_over = True

    # -- the window --------------------------------------------------------------------------

    def _arm(self, command: Command, deliver: Deliver) -> None:
        started = self._clock()
        if self._sampling:
            self._finish_piece()
        self._deliver = deliver
        refusal = self._refusal(command)
        if refusal is not None:
            self._deadline = None
            self._end(Status("refused", command.recording, 0, command.steps, refusal))
            return
        if command.together:
            self._waiting = LockstepStart(command, self.port.lockstep, self._clock)
            return
        self._open_window(command, started)

    def _refusal(self, command: Command) -> str | None:
        """Why this engine can't be armed so."""
        if not self._workers_checked:
            if not self.port.workers_have_plugin():
                return (
                    "a worker of this engine has no recorder: vime-otel must be installed where its workers run,"
                    " and VIME_OTEL_COLLECTOR or VIME_OTEL_DIR set in their environment"
                )
            self._workers_checked = True
        forced = self._forced(command)
        if forced or command.timing == "events":
            answers = self.port.call_workers("vime_otel_check", command.timing, forced, self.port.min_free_mib)
            errors = _told(answers)
            if errors:
                return "; ".join(errors)
        return None

    def _forced(self, command: Command) -> bool:
        """Whether the engine has to be brought to run eagerly."""
        return command.force_eager and self.port.describe()["execution"] != "eager"

    def _open_window(self, command: Command, started: int, first_index: int = 0) -> None:
        forced = self._forced(command)
        # A lockstep group ends by its own count, in which idle steps have their place.
        limit = command.steps if command.kind is None and not command.together else None
        order = WorkerOrder(limit, command.timing, forced, command.per_layer, command.every, self.port.max_spans)
        self._armed = True
        self._arm_answers = self.port.call_workers_later("vime_otel_arm", order)
        description = {"engine": self.id, **self.port.describe()}
        self._window = Window(command, description, self.port.clock(), first_index=first_index)
        self._counted = self._scheduled = self._seen = self._positions = 0
        self._discarding = forced
        self._open.clear()
        self._latest = None
        self._last_update_end = 0
        self.port.watch_steps(self._patches, self)
        if not self._sampling:
            self.pace.window_opens()
        self._window.pause_ns = self._clock() - started

    # -- one step in K --------------------------------------------------------------------------

    def _open_piece(self, sampling: Sampling) -> None:
        """Go on sampling with a new window, unless something else is asked for."""
        if self._window is not None or self._waiting is not None or self.status.phase in ACTIVE_PHASES:
            return
        self._sampling = sampling
        command = sampling.command()
        refusal = self._refusal(command)
        if refusal is not None:
            self._sampling = None
            self._tell_of_sampling(refusal)
            return
        started = self._clock()
        self._open_window(command, started, self._sampled.get(command.recording, 0))
        self._piece_end = started + PIECE_SECONDS * 1_000_000_000

    def _drop_piece(self) -> None:
        if self._sampling is not None:
            self._sampling = replace(self._sampling, deliver=_drop)
            self._finish()

    def _finish_piece(self) -> None:
        """Make room for a recording: what is wrong with the samples is not its fault."""
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - never into the engine
            self._fail(error)

    def _tell_of_sampling(self, trouble: str) -> None:
        """Log what keeps this engine from sampling, once for as long as it does; empty where nothing does."""
        if trouble and trouble != self._sampling_trouble:
            logger.warning("vime-otel: sampling steps failed and is tried again, in a while: %s", trouble)
        self._sampling_trouble = trouble

    def _end_piece(self, window: Window, sampling: Sampling) -> None:
        """Hand a window of sampled steps over."""
        recording = window.command.recording
        self._sampled = {recording: window.first_index + len(window.steps)}
        self._tell_of_sampling("; ".join(dict.fromkeys(window.reasons)))
        if window.steps:
            sampling.deliver(window)
        self._sampling = None

    # -- starting with a lockstep group --------------------------------------------------------

    def _wait_for_group(self, waiting: LockstepStart) -> None:
        """Tell where the group stands, and open the window when it has come to the start."""
        command = waiting.command
        self.status = Status(
            "armed",
            command.recording,
            0,
            command.steps,
            position=waiting.position,
            steps_per_second=max(self.pace.per_second(), waiting.steps_per_second()),
        )
        if waiting.is_due():
            self._waiting = None
            self.due = bool(self._orders)
            self._open_window(command, self._clock())

    def _set_start(self, recording: str, position: Position) -> None:
        waiting = self._waiting
        if waiting is None or waiting.command.recording != recording:
            return
        too_late = waiting.begin_at(position)
        if too_late is not None:
            self._stop_waiting(waiting.command, too_late, "failed")

    def _stop_waiting(self, command: Command, reason: str, outcome: str) -> None:
        """Hand an empty window over: the others of the group may have recorded, and wait for this engine's part."""
        description = {"engine": self.id, **self.port.describe()}
        window = Window(command, description, self.port.clock(), reasons=[reason], outcome=outcome)
        self._waiting = self._deadline = None
        self._outcome = (outcome, reason)
        self.status = replace(self.status, phase="exporting", reason=reason)
        if self._deliver is not None:
            self._deliver(window)

    def _end_early(self, recording: str, reason: str, outcome: str) -> None:
        if self._waiting is not None and self._waiting.command.recording == recording:
            self._stop_waiting(self._waiting.command, reason, outcome)
            return
        window = self._window
        if window is None or window.command.recording != recording:
            return
        if window.outcome == "done":
            window.outcome = outcome
        window.reasons.append(reason)
        self._finish()

    def _finish(self) -> None:
        window, self._window = self._window, None
        self._patches.restore()
        if window is None:
            return
        sampling = self._sampling
        if sampling is None:
            self._deadline = None
        started = self._clock()
        self._armed = False
        answers = self.port.call_workers("vime_otel_take")
        window.pause_ns = max(window.pause_ns, self._clock() - started)
        if sampling is None:
            self.pace.window_closes()
        window.steps = [step for step in window.steps if step.update_end]
        window.reasons.extend(_told(answers))
        for answer in answers:
            if isinstance(answer.get("log"), RankLog):
                window.ranks.append(answer["log"])
                window.hooks_found, window.hooks_missing = answer["hooks_found"], answer["hooks_missing"]
        if sampling is not None:
            self._end_piece(window, sampling)
            return
        if window.reasons and window.outcome == "done":
            window.outcome = "failed"
        reason = "; ".join(dict.fromkeys(window.reasons)) or None
        self._outcome = (window.outcome, reason)
        self.status = replace(self.status, phase="exporting", reason=reason)
        if self._deliver is not None:
            self._deliver(window)

    def _fail(self, error: BaseException) -> None:
        """Give up what runs: the samples' window, or else the recording."""
        self._patches.restore()
        self._window = None
        if self._armed:
            self._armed = False
            with contextlib.suppress(Exception):  # the workers may be why
                self.port.call_workers_later("vime_otel_take")
        why = f"the engine's recorder failed: {error!r}"
        if self._sampling is not None:
            self._sampling = None
            self._tell_of_sampling(why)
            return
        logger.warning("vime-otel gave a recording up; the engine goes on", exc_info=error)
        self._waiting = None
        self._deadline = None
        self._end(replace(self.status, phase="failed", reason=why))

    @classmethod
    def idle(cls) -> EngineRecorder:
        """A recorder that never gets an order, as an engine's is most of the time (for benchmarks)."""
        return cls(NoPort())


_IDLE = StepCounts("idle", False, 0, 0, 0)


def _told(answers: list[Any]) -> list[str]:
    """What is wrong, by the ranks' answers."""
    return [f"rank {rank}: {error}" for rank, answer in enumerate(answers) for error in answer["errors"]]
