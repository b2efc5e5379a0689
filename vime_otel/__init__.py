"""vime-otel: shows where the engine steps of vLLM rollouts spend their time."""

from .recorder.eventlog import span
from .version import __version__

__all__ = ["__version__", "span"]
