"""What a process tells of itself: addresses, and the ports that its parent listens on."""

from __future__ import annotations

import os
import socket

import pytest

from vime_otel.recorder.process import _named_port, api_server, host_addresses


def test_the_ports_that_a_process_listens_on_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = api_server(os.getpid())
        assert port in found.ports
    assert port not in api_server(os.getpid()).ports


def test_a_process_that_is_gone_listens_nowhere() -> None:
    assert api_server(2**22 + 1).ports == []


@pytest.mark.parametrize(
    ("arguments", "port"),
    [(["--port", "8001"], 8001), (["--port=8001"], 8001), (["--port"], None), (["--port", "x"], None), ([], None)],
)
def test_the_port_argument_is_read(arguments: list[str], port: int | None) -> None:
    assert _named_port(["python", "-m", "vllm", *arguments]) == port


def test_loopback_comes_first_among_the_addresses() -> None:
    assert host_addresses()[0] == "127.0.0.1"
