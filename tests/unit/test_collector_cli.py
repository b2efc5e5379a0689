"""`vime-otel collect` and `vime-otel serve`, as processes of their own, with simulated engines."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running_collector import ControlClient, config, running, until
from simulated_recorder import Behaviour, SimulatedRecorder
from standins import answer, closed_port_url, serving_in_thread

from vime_otel.cli.main import main
from vime_otel.data import settings
from vime_otel.data.find_runs import list_runs
from vime_otel.data.rundir import RunDirectory
from vime_otel.demo.ports import free_port

ENGINES = ("00000000000000a1", "00000000000000b2")
WORKERS = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
REPOSITORY = Path(__file__).parents[2]


@contextmanager
def command(cwd: Path, *args: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """The command line, started in `cwd`; killed if it is still there at the end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VIME_OTEL_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "vime_otel", *args],
        cwd=cwd,
        env=clean | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(cwd: Path, *args: str, **env: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    with command(cwd, *args, **env) as process:
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in out + err
        return process.returncode, out, err


def collect_args(port: int, *args: str) -> list[str]:
    return ["collect", "--grpc", "127.0.0.1:0", "--http", f"127.0.0.1:{port}", *args]


def workers_args(workers: list[str]) -> list[str]:
    return [text for url in workers for text in ("--worker", url)]


def test_collect_records_two_engines_and_says_what_it_wrote(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with SimulatedRecorder(url, ENGINES[0], 8001), SimulatedRecorder(url, ENGINES[1], 8002):
        status, out, err = run(tmp_path, *collect_args(port, *workers_args(WORKERS), "--steps", "5"))
    assert status == 0, err
    (found,) = list_runs(tmp_path / "runs")
    assert found.header["complete"] is True
    assert "recorded decode step 7.9 ms (batch 4, 8 steps, eager, sync)" in out
    assert "moe.experts" in out
    assert f"run: runs/{found.path.name}" in out
    assert out.rstrip().endswith("next: vime-otel view")
    for label in ("127.0.0.1:8001/0", "127.0.0.1:8002/0"):
        assert f"{label}: done 5/5" in err


def test_options_reach_the_engines_and_the_run(tmp_path: Path) -> None:
    port = free_port()
    behaviour = Behaviour(execution="compiled")
    with SimulatedRecorder(f"http://127.0.0.1:{port}", ENGINES[0], 8001, behaviour) as engine:
        args = collect_args(port, *workers_args(WORKERS[:1]), "--steps", "3", "--kind", "decode")
        status, out, err = run(tmp_path, *args, "--force-eager", "--per-layer", VIME_OTEL_TIMING="events")
        assert status == 0, err
        command = engine.commands[-1]
    assert (command["force_eager"], command["per_layer"], command["timing"]) == (True, True, "events")
    assert "production step 3.2 ms (batch 4) · recorded decode step 7.9 ms (batch 4, 3 steps, forced eager, " in out
    assert "read shares, not milliseconds" in out
    assert "recording added about 116 µs to a step" in out
    assert "note: forced eager (4 of 4 steps): " in out
    (found,) = list_runs(tmp_path / "runs")
    asked = {"steps": 3, "kind": "decode", "timing": "events", "force_eager": True, "per_layer": True}
    assert found.header["asked"] == asked
    assert found.has_layers


def test_the_timing_option_goes_before_the_environment(tmp_path: Path) -> None:
    port = free_port()
    with SimulatedRecorder(f"http://127.0.0.1:{port}", ENGINES[0], 8001) as engine:
        args = collect_args(port, *workers_args(WORKERS[:1]), "--steps", "1", "--timing", "host")
        assert run(tmp_path, *args, VIME_OTEL_TIMING="events")[0] == 0
        assert engine.commands[-1]["timing"] == "host"
        assert engine.commands[-1]["force_eager"] is False


def test_a_terminal_shows_a_bar_for_each_engine(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    controller, terminal = pty.openpty()
    shown = b""
    with SimulatedRecorder(url, ENGINES[0], 8001), SimulatedRecorder(url, ENGINES[1], 8002):
        args = [sys.executable, "-m", "vime_otel", *collect_args(port, *workers_args(WORKERS), "--json")]
        env = os.environ | {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm", "COLUMNS": "120"}
        process = subprocess.Popen(args, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=terminal, text=True)
        os.close(terminal)
        with contextlib.suppress(OSError):  # the terminal's other end is gone
            while piece := os.read(controller, 4096):
                shown += piece
        out, _ = process.communicate(timeout=60)
    os.close(controller)
    assert process.returncode == 0
    assert json.loads(out)["complete"] is True
    for label in (b"127.0.0.1:8001/0", b"127.0.0.1:8002/0"):
        assert re.search(label + rb".*\xe2\x94\x81.*20/20", shown)


def test_collect_as_json_prints_json_alone(tmp_path: Path) -> None:
    port = free_port()
    with SimulatedRecorder(f"http://127.0.0.1:{port}", ENGINES[0], 8001, Behaviour(most_steps=2)):
        args = collect_args(port, *workers_args(WORKERS[:1]), "--timeout", "3", "--json", "--out", "elsewhere")
        status, out, _ = run(tmp_path, *args)
    assert status == 1
    told = json.loads(out)
    assert (told["complete"], told["steps"]) == (False, {"decode": 1, "prefill": 1})
    assert told["reasons"] == RunDirectory(Path(told["run"])).header["reasons"]
    assert Path(told["run"]).parent == tmp_path / "elsewhere"


def test_collect_without_a_recorder_makes_no_run(tmp_path: Path) -> None:
    port = free_port()
    status, out, err = run(tmp_path, *collect_args(port, *workers_args(WORKERS[:1]), "--wait", "0.2"))
    assert (status, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith(f"error: no engine to record within 0.2 s; {WORKERS[0]}: ")
    assert err.count(f"VIME_OTEL_COLLECTOR=http://127.0.0.1:{port}") == 1
    assert f"VIME_OTEL_COLLECTOR=http://127.0.0.1:{port}" in last
    assert list((tmp_path / "runs").iterdir()) == []


def test_bad_calls_end_with_one_line_and_the_right_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for setting in settings.ALL:
        monkeypatch.delenv(setting.name, raising=False)
    nobody = closed_port_url()
    (tmp_path / "file").write_text("")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        serving_in_thread({"GET /workers": answer(body={"workers": []})}) as (empty_router,),
    ):
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        cases = [
            (["collect", "--http", in_use, "--grpc", "127.0.0.1:0"], 1, "choose another place with --http HOST:PORT"),
            (collect_args(0, "--router", nobody), 1, f"the router {nobody} can't be reached"),
            (collect_args(0, "--router", empty_router), 1, "has no workers yet"),
            (collect_args(0, "--out", "file/runs"), 1, "name another folder with --out DIR"),
            (["collect", "--collector", nobody], 1, "start one with `vime-otel serve --http 127.0.0.1:"),
            (["collect", "--collector", nobody, "--insecure"], 2, "--insecure is for collect's own collector"),
            (["collect", "--http", "0.0.0.0:0", "--grpc", "127.0.0.1:0"], 2, "or say --insecure"),
            (["serve", "--http", "nonsense"], 2, "is not HOST:PORT"),
            (["serve", "--grpc", "127.0.0.1:70000"], 2, "is not HOST:PORT"),
            (["collect", "--kind", "idle"], 2, "--kind"),
            (["collect", "--timing", "cuda"], 2, "--timing"),
            (["collect", "--router", "ftp://x"], 2, "is not a URL"),
            (["collect", "--router", "ftp://me:pw@x"], 2, "'ftp://x' is not a URL"),
            (["collect", "--router", "http://[::1"], 2, "is not a URL"),
            (["collect", "--steps", "99999999999999999999"], 2, "--steps"),
            (["collect", "--max-tokens", "99999999999999999999"], 2, "--max-tokens"),
            (["collect", "--requests", "99999999999999999999"], 2, "--requests"),
            (["collect", "--limit", "99999999999999999999"], 2, "--limit"),
            (["collect", "--wait", "nan"], 2, "--wait"),
            (["collect", "--wait", "inf"], 2, "--wait"),
            (["collect", "--timeout", "nan"], 2, "--timeout"),
            (["collect", "--label", "\udcff"], 2, "--label"),
            (["collect", "--prompt", ""], 2, "--prompt"),
            (["collect", "--prompt", "Hi"], 2, "--prompt is of --requests; say --requests N, too"),
            (["collect", "--max-tokens", "5"], 2, "--max-tokens is of --requests"),
            (["replay", "--to", "http://127.0.0.1:1", "--sample", "nan"], 2, "'nan' is no finite number"),
            (["collect", "--out", ""], 2, "--out"),
            (["serve", "--out", " "], 2, "--out"),
            (["demo", "--runs", ""], 2, "--runs"),
        ]
        for args, wanted, message in cases:
            status = main(args)
            out, err = capsys.readouterr()
            assert (status, out) == (wanted, ""), args
            assert message in err.splitlines()[-1]
            assert len(err.splitlines()) == 1, err


@pytest.mark.parametrize("name", ["VIME_OTEL_TOKEN", "VIME_OTEL_ROUTER_KEY"])
@pytest.mark.parametrize("value", ["a\nb", "\x07", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    nobody = closed_port_url()
    calls = [["workers", "--router", nobody], ["profile", "start", "--router", nobody]]
    if name == "VIME_OTEL_TOKEN":
        calls = [["collect", "--collector", nobody], collect_args(0), ["serve"]]
    for args in calls:
        assert main(args) == 2
        assert f"{name} holds characters" in capsys.readouterr().err


def test_failures_with_json_are_json_too(tmp_path: Path) -> None:
    calls = [
        (collect_args(0, "--wait", "0"), 1),
        (["collect", "--collector", closed_port_url()], 1),
        (["collect", "--steps", "x"], 2),
        (["workers", "--router", closed_port_url()], 1),
    ]
    for args, wanted in calls:
        status, out, err = run(tmp_path, *args, "--json")
        told = json.loads(out)
        assert (status, err.splitlines()[-1]) == (wanted, f"error: {told['error']['message']}")
        assert ("id" in told) == ("--wait" in args)  # what is known of a recording stands there, too


def test_reasons_are_said_once(tmp_path: Path) -> None:
    port = free_port()
    status, _, err = run(tmp_path, *collect_args(port, *workers_args(WORKERS), "--wait", "6"))
    assert status == 1
    assert err.count("not installed in the engine's environment") == 1
    last = err.splitlines()[-1]
    assert last == f"error: no engine to record within 6 s; {', '.join(WORKERS)}: why is said above"


def test_ssh_that_drops_disarms_and_keeps_what_came(tmp_path: Path) -> None:
    port = free_port()
    controller, terminal = pty.openpty()
    with SimulatedRecorder(f"http://127.0.0.1:{port}", ENGINES[0], 8001, Behaviour(most_steps=3)) as engine:
        args = [sys.executable, "-m", "vime_otel", *collect_args(port, *workers_args(WORKERS[:1]))]
        env = os.environ | {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm"}
        process = subprocess.Popen(args, cwd=tmp_path, env=env, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        until(lambda: engine.phase == "recording")
        os.close(controller)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # the shell's, and the kernel's
        process.wait(60)
        assert engine.phase == "cancelled"
    (found,) = list_runs(tmp_path / "runs")
    assert found.header["reasons"][0] == "the recording was cancelled"


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the child's, too
    try:
        port = free_port()
        with (
            SimulatedRecorder(f"http://127.0.0.1:{port}", ENGINES[0], 8001, Behaviour(most_steps=3)) as engine,
            command(tmp_path, *collect_args(port, *workers_args(WORKERS[:1]))) as process,
        ):
            until(lambda: engine.phase == "recording")
            process.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            assert engine.phase == "recording"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert engine.phase == "cancelled"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_hang_up_of_the_client_disarms_through_the_serving_collector(tmp_path: Path) -> None:
    with running(config(tmp_path / "runs")) as collector:
        args = ["collect", "--collector", collector.url, *workers_args(WORKERS[:1])]
        with (
            SimulatedRecorder(collector.url, ENGINES[0], 8001, Behaviour(most_steps=3)) as engine,
            command(tmp_path, *args) as process,
        ):
            until(lambda: engine.phase == "recording")
            process.stderr.close()  # type: ignore[union-attr]
            process.send_signal(signal.SIGHUP)
            assert process.wait(60) == 130
            assert engine.phase == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_disarm_and_keep_what_came(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    with (
        SimulatedRecorder(f"http://127.0.0.1:{port}", ENGINES[0], 8001, Behaviour(most_steps=3)) as engine,
        command(tmp_path, *collect_args(port, *workers_args(WORKERS[:1]))) as process,
    ):
        until(lambda: engine.phase == "recording")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert engine.phase == "cancelled"
    assert process.returncode == 130
    assert "disarming every engine" in err
    assert "Traceback" not in err
    (found,) = list_runs(tmp_path / "runs")
    assert found.header["complete"] is False
    assert found.header["reasons"][0] == "the recording was cancelled"
    assert "incomplete: the recording was cancelled" in out


def test_ctrl_c_while_waiting_for_recorders(tmp_path: Path) -> None:
    port = free_port()
    with command(tmp_path, *collect_args(port, *workers_args(WORKERS))) as process:
        assert process.stderr is not None
        assert "0 of 2 workers with a recorder" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted; nothing was armed"
    assert "disarm" not in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_serve_serves_until_it_is_told_to_stop(tmp_path: Path, number: int, status: int) -> None:
    token = "a token of these tests"
    serve_args = ["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--out", "runs"]
    with command(tmp_path, *serve_args, VIME_OTEL_TOKEN=token) as process:
        assert process.stdout is not None
        greeting = [process.stdout.readline() for _ in range(6)]
        found = re.match(
            r"collector: (http://127\.0\.0\.1:\d+) \(.*\), (127\.0\.0\.1:\d+) \(OTLP over gRPC\)", greeting[0]
        )
        assert found, greeting
        url = found[1]
        assert f"  VIME_OTEL_COLLECTOR={url}\n" in greeting
        assert token not in "".join(greeting)
        with SimulatedRecorder(url, ENGINES[0], 8001, token=token):
            until(lambda: ControlClient(url, token).recorders())
            args = ["collect", "--collector", url, *workers_args(WORKERS[:1]), "--steps", "3", "--label", "asked"]
            refused = run(tmp_path, *args)
            assert refused[0] == 1
            assert "set VIME_OTEL_TOKEN" in refused[2]
            done = run(tmp_path, *args, VIME_OTEL_TOKEN=token)
            assert done[0] == 0, done[2]
            assert "-asked" in done[1]
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == status
        assert "Traceback" not in out + err
        assert all(" level=info " in line for line in err.splitlines()), err
        assert " is complete: " in err
        assert token not in err
    assert [each.header["label"] for each in list_runs(tmp_path / "runs")] == ["asked"]
