"""The OTLP resource of what a recorder sends."""

from __future__ import annotations

import os
from typing import Any

from opentelemetry.sdk.resources import OTELResourceDetector

from vime_otel.data import otlp
from vime_otel.data.recording import ENGINE_PART

from .window import Window


def resource_attributes(window: Window, part: str) -> dict[str, Any]:
    """Attributes for one rank's spans, or the engine's own. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME count."""
    engine = window.engine
    from_user = dict(OTELResourceDetector().detect().attributes)
    log = next((log for log in window.ranks if str(log.rank) == part), None)
    return {
        "service.name": "vllm",
        **from_user,
        **({"service.name": name} if (name := os.environ.get("OTEL_SERVICE_NAME")) else {}),
        otlp.INSTANCE_ID: engine["engine"],
        "host.name": engine["host"],
        "process.pid": engine["pid"] if log is None else log.pid,
        otlp.RECORDING_ID: window.command.recording,
        otlp.RANK: None if part == ENGINE_PART else int(part),
        otlp.ENGINE_LABEL: engine["label"],
        "vllm.version": engine["vllm_version"],
        "vime_otel.version": engine["vime_otel_version"],
    }
