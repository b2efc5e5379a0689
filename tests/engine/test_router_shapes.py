"""The real vllm-router in each of its forms; the workers behind it are stand-ins (vLLM servers take a minute each)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from running_collector import until
from standins import Routes, answer, serving_in_thread

from vime_otel.cli.main import main
from vime_otel.demo.ports import free_port
from vime_otel.demo.processes import LoggedProcess, stop_all

pytestmark = pytest.mark.engine

MODELS = {"object": "list", "data": [{"id": "qwen", "object": "model", "owned_by": "vllm", "root": "/models/qwen"}]}
STAND_IN: Routes = {
    "GET /health": answer(),
    "GET /health_generate": answer(),
    "GET /version": answer(body={"version": "0.32.0"}),
    "GET /get_server_info": answer(body={}),
    "GET /server_info": answer(body={}),
    "GET /v1/models": answer(body=MODELS),
    "POST /start_profile": answer(),
    "POST /stop_profile": answer(),
}


@contextmanager
def running_router(directory: Path, *arguments: str) -> Iterator[str]:
    """The real router with these arguments; gives its URL once it answers."""
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    command += ["--worker-startup-timeout-secs", "20", *arguments]
    router = LoggedProcess("router", command, directory / "router.log", {})

    def answers() -> bool:
        assert router.exit_status() is None, router.log_tail()
        try:
            return requests.get(f"http://127.0.0.1:{port}/workers", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    try:
        until(answers, seconds=60)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_all([router])


def dry_run(capsys: pytest.CaptureFixture[str], router: str, *options: str) -> dict[str, str]:
    """URL → type of the workers that `profile start` would ask."""
    capsys.readouterr()
    assert main(["profile", "start", "--router", router, "--dry-run", "--json", *options]) == 0
    return {each["url"]: each["type"] for each in json.loads(capsys.readouterr().out)["would_ask"]}


def test_prefill_and_decode_pools_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving_in_thread(STAND_IN, STAND_IN) as (prefill, decode):
        arguments = ["--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode, "--policy", "round_robin"]
        with running_router(tmp_path, *arguments) as router:
            until(lambda: len(dry_run(capsys, router, "--all")) == 2, seconds=30)
            assert dry_run(capsys, router, "--all") == {prefill: "prefill", decode: "decode"}
            assert dry_run(capsys, router, "--all", "--worker-type", "decode") == {decode: "decode"}
            assert main(["profile", "start", "--router", router, "--all"]) == 0
            assert "start: 2 of 2 workers" in capsys.readouterr().out


def test_data_parallel_ranks_are_asked_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving_in_thread(STAND_IN) as (worker,):
        arguments = ["--worker-urls", worker, "--intra-node-data-parallel-size", "2", "--policy", "round_robin"]
        with running_router(tmp_path, *arguments) as router:
            listed = requests.get(f"{router}/workers", timeout=5).json()["workers"]
            assert {each["url"] for each in listed} == {f"{worker}@0", f"{worker}@1"}
            assert dry_run(capsys, router) == {worker: "regular"}


def test_workers_that_joined_a_gateway_of_several_models_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving_in_thread(STAND_IN) as (worker,), running_router(tmp_path, "--enable-igw") as router:
        added = requests.post(f"{router}/workers", json={"url": worker, "model_id": "qwen"}, timeout=30)
        assert added.ok, added.text
        until(lambda: requests.get(f"{router}/workers", timeout=5).json()["workers"], seconds=30)
        assert dry_run(capsys, router, "--model", "qwen") == {worker: "regular"}
