"""The viewer on a port: it says where, it says why not, and it ends when told."""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from samples import RECORDING_ID, write_sample

import viewer
from viewer.serve import Place, serve
from vime_otel.data.errors import VimeOtelError

SERVE = """
import sys
from pathlib import Path
from viewer.serve import Place, serve
serve(Path(sys.argv[1]), Place(port=0), on_ready=lambda url: print(url, flush=True))
print("ended", flush=True)
"""


def test_it_tells_its_address_answers_and_ends_on_an_interrupt(tmp_path: Path) -> None:
    write_sample(tmp_path)
    command = [sys.executable, "-c", SERVE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/runs/{RECORDING_ID}", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (output, errors, process.returncode) == ("ended\n", "", 0)
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))):
        pass  # the port is free again


def test_a_port_in_use_is_one_clear_line_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(VimeOtelError, match=rf"^port {port} on 127\.0\.0\.1 is in use; .*--port[^\n]*$"):
            serve(tmp_path, Place(port=port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "no..name"])
def test_an_address_that_is_not_ours_is_one_clear_line(tmp_path: Path, host: str) -> None:
    with pytest.raises(VimeOtelError, match=rf"^can't serve on {re.escape(host)}:0 .*--host[^\n]*$"):
        serve(tmp_path, Place(host, 0, insecure=True))


def test_on_every_address_it_tells_one_that_answers(tmp_path: Path) -> None:
    write_sample(tmp_path)
    command = [
        sys.executable,
        "-c",
        SERVE.replace("port=0", "'0.0.0.0', 0, insecure=True, base_path='/vime'"),
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert "0.0.0.0" not in url
        assert url.endswith("/vime")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/runs/{RECORDING_ID}", timeout=30) as answer:
            assert answer.status == 200
        port = url.rpartition(":")[2].removesuffix("/vime")
        for host, expected in (
            (socket.gethostname(), 200),
            ("10.1.2.3", 200),
            ("[fd00::1]:80", 200),
            ("evil.example", 403),
        ):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/vime/", headers={"Host": host})
            try:
                status = opener.open(request, timeout=30).status
            except urllib.error.HTTPError as error:
                status = error.code
            assert status == expected, host
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def status_of(opener: urllib.request.OpenerDirector, url: str) -> int:
    try:
        with opener.open(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("chosen", ["", "a-secret-of-mine"])
def test_beyond_loopback_a_token_is_asked_for(tmp_path: Path, chosen: str) -> None:
    """One that is made stands in the link; one that was chosen is printed nowhere."""
    write_sample(tmp_path)
    command = [sys.executable, "-c", SERVE.replace("port=0", "'0.0.0.0', 0"), str(tmp_path)]
    environment = {**os.environ, "VIME_OTEL_VIEW_TOKEN": chosen}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        url, _, made = link.partition("/?token=")
        assert bool(made) != bool(chosen)
        cookies = urllib.request.HTTPCookieProcessor()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
        assert status_of(opener, f"{url}/api/runs") == 401
        assert status_of(opener, f"{url}/?token=wrong") == 401
        with pytest.raises(urllib.error.HTTPError) as refused:
            opener.open(f"{url}/api/runs", timeout=30)
        assert "?token= and the value of VIME_OTEL_VIEW_TOKEN" in refused.value.read().decode()
        assert status_of(opener, f"{url}/?token={chosen or made}") == 200
        assert status_of(opener, f"{url}/api/runs") == 200
        assert all((chosen or made) not in str(cookie.value) for cookie in cookies.cookiejar)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert not chosen or chosen not in link + output + errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_files_are_shown_besides_the_runs_and_leave_nothing(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "perf.txt").write_bytes("main;work 3\r\nnonsense\r\nmain 1\r\n".encode("utf-16"))
    command = [
        sys.executable,
        "-u",
        "-m",
        "vime_otel",
        "view",
        str(tmp_path / "perf.txt"),
        "--runs",
        str(tmp_path / "runs"),
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        with urllib.request.urlopen(url, timeout=30) as answer:
            page = answer.read().decode()
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert "read from the file perf.txt" in page
    assert "1 line of the file is in no format and is left out" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["perf.txt", "runs"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read (No such file or directory)"),
        (b"nothing here\n", "no stacks in it (1 line in no known format)"),
        (b'{"traceEvents": []}', "open it at https://ui.perfetto.dev"),
        (b"\xff\xff\xff", "neither UTF-8 nor UTF-16"),
    ],
)
def test_a_file_that_holds_no_stacks_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(VimeOtelError, match=rf"^[^\n]*{re.escape(message)}[^\n]*$"):
        serve(tmp_path, Place(port=0), files=[tmp_path / "file"])


def test_a_folder_in_place_of_a_file_is_told_where_it_belongs(tmp_path: Path) -> None:
    run = write_sample(tmp_path / "runs")
    for folder in (run, run.parent):
        with pytest.raises(VimeOtelError, match=rf"is a folder; `vime-otel view --runs {re.escape(str(run.parent))}`"):
            serve(tmp_path, Place(port=0), files=[folder])


def test_the_viewer_imports_only_the_shared_data_package() -> None:
    foreign = []
    for path in Path(viewer.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(node.module or "")
            ours = [name for name in names if name.partition(".")[0] in {"vime_otel", "collector", "viewer"}]
            foreign += [(path.name, name) for name in ours if not name.startswith("vime_otel.data")]
    assert foreign == []
