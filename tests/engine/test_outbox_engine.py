"""Outages around real engines: the endpoint goes during the window, the engine ends, and everything arrives."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from certificates import make_authority
from otlp_sink import OtlpSink
from running_collector import ControlClient, until
from scripts import FOLDER, run_script
from waiting_windows import windows_below

from vime_otel.data import settings
from vime_otel.data.otlp import step_ids
from vime_otel.data.rundir import RunDirectory
from vime_otel.demo.ports import free_port
from vime_otel.demo.processes import LoggedProcess, stop_all

pytestmark = [pytest.mark.engine, pytest.mark.long]

IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
TOKEN = "s3cret-of-these-tests"
BOOT_S = 180.0


def test_spans_of_an_engine_that_is_gone_arrive_once_at_the_otlp_endpoint(
    model_with_weights: Path, tmp_path: Path
) -> None:
    port = free_port()
    directory = tmp_path / "dir"
    env = {**IN_PROCESS, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
    header = run_script("outbox.py", model_with_weights, directory, {**env, "OUTBOX_TEST": "record"})["header"]
    assert header["complete"] is True
    with OtlpSink(port) as sink:
        run_script("outbox.py", model_with_weights, directory, {**env, "OUTBOX_TEST": "deliver"})
    ids = Counter(span.span_id for _, span in sink.spans())
    assert set(ids.values()) == {1}
    assert len(ids) == header["spans"]["expected"]
    engine = header["engines"][0]["id"]
    assert {span.trace_id for _, span in sink.spans()} == {step_ids(header["id"], engine, n)[0] for n in range(12)}
    assert {resource["service.instance.id"] for resource, _ in sink.spans()} == {engine}


@contextmanager
def engine_at_work(model: Path, directory: Path, env: dict[str, str], log: Path) -> Iterator[LoggedProcess]:
    """An engine that makes steps; killed at the end."""
    (directory / "working").unlink(missing_ok=True)
    command = [sys.executable, str(FOLDER / "outbox.py"), str(model), str(directory), str(log.with_suffix(".json"))]
    fixed = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OUTBOX_TEST": "work"}
    engine = LoggedProcess("engine", command, log, {**IN_PROCESS, **fixed, settings.DIR.name: str(directory), **env})
    try:
        until(lambda: (directory / "working").exists() or engine.exit_status() is not None, BOOT_S)
        assert engine.exit_status() is None, engine.log_tail()
        yield engine
    finally:
        for process in engine.family():
            process.kill()
        stop_all([engine])


def test_a_recording_goes_on_over_tls_through_the_deaths_of_the_collector_and_the_engine(
    model_with_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(tmp_path)
    tls = authority.issue(tmp_path, "127.0.0.1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.file))
    port = free_port()
    url, directory = f"https://127.0.0.1:{port}", tmp_path / "dir"
    directory.mkdir()
    env = {settings.COLLECTOR.name: url, settings.CA.name: str(authority.file), settings.TOKEN.name: TOKEN}
    places = ["--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0", "--out", str(tmp_path / "runs")]
    files = ["--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)]

    def serve(number: int) -> LoggedProcess:
        command = [sys.executable, "-m", "vime_otel", "serve", *places, *files]
        return LoggedProcess("serve", command, tmp_path / f"serve-{number}.log", env)

    control = ControlClient(url, TOKEN)
    first = serve(1)
    try:
        with engine_at_work(model_with_weights, directory, env, tmp_path / "engine-1.log"):
            until(lambda: is_serving(url) and control.recorders(), 60)
            recording = control.start(steps=100_000, timeout_seconds=600)
            until(lambda: [e for e in control.show(recording)["engines"] if e["steps_done"] >= 20], 60)
            os.kill(first.pid, 9)
            until(lambda: windows_below(directory), 120)
    finally:
        stop_all([first])
    (left,) = windows_below(directory)
    assert TOKEN.encode() not in left.read_bytes()
    with engine_at_work(model_with_weights, directory, env, tmp_path / "engine-2.log"):
        second = serve(2)
        try:
            until(lambda: is_serving(url), 60)
            # The exporter is niced, and this engine makes steps on every core.
            until(lambda: control.show(recording)["state"] in ("done", "failed"), 200)
            result = control.show(recording)
        finally:
            stop_all([second])
    assert result["state"] == "done"
    header = RunDirectory(Path(result["run"])).header
    assert result["steps"]["decode"] + result["steps"]["prefill"] >= 20
    assert header["spans"]["received"] == header["spans"]["expected"] > 0
    assert header["totals"]["received"] == header["totals"]["expected"] > 0
    assert header["mismatched_steps"] == []
    assert not windows_below(directory)
    for log in tmp_path.glob("*.log"):
        assert TOKEN not in log.read_text(errors="replace")


def is_serving(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False
