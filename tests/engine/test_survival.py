"""What happens to engines in the middle of a window: they go on, and the user is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import requests
from running_collector import ControlClient, config, running, until
from running_stack import RunningStack
from safetensors.numpy import load_file, save_file
from scripts import give_weights, run_script
from streaming import completion

from collector.recordings.patience import Patience
from vime_otel.data.rundir import RunDirectory
from vime_otel.demo.ports import free_port
from vime_otel.demo.processes import LoggedProcess, stop_all
from vime_otel.demo.stack import EngineStack
from vime_otel.demo.tiny_model import write_tiny_model

pytestmark = pytest.mark.engine

RECORDED = 12
EVENT_AFTER = 5
TOKENS = 16
TOLD = {
    "sleep_and_wake": ["sleep(1)", "wake_up()"],
    "weight_update": ["collective_rpc(reload_weights)"],
    "add_lora": ["add_lora(adapter)"],
    "reset_prefix_cache": ["reset_prefix_cache(True)"],
    "abort": ["abort_requests(1)"],
    "next_rollout": ["sleep(2)", "collective_rpc(reload_weights)", "wake_up()", "reset_prefix_cache(False)"],
}
EVENTS = pytest.mark.parametrize("event", TOLD)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama, since vLLM's experts with adapters need a GPU. Beside it: `adapter` for it, and `updated` weights."""
    model = write_tiny_model(tmp_path_factory.mktemp("survival") / "model", "LlamaForCausalLM", model_type="llama")
    give_weights(model)
    write_adapter(model.with_name("adapter"), json.loads((model / "config.json").read_text()))
    updated = model.with_name("updated")
    shutil.copytree(model, updated)
    weights = load_file(updated / "model.safetensors")
    weights["model.embed_tokens.weight"] = np.roll(weights["model.embed_tokens.weight"], 1, axis=0)
    save_file(weights, updated / "model.safetensors", {"format": "pt"})
    return model


def write_adapter(directory: Path, model: dict[str, Any]) -> None:
    """Random weights for the query and output projections of a model with that config, as peft lays them out."""
    rank, hidden, heads = 4, model["hidden_size"], model["num_attention_heads"] * model["head_dim"]
    sizes = {"q_proj": (hidden, heads), "o_proj": (heads, hidden)}
    random = np.random.default_rng(0)
    weights = {}
    for layer in range(model["num_hidden_layers"]):
        for name, (into, out) in sizes.items():
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{path}.lora_A.weight"] = random.normal(size=(rank, into)).astype(np.float32)
            weights[f"{path}.lora_B.weight"] = random.normal(size=(out, rank)).astype(np.float32)
    directory.mkdir()
    save_file(weights, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(sizes), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def found(model: Path) -> dict[str, Any]:
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return run_script("survival.py", model, model.with_name("dir"), env)


@EVENTS
def test_an_event_in_a_window_changes_no_token(found: dict[str, Any], event: str) -> None:
    assert found[event]["recorded"] == found[event]["plain"]


def test_the_events_do_what_they_say(found: dict[str, Any]) -> None:
    untouched = found["no_event"]
    answers = {event: found[event]["recorded"] for event in TOLD}
    updated = answers["weight_update"]["request 0"]
    assert updated[:EVENT_AFTER] == untouched["request 0"][:EVENT_AFTER]
    assert updated[EVENT_AFTER] != untouched["request 0"][EVENT_AFTER]
    assert answers["add_lora"]["with the adapter"] != untouched["request 0"], "the prompt is the same"
    lengths = {name: len(tokens) for name, tokens in answers["abort"].items()}
    assert lengths == {name: EVENT_AFTER if name == "request 1" else TOKENS for name in untouched}
    assert len(answers["next_rollout"]["of the next rollout"]) == TOKENS


@EVENTS
def test_the_recording_is_whole_and_names_the_event(found: dict[str, Any], event: str) -> None:
    header = found[event]["header"]
    (engine,) = header["engines"]
    assert (header["complete"], header["reasons"]) == (True, [])
    assert sum(engine["steps"].values()) == RECORDED
    told = [f"{call} was called after {EVENT_AFTER} of the recorded steps" for call in TOLD[event]]
    assert [note for note in engine["notes"] if note in told] == told


@pytest.mark.parametrize("event", ["sleep_and_wake", "reset_prefix_cache", "next_rollout"])
def test_requests_that_lost_their_cache_are_a_prefill_step(found: dict[str, Any], event: str) -> None:
    after = found[event]["rows"][EVENT_AFTER]
    assert (after["kind"], after["resumed"]) == ("prefill", 4)


@EVENTS
def test_nothing_is_left_on_modules_or_engine(found: dict[str, Any], event: str) -> None:
    assert found[event]["left_behind"] == [[]]
    assert found[event]["engine_clean"]


def await_armed(control: ControlClient, recording: str) -> None:
    until(lambda: [engine["phase"] for engine in control.show(recording)["engines"]] == ["armed"], seconds=60)


def steps_done(control: ControlClient, recording: str) -> int:
    return int(control.show(recording)["engines"][0]["steps_done"])


def leave_in_mid_stream(url: str, prompt: str, tokens: int) -> None:
    """Ask for `tokens` tokens, read one and hang up."""
    model = requests.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=120) as answer:
        answer.raise_for_status()
        next(answer.iter_lines())


