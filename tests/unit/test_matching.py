"""Which recorder belongs to which worker."""

from __future__ import annotations

import socket

import pytest

from collector.addresses import addresses_of, is_this_machine, with_host, worker_url
from collector.recordings.matching import Recorder, likely_reason, match
from collector.router import Worker
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.urls import shown

NAMES = {
    "router.example": {"10.0.0.1"},
    "10.0.0.1": {"10.0.0.1"},
    "10.0.0.2": {"10.0.0.2"},
    "127.0.0.1": {"127.0.0.1", "192.168.7.7"},
    "fe80::2": {"fe80::2"},
}


def lookup(host: str) -> set[str]:
    return NAMES.get(host, set())


def recorder(engine: str, addresses: list[str], port: int) -> Recorder:
    return Recorder(engine, f"{addresses[0]}:{port}/0", tuple(addresses), (port,))


def pairs(workers: list[str], recorders: list[Recorder], router_host: str | None) -> dict[str, list[str]]:
    found = match([Worker(url) for url in workers], recorders, router_host, lookup)
    return {each.worker.url: [one.engine for one in each.recorders] for each in found.matches}


def test_by_port_and_address() -> None:
    recorders = [
        recorder("a", ["127.0.0.1", "10.0.0.1"], 8000),
        recorder("b", ["127.0.0.1", "10.0.0.2"], 8000),
        recorder("c", ["127.0.0.1", "10.0.0.2"], 8001),
    ]
    assert pairs(["http://10.0.0.1:8000", "http://10.0.0.2:8000"], recorders, "10.0.0.1") == {
        "http://10.0.0.1:8000": ["a"],
        "http://10.0.0.2:8000": ["b"],
    }


def test_loopback_is_the_routers_host_and_nobody_elses() -> None:
    recorders = [recorder("there", ["127.0.0.1", "10.0.0.1"], 8000), recorder("else", ["127.0.0.1", "10.0.0.2"], 8000)]
    assert pairs(["http://127.0.0.1:8000"], recorders, "router.example") == {"http://127.0.0.1:8000": ["there"]}


def test_without_a_router_loopback_is_this_machine() -> None:
    recorders = [recorder("here", ["127.0.0.1", "192.168.7.7"], 8000), recorder("else", ["10.0.0.2"], 8000)]
    assert pairs(["http://127.0.0.1:8000"], recorders, None) == {"http://127.0.0.1:8000": ["here"]}


def test_ipv6_and_the_default_port() -> None:
    recorders = [recorder("six", ["fe80::2"], 80)]
    assert pairs(["http://[fe80::2]"], recorders, None) == {"http://[fe80::2]": ["six"]}


def test_data_parallel_ranks_share_a_worker() -> None:
    recorders = [recorder("r0", ["10.0.0.1"], 8000), recorder("r1", ["10.0.0.1"], 8000)]
    assert pairs(["http://10.0.0.1:8000"], recorders, None) == {"http://10.0.0.1:8000": ["r0", "r1"]}


def test_an_unknown_name_matches_nobody() -> None:
    recorders = [recorder("a", ["127.0.0.1"], 8000)]
    assert pairs(["http://nowhere.example:8000"], recorders, None) == {"http://nowhere.example:8000": []}


def test_those_left_over_are_listed() -> None:
    found = match([Worker("http://10.0.0.1:8000")], [recorder("x", ["10.0.0.9"], 8000)], None, lookup)
    assert [each.engine for each in found.unmatched] == ["x"]


def test_a_machine_without_a_network() -> None:
    found = match(
        [Worker("http://127.0.0.1:8000")], [recorder("a", ["127.0.0.1"], 8000)], None, lambda host: {"127.0.0.1"}
    )
    assert len(found.matches[0].recorders) == 1


@pytest.mark.parametrize(
    ("worker", "unmatched", "expected"),
    [
        (Worker("http://10.0.0.1:8000"), [recorder("x", ["172.17.0.2"], 8000)], "172.17.0.2"),
        (Worker("http://10.0.0.1:8000", healthy=False), [], "unhealthy"),
        (Worker("http://10.0.0.1:8000", healthy=True), [], "VIME_OTEL_COLLECTOR=http://c:4318"),
    ],
)
def test_the_likely_reason(worker: Worker, unmatched: list[Recorder], expected: str) -> None:
    assert expected in likely_reason(worker, unmatched, "http://c:4318")


@pytest.mark.parametrize(
    ("refused", "named"), [(["10.0.0.1", "10.0.0.9"], "from 10.0.0.1 with"), (["10.0.0.9"], "from 10.0.0.9 with")]
)
def test_refused_calls_come_first_those_that_fit_before_others(refused: list[str], named: str) -> None:
    reason = likely_reason(Worker("http://10.0.0.1:8000", healthy=False), [], "http://c:4318", refused, lookup)
    assert named in reason
    assert "VIME_OTEL_TOKEN must be the same" in reason


@pytest.mark.parametrize(
    ("spelt", "url"),
    [
        ("http://h:1/v1/", "http://h:1"), ("http://LocalHost:1", "http://127.0.0.1:1"), ("h:1", "http://h:1"),
        ("http://me:PW@localhost", "http://me:PW@127.0.0.1"), ("http://[::1]:8/", "http://[::1]:8"),
        ("http://h:1/prefix/v1", "http://h:1/prefix"),
    ],
)  # fmt: skip
def test_one_spelling_of_a_workers_url(spelt: str, url: str) -> None:
    assert worker_url(spelt) == url
    assert worker_url(url) == url


def test_passwords_are_not_shown() -> None:
    assert shown("ask http://me:p@w@h:1/x@y or h") == "ask http://h:1/x@y or h"


def test_a_recorder_from_json() -> None:
    entry = {"engine": "e", "label": "h:1/0", "addresses": ["10.0.0.1"], "api_ports": [8000], "phase": "idle"}
    assert Recorder.from_json(entry) == Recorder("e", "h:1/0", ("10.0.0.1",), (8000,), phase="idle")
    for broken in ({}, {**entry, "api_ports": ["x"]}, {**entry, "addresses": None}):
        with pytest.raises(VimeOtelError):
            Recorder.from_json(broken)


def test_addresses_of_this_machine() -> None:
    assert "127.0.0.1" in addresses_of("localhost")
    assert is_this_machine("127.0.0.1")
    assert is_this_machine(socket.gethostname())
    assert is_this_machine("0.0.0.0"), "all of its addresses, as a log may have them"
    assert not is_this_machine("192.0.2.1")
    assert addresses_of("no such host") == frozenset()


def test_a_url_on_another_host() -> None:
    assert with_host("http://127.0.0.1:8000", "10.0.0.1") == "http://10.0.0.1:8000"
    assert with_host("http://localhost", "fe80::2") == "http://[fe80::2]"
