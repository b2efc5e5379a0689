"""`vime-otel doctor` names what is missing, and how to mend it. The servers are stand-ins."""

from __future__ import annotations

import gzip
import json
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import pytest
from aiohttp import web
from standins import Routes, answer, closed_port_url, serving_in_thread

from collector.doctor.check_fleet import Look, check_fleet
from collector.doctor.check_log import check_log
from collector.doctor.check_traces import check_traces
from collector.doctor.train_log import parse_train_log
from collector.router import Worker
from collector.torch_profiles.trace_files import find_traces
from vime_otel.cli.main import main

CONFIG = '{"profiler":"torch","torch_profiler_dir":"/logs/profile","max_iterations":3}'
PARSED = (
    "vllm_profiler_config ... ProfilerConfig(profiler='torch', torch_profiler_dir='/logs/profile', max_iterations=3)"
)
COMMAND = f"Launching vLLM server: vllm serve /m --port 15000 --profiler-config {CONFIG}"
AS_DICT = f"Launching vLLM server: {{'model': '/m', 'port': 15000, 'profiler_config': '{CONFIG}'}}"
ROUTER = "Router launched at 127.0.0.1:3521, Prometheus port: 4153"
SERVER = "INFO Starting vLLM server on http://127.0.0.1:15000"
ROUTES = ["INFO Route: /start_profile, Methods: POST", "INFO Route: /stop_profile, Methods: POST"]
GOOD = [PARSED, ROUTER, COMMAND, SERVER, *ROUTES]


def to_mend(lines: list[str]) -> dict[str, str]:
    """Subject → what is wrong and the fix, of all that must be mended."""
    log = parse_train_log(Path("train.log"), lines)
    return {found.subject: f"{found.text} → {found.fix}" for found in check_log(log) if found.level == "mend"}


@pytest.mark.parametrize("launch", [COMMAND, AS_DICT])
def test_a_good_log_has_nothing_to_mend_in_either_format(launch: str) -> None:
    assert to_mend([PARSED, ROUTER, launch, SERVER, *ROUTES]) == {}


@pytest.mark.parametrize(
    ("lines", "subject", "says"),
    [
        ([PARSED, COMMAND, SERVER, *ROUTES], "router", "Router launched at"),
        ([line for line in GOOD if line != PARSED], "arguments parsed", "--vllm-profiler-config"),
        (["vllm_profiler_config .... None", *GOOD[1:]], "arguments parsed", "--vllm-profiler-config"),
        ([PARSED.replace("'torch'", "'cuda'"), *GOOD[1:]], "arguments parsed", "only `torch` writes traces"),
        ([PARSED.replace("/logs", "logs"), *GOOD[1:]], "arguments parsed", "no absolute path"),
        ([PARSED, ROUTER, "Launching vLLM server: vllm serve /m", SERVER, *ROUTES], "forwarded to vllm serve", "JSON"),
        (
            [PARSED, ROUTER, "Launching vLLM server: {'model': '/m'}", SERVER, *ROUTES],
            "forwarded to vllm serve",
            "JSON",
        ),
        ([*GOOD, "Launching vLLM server: vllm serve /m"], "forwarded to vllm serve", "only 1 of 2 servers"),
        ([PARSED, ROUTER, SERVER, *ROUTES], "forwarded to vllm serve", "no line"),
        (GOOD[:-1], "routes registered", "/stop_profile not among the routes"),
        (GOOD[:3], "routes registered", "no server has started yet"),
        ([*GOOD, "WARNING Failed to start profiler: CUPTI"], "failures", "CUPTI"),
        ([*GOOD, '"POST /start_profile HTTP/1.1" 404 Not Found'], "failures", "no profiler routes"),
        ([*GOOD, '"POST /start_profile HTTP/1.1" 409 Conflict'], "failures", "--restart"),
        (
            [*GOOD, "TimeoutError: RPC call to execute_model timed out."],
            "failures",
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        ),
    ],
)
def test_the_missing_fact_is_named_with_its_fix(lines: list[str], subject: str, says: str) -> None:
    found = to_mend(lines)
    assert list(found) == [subject]
    assert says in found[subject]


def test_a_setting_that_means_nothing_any_more_names_the_one_that_does() -> None:
    log = parse_train_log(Path("x"), [*GOOD, "env_vars: VLLM_RPC_TIMEOUT=1800000"])
    (found,) = [each for each in check_log(log) if each.subject == "settings"]
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in found.fix


async def _dated_404(request: web.Request) -> web.StreamResponse:
    return web.Response(status=404, headers={"Date": formatdate(time() - 90, usegmt=True)})