def test_a_client_may_leave_in_mid_stream(engine_stack: RunningStack, tmp_path: Path) -> None:
    url, prompt, steps = engine_stack.worker_urls[0], "what does the next client get", 300
    plain = completion(url, prompt, 60)
    with running(config(tmp_path, http_port=engine_stack.collector_port, patience=Patience())) as collector:
        control = ControlClient(collector.url)
        until(lambda: len(control.recorders()) == 2, seconds=60)
        recording = control.start(workers=[url], steps=steps, timeout_seconds=120)
        await_armed(control, recording)
        leave_in_mid_stream(url, "who leaves", 400)
        while control.show(recording)["state"] == "recording":
            assert completion(url, prompt, 60) == plain
        result = control.finish(recording)
    assert (result["complete"], result["reasons"]) == (True, [])
    run = RunDirectory(Path(result["run"]))
    assert len(run.rows) == steps
    (engine,) = run.header["engines"]
    assert any(note.startswith("abort_requests(1) was called after ") for note in engine["notes"]), engine["notes"]


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[tuple[str, int]]:
    """URL of an engine of this module's own, and the port where its recorder looks for a collector."""
    port = free_port()
    env = {
        "VIME_OTEL_COLLECTOR": f"http://127.0.0.1:{port}",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    arguments = ["--enable-lora", "--max-lora-rank", "8", "--load-format", "auto"]
    with EngineStack(model.with_name("stack"), 1, lambda number: arguments, env, model=model) as stack:
        yield stack.worker_urls[0], port


@pytest.fixture
def control(served: tuple[str, int], tmp_path: Path) -> Iterator[ControlClient]:
    """A collector that the engine has found."""
    with running(config(tmp_path / "runs", http_port=served[1], patience=Patience())) as collector:
        client = ControlClient(collector.url)
        until(client.recorders, seconds=60)
        yield client


@pytest.mark.long
def test_a_served_engine_obeys_in_a_window(served: tuple[str, int], control: ControlClient, model: Path) -> None:
    url, prompt = served[0], "what goes on through all of this"
    plain = completion(url, prompt, 300)
    calls: list[tuple[str, dict[str, object] | None, str]] = [
        ("sleep?level=1&mode=keep", None, "sleep(1)"),
        (
            "collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": str(model)}},
            "collective_rpc(reload_weights)",
        ),
        ("wake_up", None, "wake_up()"),
        ("reset_prefix_cache", None, "reset_prefix_cache(False)"),
        (
            "v1/load_lora_adapter",
            {"lora_name": "adapter", "lora_path": str(model.with_name("adapter"))},
            "add_lora(adapter)",
        ),
    ]
    recording = control.start(workers=[url], steps=400, timeout_seconds=120)
    await_armed(control, recording)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(completion, url, prompt, 300)
        until(lambda: steps_done(control, recording), seconds=60)
        for path, body, _ in calls:
            told = requests.post(f"{url}/{path}", json=body, timeout=60)
            assert told.status_code == 200, told.text
        assert answer.result() == plain
    while control.show(recording)["state"] == "recording":
        completion(url, prompt, 60)
    result = control.finish(recording)
    assert (result["complete"], result["reasons"]) == (True, [])
    (engine,) = RunDirectory(Path(result["run"])).header["engines"]
    told = [note.partition(" was called after ")[0] for note in engine["notes"]]
    assert {name for _, _, name in calls} <= set(told)


@pytest.mark.long
def test_an_engine_may_be_killed_in_a_window_and_started_again(
    served: tuple[str, int], control: ControlClient, tmp_path: Path
) -> None:
    url = served[0]
    (killed,) = control.recorders()
    recording = control.start(workers=[url], steps=10_000, timeout_seconds=300)
    await_armed(control, recording)
    completion(url, "some work", 20)
    until(lambda: steps_done(control, recording), seconds=60)

    core = psutil.Process(killed["pid"])
    server = core.parent()
    assert server is not None
    command, env = server.cmdline(), server.environ()
    core.kill()
    result = control.finish(recording)
    assert result["state"] == "failed"
    assert "it vanished while recording" in result["message"]
    psutil.wait_procs([server])

    again = LoggedProcess("restarted", command, tmp_path / "restarted.log", env)
    try:
        (started,) = until(lambda: [each for each in control.recorders() if each["engine"] != killed["engine"]], 400)
        request = {"requests": 1, "max_tokens": 16, "wait_seconds": 120, "timeout_seconds": 120}
        result = control.record(workers=[url], steps=6, **request)
    finally:
        stop_all([again])
    assert (result["complete"], result["reasons"]) == (True, [])
    run = RunDirectory(Path(result["run"]))
    assert [engine["id"] for engine in run.header["engines"]] == [started["engine"]]
