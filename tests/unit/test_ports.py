"""Ports for servers that are told theirs."""

from __future__ import annotations

import socket

import pytest

from vime_otel.demo.ports import free_port, is_free


def test_ports_are_different_and_free() -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_nobody_listens_until_a_server_that_names_the_port_does() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)):
        socket.create_connection(("127.0.0.1", port)).close()
        assert not is_free(port)
    assert is_free(port)
