"""What is read from a training log, in the forms that vime's and vLLM's loggers give it."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.doctor.train_log import TrainLog, parse_train_log, read_train_log
from vime_otel.data.errors import VimeOtelError

CONFIG = '{"profiler":"torch","torch_profiler_dir":"/logs/vllm profile","max_iterations":3}'
CALL = "ProfilerConfig(profiler='torch', torch_profiler_dir='/logs/vllm profile', max_iterations=3)"


def parse(*lines: str) -> TrainLog:
    return parse_train_log(Path("train.log"), lines)


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("127.0.0.1:3521", "http://127.0.0.1:3521"),
        ("node-7.cluster:3521", "http://node-7.cluster:3521"),
        ("[fd00::1]:3521", "http://[fd00::1]:3521"),
        ("fd00::1:3521", "http://[fd00::1]:3521"),
    ],
)
@pytest.mark.parametrize(
    "before", ["", "(RolloutManager pid=77, ip=10.0.0.2) ", "\x1b[36m[2026-11-30 08:00:00] INFO\x1b[0m "]
)
@pytest.mark.parametrize("after", ["", ", Prometheus port: 4153"])
def test_the_router_is_found_however_its_line_is_dressed(place: str, url: str, before: str, after: str) -> None:
    assert parse(f"{before}Router launched at {place}{after}\n").router_url == url


def test_the_last_router_counts() -> None:
    log = parse("Router launched at 10.0.0.1:3100, Prometheus port: 1\n", "Router launched at 10.0.0.1:3200\n")
    assert log.router_url == "http://10.0.0.1:3200"


def test_a_log_without_a_router_names_the_way_out() -> None:
    with pytest.raises(VimeOtelError, match="--router URL"):
        _ = parse("still loading weights\n").router_url


@pytest.mark.parametrize(
    "line",
    [
        f"vllm_profiler_config ........................... {CALL}",
        f"  vllm_profiler_config: {CONFIG}",
        f"vllm_profiler_config={CALL}",
    ],
)
def test_parsed_arguments_are_seen(line: str) -> None:
    log = parse(line)
    assert log.parsed is not None
    assert log.parsed["profiler"] == "torch"
    assert log.trace_dir == "/logs/vllm profile"


def test_arguments_parsed_as_none_are_told_from_none_shown() -> None:
    assert parse("vllm_profiler_config ............ None").parsed == {}
    assert parse("something else").parsed is None


@pytest.mark.parametrize(
    "command",
    [
        f"vllm serve /m --port 15000 --profiler-config {CONFIG} --seed 1",
        f"vllm serve /m --profiler-config={CONFIG}",
        f"vllm serve /m --profiler-config '{CONFIG}'",
        str({"model": "/m", "port": 15000, "profiler_config": CONFIG}),
        str({"model": "/m", "profiler_config": {"profiler": "torch", "torch_profiler_dir": "/logs/vllm profile"}}),
        f"{{'model': PosixPath('/m'), 'profiler_config': {CALL}}}",
    ],
)
def test_a_forwarded_config_is_seen_in_command_lines_and_dicts(command: str) -> None:
    log = parse(f"(VLLMEngine pid=9) Launching vLLM server: {command}")
    assert [config and config["torch_profiler_dir"] for config in log.launched] == ["/logs/vllm profile"]


@pytest.mark.parametrize("command", ["vllm serve /m --port 1", "{'model': '/m'}", "{'model': PosixPath('/m')}"])
def test_a_launch_without_it_is_seen_too(command: str) -> None:
    assert parse(f"Launching vLLM server: {command}").launched == [None]


def test_servers_routes_and_settings_are_collected() -> None:
    log = parse(
        "INFO 11-30 [api_server.py:602] Starting vLLM server on http://127.0.0.1:15000",
        "(APIServer pid=1) INFO [launcher.py:46] Route: /start_profile, Methods: POST",
        "(APIServer pid=1) INFO [launcher.py:46] Route: /stop_profile, Methods: POST",
        "runtime_env {'env_vars': {'VLLM_RPC_TIMEOUT': '1800000'}}",
    )
    assert log.servers == ["http://127.0.0.1:15000"]
    assert log.routes == {"/start_profile", "/stop_profile"}
    assert log.settings == {"VLLM_RPC_TIMEOUT": "1800000"}


def test_a_log_in_another_encoding_or_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\xfe\x80 noise\nRouter launched at 10.0.0.1:3100\nLaunching vLLM server: {'a': '")
    log = read_train_log(path)
    assert (log.router_url, log.launched) == ("http://10.0.0.1:3100", [None])


def test_a_missing_log_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(VimeOtelError, match="--log FILE"):
        read_train_log(tmp_path / "none.log")
