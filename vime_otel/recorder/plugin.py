"""The entry point of `vllm.general_plugins`: cheap, idempotent, and nothing without settings."""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger("vllm.vime_otel")

# vLLM imports each model class in a subprocess of this module and calls plugins there, too.
_INSPECTION_MODULE = "vllm.model_executor.models.registry"


def register() -> None:
    """Attach the recorder to this process, when VIME_OTEL_COLLECTOR or VIME_OTEL_DIR is set.

    vLLM calls this in the API server, every EngineCore and every worker. It never raises.
    """
    if not (os.environ.get("VIME_OTEL_COLLECTOR") or os.environ.get("VIME_OTEL_DIR")):
        return
    main_spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main_spec is not None and main_spec.name == _INSPECTION_MODULE:
        return
    try:
        from .vllm_engine import attach

        attach()
    except Exception:
        logger.warning("vime-otel could not attach; the engine runs without it", exc_info=True)