def worker(routes: Routes | None = None) -> Routes:
    return {
        "GET /health": answer(),
        "GET /version": answer(body={"version": "0.32.0"}),
        "GET /start_profile": answer(405),
        **(routes or {}),
    }


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status, and the findings by subject."""
    capsys.readouterr()
    status = main(["doctor", *words, "--collector", closed_port_url(), "--json"])
    return status, {found["subject"]: found for found in json.loads(capsys.readouterr().out)["findings"]}


def test_healthy_workers_have_nothing_to_mend(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_in_thread(worker(), worker()) as (one, two):
        listed = {"workers": [{"url": url, "is_healthy": True} for url in (one, two)]}
        with serving_in_thread({"GET /workers": answer(body=listed)}) as (router,):
            status, found = doctor(capsys, "--router", router)
    levels = {subject: each["level"] for subject, each in found.items()}
    assert status == 0
    assert levels == {
        "router": "ok",
        "workers": "ok",
        "profiler routes": "ok",
        "vLLM": "ok",
        "clocks": "ok",
        "recorders": "note",
    }


def test_a_server_without_routes_and_a_clock_that_is_off_are_to_be_mended(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_in_thread(worker({"GET /start_profile": _dated_404})) as (url,):
        status, found = doctor(capsys, "--worker", url)
    assert status == 1
    assert "--profiler-config" in found["profiler routes"]["fix"]
    assert "-9" in found["clocks"]["text"]


def test_a_router_of_an_earlier_job_and_a_dead_worker_are_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_in_thread({"GET /workers": answer(503)}) as (router,):
        status, found = doctor(capsys, "--router", router)
    assert (status, "--log FILE" in found["router"]["fix"]) == (1, True)
    status, found = doctor(capsys, "--router", closed_port_url())
    assert (status, "Router launched at" in found["router"]["fix"]) == (1, True)
    status, found = doctor(capsys, "--worker", closed_port_url())
    assert (status, "nobody answers" in found["workers"]["text"]) == (1, True)


def test_versions_that_differ_and_old_ones_are_worth_a_note() -> None:
    looks = [Look(Worker("http://a:1", healthy=True), "0.28.0"), Look(Worker("http://b:1", healthy=True), "0.32.0")]
    notes = [found for found in check_fleet(looks) if found.level == "note"]
    assert any("differ" in found.text for found in notes)
    assert any("--restart" in found.fix for found in notes)


def test_every_reason_is_told_with_its_own_workers() -> None:
    looks = [
        Look(Worker("http://a:1", healthy=False, trouble="timed out")),
        Look(Worker("http://b:1", healthy=False, trouble="connection refused")),
        Look(Worker("http://c:1", healthy=False, trouble="timed out")),
        Look(Worker("http://d:1", healthy=True), status=200),
        Look(Worker("http://e:1", healthy=True), status=401),
    ]
    texts = [found.text for found in check_fleet(looks) if found.level == "mend"]
    assert "nobody answers at http://a:1, http://c:1 (timed out)" in texts
    assert "nobody answers at http://b:1 (connection refused)" in texts
    assert [text.partition(":")[2][:4] for text in texts if "can't be told" in text] == ["//d:", "//e:"]


def test_unhealthy_workers_are_to_be_mended_where_no_healthy_one_is_left() -> None:
    sick = [Look(Worker(f"http://{host}:1", healthy=False), status=405) for host in "ab"]
    assert {found.level for found in check_fleet(sick) if found.subject == "workers"} == {"mend"}
    well = Look(Worker("http://c:1", healthy=True), status=405)
    assert {found.level for found in check_fleet([*sick, well]) if found.subject == "workers"} == {"note"}


def test_a_trace_without_events_asks_for_requests(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rank0.1.pt.trace.json").write_text('{"traceEvents": []}')
    status, found = doctor(capsys, "--trace-dir", str(tmp_path))
    assert (status, "--requests" in found["traces"]["fix"]) == (1, True)


def test_traces_that_are_broken_alike_are_told_together(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"rank{number}.1.pt.trace.json").write_bytes(b"")
    packed = gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1}]}')
    (tmp_path / "rank5.1.pt.trace.json.gz").write_bytes(packed)
    (tmp_path / "rank6.1.pt.trace.json.gz").write_bytes(packed[:-8] + bytes(4) + packed[-4:])
    whole, empty, damaged = check_traces(tmp_path)
    assert (whole.level, "1 whole trace" in whole.text) == ("ok", True)
    assert "rank2.1.pt.trace.json and 2 more: empty" in empty.text
    assert ("damaged" in damaged.text, "let this user read it" in damaged.fix) == (True, False)


def test_a_link_that_leads_out_of_the_folder_is_no_trace(tmp_path: Path) -> None:
    secret, traces = tmp_path / "secret.trace.json", tmp_path / "traces"
    traces.mkdir()
    secret.write_text('{"traceEvents": [{"ts": 1}]}')
    (traces / "a.trace.json").write_text(secret.read_text())
    (traces / "inside.trace.json").symlink_to(traces / "a.trace.json")
    (traces / "outside.trace.json").symlink_to(secret)
    (tmp_path / "linked").symlink_to(traces)
    for folder in (traces, tmp_path / "linked"):
        assert {path.name for path in find_traces(folder)} == {"a.trace.json", "inside.trace.json"}


def test_a_folder_without_whole_traces_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, found = doctor(capsys, "--trace-dir", str(tmp_path))
    assert (status, "one more has come" in found["traces"]["fix"]) == (1, True)
    packed = gzip.compress(b'{"traceEvents": [{"ph": "X", "ts": 1}]}')
    (tmp_path / "rank0.1.pt.trace.json.gz").write_bytes(packed[:-10])
    status, found = doctor(capsys, "--trace-dir", str(tmp_path))
    assert (status, "cut off" in found["traces"]["text"]) == (1, True)
    (tmp_path / "rank0.1.pt.trace.json.gz").write_bytes(packed)
    assert doctor(capsys, "--trace-dir", str(tmp_path))[0] == 0


def test_people_see_marks_and_ways_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(GOOD))
    assert main(["doctor", "--log", str(log), "--worker", closed_port_url(), "--collector", closed_port_url()]) == 1
    told = capsys.readouterr().out
    assert any(line.startswith("MEND") and "workers" in line for line in told.splitlines())
    assert "→ is the engine up" in told
    assert "1 thing to mend" in told


def test_nothing_named_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2
    assert "--log FILE" in capsys.readouterr().err
