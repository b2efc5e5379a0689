"""An engine's settings: all that is wrong is told at once, and what has no effect, too."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from fake_port import FakePort

from vime_otel.data import settings
from vime_otel.data.errors import UsageError
from vime_otel.recorder.checks import check_settings, without_effect
from vime_otel.recorder.doors import open_doors
from vime_otel.recorder.engine import EngineRecorder
from vime_otel.recorder.vllm_engine import wrap_step


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VIME_OTEL_")]:
        monkeypatch.delenv(name)


def test_all_that_is_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        settings.COLLECTOR: "collector.example:4318",
        settings.TIMING: "quick",
        settings.DECODE_TOKENS: "many",
        settings.SAMPLE_EVERY: "0",
        settings.MAX_SPANS: "-1",
        settings.MIN_FREE_MIB: "1.5",
        settings.OUTBOX_MIB: "1e9",
        settings.CA: "/nowhere/ca.pem",
        settings.TOKEN: "geheim\nis",
    }
    for setting, value in wrong.items():
        monkeypatch.setenv(setting.name, value)
    with pytest.raises(UsageError) as told:
        check_settings()
    assert [setting.name for setting in wrong if setting.name not in str(told.value)] == []
    assert "geheim" not in str(told.value)


def test_an_engine_with_wrong_settings_steps_on_and_says_all_of_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FakeEngine:
        pass

    monkeypatch.setenv(settings.MAX_SPANS.name, "-1")
    monkeypatch.setenv(settings.TIMING.name, "quick")
    engine, step = FakeEngine(), wrap_step(lambda engine: ({}, True))
    assert [step(engine), step(engine)] == [({}, True)] * 2
    (told,) = caplog.messages
    assert told.startswith("vime-otel is off: VIME_OTEL_TIMING='quick' is none of")
    assert "VIME_OTEL_MAX_SPANS='-1'" in told


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("banana", "'banana' is not a URL"),
        ("ftp://h:1", "'ftp://h:1' is not a URL"),
        ("http://", "is not a URL"),
        ("http://h:99999", "is not a URL"),
        ("http://h:1/?x=1", "is not a URL"),
        ("http://me:s3//cr3t@h:4318", "'http://h:4318' is not a URL"),
        ("http://me:s3cr3t@h:4318", "has a user name; a token belongs into VIME_OTEL_TOKEN"),
        ("me:s3//cr3t@h", "'h' is not a URL"),
    ],
)
def test_a_collector_that_can_not_be_is_told_without_passwords(
    monkeypatch: pytest.MonkeyPatch, url: str, told: str
) -> None:
    monkeypatch.setenv(settings.COLLECTOR.name, url)
    with pytest.raises(UsageError, match=told) as error:
        settings.collector_url()
    assert "s3" not in str(error.value)


def test_a_collectors_url_may_end_with_a_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.COLLECTOR.name, " https://[::1]:4318/base/ ")
    assert settings.collector_url() == "https://[::1]:4318/base"


def test_settings_without_effect_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIME_OTEL_TIMNG", "host")
    monkeypatch.setenv(settings.SAMPLE_EVERY.name, "100")
    assert list(without_effect()) == [
        "VIME_OTEL_TIMNG is none of vime-otel's settings; VIME_OTEL_TIMING is",
        "VIME_OTEL_SAMPLE_EVERY does nothing without VIME_OTEL_COLLECTOR",
    ]
    monkeypatch.delenv("VIME_OTEL_TIMNG")
    monkeypatch.setenv(settings.COLLECTOR.name, "http://127.0.0.1:4318")
    assert list(without_effect()) == []


def test_an_engine_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(settings.DIR.name, "otel")
    caplog.set_level(logging.INFO, "vllm.vime_otel")
    doors = open_doors(EngineRecorder(FakePort()))
    for door in doors:
        door.close()
        door.join()
    assert f"is attached and waits for {tmp_path}/otel/start" in caplog.text
