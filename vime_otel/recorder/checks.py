"""What an engine's settings say, looked at once, before anything is done with them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator

from vime_otel.data import settings, tls
from vime_otel.data.errors import UsageError

_PREFIX = "VIME_OTEL_"
_CHECKS: tuple[Callable[[], object], ...] = (
    settings.collector_url,
    settings.timing,
    settings.decode_tokens,
    settings.sample_every,
    lambda: settings.whole_number(settings.MAX_SPANS),
    lambda: settings.whole_number(settings.MIN_FREE_MIB),
    lambda: settings.whole_number(settings.OUTBOX_MIB),
    lambda: settings.secret(settings.TOKEN),
)


def check_settings() -> None:
    """Raise one UsageError with all that is wrong: each start of an engine takes minutes."""
    checks = (*_CHECKS, tls.trusted_bundle) if settings.get(settings.COLLECTOR) else _CHECKS
    wrong = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("; ".join(wrong))


def without_effect() -> Iterator[str]:
    """Sentences about settings that do nothing: misspelt ones, and those that need another one."""
    known = [setting.name for setting in settings.ALL]
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            yield f"{name} is none of vime-otel's settings{f'; {near[0]} is' if near else ''}"
    if settings.get(settings.SAMPLE_EVERY) and not settings.get(settings.COLLECTOR):
        yield f"{settings.SAMPLE_EVERY.name} does nothing without {settings.COLLECTOR.name}"
