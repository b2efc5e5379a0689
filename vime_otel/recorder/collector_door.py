"""The door to a collector: a long poll that introduces the engine, reports, and brings commands."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import asdict, replace
from typing import Any

import requests
from urllib3.exceptions import ProtocolError

from vime_otel.data import settings, tls
from vime_otel.data.days import utc_today
from vime_otel.data.rolling import rolling_id
from vime_otel.data.summary import counted

from .doors import Door
from .engine import PIECE_STEPS, EngineRecorder, Sampling
from .exporter import Destination
from .status import ACTIVE_PHASES, Status
from .window import Command, Window

logger = logging.getLogger("vllm.vime_otel")

PROTOCOL = 1
IDLE_WAIT_SECONDS = 25.0
ACTIVE_WAIT_SECONDS = 0.25
STARTING_WAIT_SECONDS = 1.0
STARTING_SECONDS = 300.0
"""How long an API server may take to listen. In-process engines and Ray actors have none."""
RETRY_SECONDS = (2.0, 3.0)
EXPORT_PATIENCE_SECONDS = 10.0
"""So long a recording that can't be sent counts as being exported, and the engine takes no other order."""
CUT_OFF_TIMES = 3
"""So many polls in a row ended without an answer: that is no collector on its way out."""
LOST_SECONDS = 10.0
"""A collector that is gone for so long while a window is open gets no recording any more."""


