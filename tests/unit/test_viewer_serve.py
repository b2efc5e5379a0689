"""The viewer on a port: it says where, it says why not, and it ends when told."""

from __future__ import annotations

import ast
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
from viewer.serve import serve
from vime_otel.data.errors import UsageError, VimeOtelError

SERVE = """
import sys
from pathlib import Path
from viewer.serve import serve
serve(Path(sys.argv[1]), port=0, on_ready=lambda url: print(url, flush=True))
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
            serve(tmp_path, port=port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "no..name"])
def test_an_address_that_is_not_ours_is_one_clear_line(tmp_path: Path, host: str) -> None:
    with pytest.raises(VimeOtelError, match=rf"^can't serve on {re.escape(host)}:0 .*--host[^\n]*$"):
        serve(tmp_path, host=host, port=0, insecure=True)


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "::", ""])
def test_beyond_loopback_consent_is_needed(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]*--insecure[^\n]*$"):
        serve(tmp_path, host=host, port=0)


def test_on_every_address_it_tells_one_that_answers(tmp_path: Path) -> None:
    write_sample(tmp_path)
    command = [sys.executable, "-c", SERVE.replace("port=0", "'0.0.0.0', 0, insecure=True"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert "0.0.0.0" not in url
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/runs/{RECORDING_ID}", timeout=30) as answer:
            assert answer.status == 200
        port = url.rpartition(":")[2]
        for host, expected in (
            (socket.gethostname(), 200),
            ("10.1.2.3", 200),
            ("[fd00::1]:80", 200),
            ("evil.example", 403),
        ):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host})
            try:
                status = opener.open(request, timeout=30).status
            except urllib.error.HTTPError as error:
                status = error.code
            assert status == expected, host
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


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
