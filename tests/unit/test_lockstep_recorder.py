"""An engine's recorder in a lockstep group: it waits for the others, and idle steps count."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_port import FakePort, step

from vime_otel.data.lockstep import start_position
from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.vllm_engine import EnginePort
from vime_otel.recorder.window import Command, Window


class Lockstep:
    """Drives a recorder as an engine of a lockstep group would, one step of the group after the other."""

    def __init__(self, recorder: EngineRecorder, port: FakePort) -> None:
        self.recorder, self.port = recorder, port
        port.position = (0, 0)

    def run(self, steps: int, busy: bool = True) -> None:
        for _ in range(steps):
            assert self.port.position is not None
            wave, number = self.port.position
            at = 100 * number
            if busy:
                step(self.recorder, at=at)
            else:
                self.recorder.run_due(stepping=True)
                self.recorder.on_dummy(at, at + 9)
                if self.recorder.window_over:
                    self.recorder.finish_window()
            self.port.position = (wave, number + 1)


def test_a_lockstep_group_begins_where_it_is_told_and_counts_idle_steps(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    group = Lockstep(recorder, port)
    recorder.submit(Command("r1", 4, together=True), windows.append)
    group.run(3)
    assert (recorder.status.phase, recorder.status.position) == ("armed", (0, 2))
    recorder.start_at("r1", (0, 5))
    group.run(4)
    group.run(2, busy=False)
    group.run(3)
    (window,) = windows
    assert [(s.index, s.counts.kind, s.position, s.lockstep) for s in window.steps] == [
        (0, "decode", 0, (0, 5)),
        (1, "decode", 1, (0, 6)),
        (2, "idle", None, (0, 7)),
        (3, "idle", None, (0, 8)),
    ]


def test_an_engine_that_hears_too_late_of_its_groups_start_says_so(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    group = Lockstep(recorder, port)
    recorder.submit(Command("r1", 4, together=True), windows.append)
    group.run(8)
    recorder.start_at("r1", (0, 7))
    group.run(3)
    (window,) = windows
    assert (window.outcome, window.steps) == ("failed", [])
    assert "(0, 7) came when it was at (0, 7) already" in window.reasons[0]
    recorder.exported(None)
    assert (recorder.status.phase, recorder.status.reason) == ("failed", window.reasons[0])
    assert not recorder.due


def test_a_group_that_stands_idle_begins_with_its_next_wave(
    recorder: EngineRecorder, port: FakePort, windows: list[Window]
) -> None:
    group = Lockstep(recorder, port)
    port.position = (4, 0)
    recorder.submit(Command("r1", 1, together=True), windows.append)
    recorder.run_due()
    recorder.start_at("r1", start_position([((4, 0), 0.0)]))
    recorder.run_due()
    port.position = (5, 0)
    group.run(1)
    assert windows[0].steps[0].lockstep == (5, 0)


def test_waiting_for_a_group_can_be_cancelled(recorder: EngineRecorder, port: FakePort, windows: list[Window]) -> None:
    group = Lockstep(recorder, port)
    recorder.submit(Command("r1", 1, together=True), windows.append)
    group.run(1)
    recorder.cancel("r1", "nobody wants it")
    group.run(2)
    assert (windows[0].outcome, windows[0].steps) == ("cancelled", [])
    recorder.exported(None)
    assert (recorder.status.phase, recorder.status.reason) == ("cancelled", "nobody wants it")
    assert not recorder.due


def test_an_idle_engine_that_waits_tells_how_fast_its_group_steps(port: FakePort, windows: list[Window]) -> None:
    now = 0
    recorder = EngineRecorder(port, clock=lambda: now)
    group = Lockstep(recorder, port)
    port.position = (0, 50)
    recorder.submit(Command("r1", 1, together=True), windows.append)
    for _ in range(20):
        group.run(1, busy=False)
        now += 2_000_000
    assert recorder.status.steps_per_second == pytest.approx(500, rel=0.1)
    assert start_position([((0, 70), recorder.status.steps_per_second)]) == (0, 70 + 1000)


def test_lockstep_groups_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def group(host: str, address: str, port: int) -> str | None:
        monkeypatch.setattr("socket.gethostname", lambda: host)
        parallel = SimpleNamespace(
            data_parallel_master_ip=address, data_parallel_master_port=port, data_parallel_size=2
        )
        config = SimpleNamespace(parallel_config=parallel)
        return EnginePort(SimpleNamespace(vllm_config=config, current_wave=0, step_counter=0))._dp_group()

    here = group("node1", "127.0.0.1", 29500)
    assert here == group("node1", "127.0.0.1", 29500)
    assert here != group("node1", "127.0.0.1", 29501), "another server on this host"
    assert here != group("node2", "127.0.0.1", 29500), "another host's own group"
    assert group("node1", "10.0.0.1", 29500) == group("node2", "10.0.0.1", 29500), "one group over two hosts"


def test_an_engine_without_a_group_refuses_to_wait_for_one(recorder: EngineRecorder) -> None:
    refusal = recorder.submit(Command("r1", 1, together=True), lambda window: None)
    assert refusal is not None
    assert "no lockstep group" in refusal