class CollectorDoor(Door):
    """Looks for the collector at `url` for as long as the engine lives."""

    def __init__(self, recorder: EngineRecorder, url: str, token: str):
        super().__init__(recorder, "collector door")
        self._url = url
        directory = settings.get(settings.DIR)
        self._destination = Destination(recorder.id, directory, url, token)
        self._seen: str | None = None
        self._refused: Status | None = None
        # The collector's recordings whose end it was not told yet, with what it was told last where they wait.
        self._owed: dict[str, Status | None] = {}
        self._session = requests.Session()
        self._session.trust_env = False  # proxies are for the internet; the collector is ours
        self._session.verify = tls.trusted_bundle()
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"
        self._told = ""
        self._piece_error: str | None = None
        self._cut_off = 0
        self._recording: str | None = None
        self._collector_samples = False
        self._timing = settings.timing()
        self._sampling: Sampling | None = None
        if recorder.port.sample_every is not None:
            self._sampling = Sampling(self._sampled_command, self._deliver_piece)
        self._starting_until = time.monotonic() + STARTING_SECONDS

    def run(self) -> None:
        """Poll until closed."""
        self.send_what_waits(self._destination)
        last_answer = time.monotonic()
        while not self.closed.is_set():
            try:
                if self._sampling is not None and self._collector_samples:
                    self.recorder.sample(self._sampling)
                command = self._poll()
                last_answer = time.monotonic()
                if command is not None:
                    self._obey(command)
            except Exception as error:  # noqa: BLE001 - the collector may come and go; keep looking
                self._tell_once(error)
                if time.monotonic() - last_answer > LOST_SECONDS:
                    self._lost()
                self.closed.wait(random.uniform(*RETRY_SECONDS))
        self._session.close()

    def export(self, window: Window, patience: float = EXPORT_PATIENCE_SECONDS) -> str | None:
        """Send the window to the collector; what can't be sent within `patience` seconds waits in the outbox."""
        return self.exporter.export(window, replace(self._destination, patience=patience))

    def _lost(self) -> None:
        self._collector_samples = False
        self.recorder.stop_sampling()
        if self._recording is not None:
            self.recorder.cancel(self._recording, f"the collector at {self._url} is gone", "failed")

    def _sampled_command(self) -> Command:
        today = utc_today()
        return Command(
            rolling_id(today),
            PIECE_STEPS,
            timing=self._timing,
            every=self.recorder.port.sample_every or 1,
            totals_only=True,
        )

    def _deliver_piece(self, window: Window) -> None:
        self.beside_engine(self._export_piece, window)

    def _export_piece(self, window: Window) -> None:
        error = self.try_export(window, patience=0.0)
        if error not in (None, self._piece_error):
            logger.warning("vime-otel: %d sampled steps were not taken: %s", len(window.steps), error)
        self._piece_error = error

    def _poll(self) -> dict[str, Any] | None:
        recorder = self.recorder
        recorder.check_deadline()
        now = recorder.status
        ended = self._untold()
        status = self._refused or ended or now
        active = now.phase in ACTIVE_PHASES
        description = recorder.port.describe()
        wait = ACTIVE_WAIT_SECONDS if active else IDLE_WAIT_SECONDS
        if not active and not description["api_ports"] and time.monotonic() < self._starting_until:
            description, wait = recorder.port.refresh(), STARTING_WAIT_SECONDS
        if status != now:
            wait = 0.0  # by this one the collector can't tell whether the engine is at work
        answer = self._session.post(
            f"{self._url}/control/v1/recorders/poll",
            json={
                "protocol": PROTOCOL,
                "recorder": {"engine": recorder.id, **description},
                "status": asdict(status),
                "seen": self._seen,
                "wait_seconds": wait,
            },
            timeout=(5.0, wait + 10.0),
        )
        if answer.status_code != 200:
            raise RuntimeError(f"the collector answers {answer.status_code}: {answer.text[:200]}")
        self._told, self._cut_off = "", 0
        if status is ended:
            self._note_told(ended)
        self._refused = None  # told once; what is true of the engine is the recording that runs
        content = answer.json()
        self._collector_samples = bool(content.get("samples"))
        if not self._collector_samples:
            recorder.stop_sampling()
        command: dict[str, Any] | None = content["command"]
        return command

    def _untold(self) -> Status | None:
        """How a recording of the collector's ended, or that it waits, if it was not told: another may run by now."""
        for recording, told in self._owed.items():
            status = self.recorder.ended(recording)
            if status is not None and status != told:
                return status
        return None

    def _note_told(self, status: Status) -> None:
        recording = status.recording or ""
        if status.phase == "waiting":
            self._owed[recording] = status
        else:
            self._owed.pop(recording, None)

    def _obey(self, order: dict[str, Any]) -> None:
        self._seen = order["id"]
        recording = order["recording"]
        if order["type"] == "cancel":
            # What the file trigger began is no collector's to end, though it may not know that.
            if recording == self._recording:
                self.recorder.cancel(recording, "cancelled by the collector")
            return
        if order["type"] == "start":
            wave, step = order["position"]
            self.recorder.start_at(recording, (wave, step))
            return
        command = Command(
            recording,
            order["steps"],
            order["kind"],
            order["timing"],
            order["deadline_seconds"],
            order.get("force_eager", False),
            order.get("per_layer", False),
            together=order.get("together", False),
        )
        refusal = self.recorder.submit(command, self.deliver)
        if refusal is None:
            steps = counted(command.steps, "step")
            logger.info("vime-otel: recording %s begins: %s, for the collector at %s", recording, steps, self._url)
            self._recording = recording
            self._owed[recording] = None
        else:
            self._refused = Status("refused", recording, 0, command.steps, refusal)

    def _tell_once(self, error: Exception) -> None:
        text = tls.untrusted(self._url) if tls.is_untrusted(error) else str(error)
        silent = isinstance(error, requests.ConnectionError) and not isinstance(error, requests.exceptions.SSLError)
        if silent and isinstance(error.args[:1] and error.args[0], ProtocolError):
            self._cut_off += 1  # once or twice is a collector that ends
            if self._cut_off >= CUT_OFF_TIMES:
                text, silent = "it ends every connection without an answer; does it speak TLS (https://)?", False
        if silent:
            logger.debug("no vime-otel collector at %s yet: %s", self._url, text)
        elif text != self._told:
            logger.warning("the vime-otel collector at %s can't be used: %s; trying on", self._url, text)
            self._told = text
