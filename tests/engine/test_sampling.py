"""One step in K of a real engine, into a serving collector's rolling recording."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running_collector import ControlClient, until
from streaming import completion

from vime_otel.data.rundir import RunDirectory
from vime_otel.demo.ports import free_port
from vime_otel.demo.stack import EngineStack

pytestmark = [pytest.mark.engine, pytest.mark.long]

EVERY = 4
LAYER = "step;execute_model;Qwen3MoeForCausalLM;model:Qwen3MoeModel;Qwen3MoeDecoderLayer"


def test_samples_go_into_the_days_run_and_a_recording_comes_first(tmp_path: Path) -> None:
    http, grpc = free_port(), free_port()
    url = f"http://127.0.0.1:{http}"
    serve = [sys.executable, "-m", "vime_otel", "serve", "--out", str(tmp_path / "runs")]
    serve += ["--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"]
    env = {"VIME_OTEL_COLLECTOR": url, "VIME_OTEL_SAMPLE_EVERY": str(EVERY)}
    control = ControlClient(url)
    with (
        subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as collector,
        EngineStack(tmp_path / "stack", engines=1, env=env) as stack,
    ):
        try:
            (worker,) = stack.worker_urls
            until(lambda: [each["phase"] for each in control.recorders()] == ["idle"], seconds=60)
            plain = completion(worker, "before and after", 41)
            for _ in range(3):
                assert completion(worker, "before and after", 41) == plain
            # A recording ends the window of samples, which is handed over, and sampling goes on after it.
            recording = control.start(workers=[worker], steps=10, requests=2, max_tokens=30)
            result = control.finish(recording)
            assert result["complete"], result["reasons"]
            rolling = until(lambda: rolling_runs(tmp_path), seconds=60)[0]
            first = sum(rolling.steps.values())
            # 4 completions of 41 steps each; the first of them may have come before sampling began.
            assert 3 * 41 // EVERY <= first <= 4 * 41 // EVERY
            assert f"{LAYER};self_attn:Qwen3MoeAttention;attn:Attention" in rolling.self_us("decode")
            until(lambda: control.recorders()[0]["phase"] != "exporting")
            completion(worker, "before and after", 41)
        finally:
            collector.terminate()
            collector.wait()
        rows = rolling_runs(tmp_path)[0].rows
        assert [row.index for row in rows] == list(range(len(rows)))
        assert {row.requests for row in rows} == {1}, "nothing of the recording's own traffic"


def rolling_runs(directory: Path) -> list[RunDirectory]:
    """The rolling runs that have been written."""
    return [RunDirectory(path.parent) for path in (directory / "runs").glob("*-rolling/recording.json")]
