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
from running_collector import ControlClient, until
from simulated_recorder import Behaviour, SimulatedRecorder
from standins import answer, closed_port_url, serving_in_thread

from vime_otel.cli.main import main
from vime_otel.data import settings
from vime_otel.data.rundir import RunDirectory, list_runs

ENGINES = ("00000000000000a1", "00000000000000b2")
WORKERS = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
REPOSITORY = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    assert "recorded decode step 7.9 ms (batch 4, 8 steps)" in out
    assert "moe.experts" in out
    assert f"run: runs/{found.path.name}" in out
    assert out.rstrip().endswith("next: vime-otel view")
    for label in ("127.0.0.1:8001/0", "127.0.0.1:8002/0"):
        assert f"{label}: done 5/5" in err


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
    assert last.startswith(f"error: no recorder within 0.2 s; {WORKERS[0]}: ")
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
            (["collect", "--collector", nobody], 1, "start one with `vime-otel serve`"),
            (["collect", "--collector", nobody, "--insecure"], 2, "--insecure is for collect's own collector"),
            (["collect", "--http", "0.0.0.0:0", "--grpc", "127.0.0.1:0"], 2, "or say --insecure"),
            (["serve", "--http", "nonsense"], 2, "is not HOST:PORT"),
            (["serve", "--grpc", "127.0.0.1:70000"], 2, "is not HOST:PORT"),
            (["collect", "--kind", "idle"], 2, "--kind"),
            (["collect", "--router", "ftp://x"], 2, "is not a URL"),
        ]
        for args, wanted, message in cases:
            status = main(args)
            out, err = capsys.readouterr()
            assert (status, out) == (wanted, ""), args
            assert message in err.splitlines()[-1]
            assert len(err.splitlines()) == 1, err


def test_ctrl_c_disarms_and_keeps_what_came(tmp_path: Path) -> None:
    port = free_port()
    with (
        SimulatedRecorder(f"http://127.0.0.1:{port}", ENGINES[0], 8001, Behaviour(most_steps=3)) as engine,
        command(tmp_path, *collect_args(port, *workers_args(WORKERS[:1]))) as process,
    ):
        until(lambda: engine.phase == "recording")
        process.send_signal(signal.SIGINT)
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
        assert "0 of 2 workers" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
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
        assert err == ""
    assert [each.header["label"] for each in list_runs(tmp_path / "runs")] == ["asked"]
