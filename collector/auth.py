"""The bearer token that recorders, exporters and commands show."""

from __future__ import annotations

import hmac

from vime_otel.data import settings

_SCHEME = "bearer"
"""In any case, as HTTP has it."""


class Token:
    """The token that is asked for; an empty one admits everybody."""

    refusal = f"the bearer token is missing or wrong; set {settings.TOKEN.name} to the collector's"

    def __init__(self, secret: str) -> None:
        self._expected = secret.encode()

    def admits(self, authorization: object) -> bool:
        """Whether an Authorization header (or gRPC metadata of that name) carries the token."""
        if not self._expected:
            return True
        scheme, _, shown = authorization.partition(" ") if isinstance(authorization, str) else ("", "", "")
        same = hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._expected)
        return same and scheme.lower() == _SCHEME
