"""Stands for the recorder whose spans a benchmark sends: it is armed, and says in the end that all was sent."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import requests
from span_load import BASE_NS, ENGINE, SPANS

from vime_otel.data import otlp
from vime_otel.data.recording import ENGINE_PART

_RECORDER = {
    "engine": ENGINE, "label": "127.0.0.1:8001/0", "addresses": ["127.0.0.1"], "host": "load", "pid": 1,
    "api_ports": [8001], "model": "load", "dp_rank": 0, "ranks": 1, "vllm_version": "0", "vime_otel_version": "0",
    "execution": "eager", "dp_group": None, "dp_size": 1,
}  # fmt: skip

_POLL_SECONDS = 2.0
"""Seldom enough not to be measured."""


class RecorderOfLoad:
    """A context manager; `recording` is open when it is entered."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._session = requests.Session()
        self._status = {"phase": "idle", "recording": None, "steps_done": 0, "steps_asked": 0, "reason": None}
        self._seen: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_on)
        self.recording = ""

    def __enter__(self) -> RecorderOfLoad:
        self._poll()
        asked = {"steps": 1_000_000, "wait_seconds": 30, "timeout_seconds": 86_400}
        answer = self._session.post(f"{self._url}/control/v1/recordings", json=asked, timeout=30).json()
        self.recording = answer["id"]
        while self._status["phase"] == "idle":
            self._poll()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._session.close()

    def finish(self, steps: int) -> dict[str, Any]:
        """Close the recording, of which so many steps were sent; returns its recording.json."""
        parts = [
            {"rank": "0", "stage": 0, "totals": steps, "spans": steps * SPANS, "dropped": 0},
            {"rank": ENGINE_PART, "stage": -1, "totals": steps, "spans": 0, "dropped": 0},
        ]
        of = otlp.resource({otlp.INSTANCE_ID: ENGINE, otlp.RECORDING_ID: self.recording})
        closing = otlp.closing_record({"parts": parts, "reasons": [], "notes": []}, BASE_NS)
        body = otlp.logs_request(of, [closing]).SerializeToString()
        headers = {"Content-Type": "application/x-protobuf"}
        requests.post(f"{self._url}/v1/logs", body, headers=headers, timeout=30).raise_for_status()
        self._status = {**self._status, "phase": "done"}
        while True:
            shown = requests.get(f"{self._url}/control/v1/recordings/{self.recording}", timeout=30).json()
            if shown["state"] == "done":
                header: dict[str, Any] = json.loads((Path(shown["run"]) / "recording.json").read_text())
                return header
            if shown["state"] == "failed":
                raise SystemExit(f"the recording failed: {shown['message']}")
            self._ended.wait(0.2)

    def _poll_on(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._poll()

    def _poll(self) -> None:
        wait = 0.3 if self._status["phase"] in ("armed", "recording") else 0.5
        body = {
            "protocol": 1, "recorder": _RECORDER, "status": self._status, "seen": self._seen, "wait_seconds": wait,
        }  # fmt: skip
        answer = self._session.post(f"{self._url}/control/v1/recorders/poll", json=body, timeout=30)
        command = answer.json()["command"]
        if command and command["id"] != self._seen:
            self._seen = command["id"]
            if command["type"] == "arm":
                self._status = {**self._status, "phase": "recording", "recording": command["recording"]}
