"""Which certificates our clients trust on `https://`: those of VIME_OTEL_CA, or the system's."""

from __future__ import annotations

import ssl

from . import settings
from .errors import UsageError


def client_context() -> ssl.SSLContext:
    """For clients that take a context. Raises UsageError where VIME_OTEL_CA names no certificates."""
    path = settings.get(settings.CA)
    try:
        return ssl.create_default_context(cafile=path or None)
    except OSError as error:  # ssl.SSLError is one, too
        reason = "it holds no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(
            f"{settings.CA.name}={path} can't be used ({reason}); name a file of PEM certificates"
        ) from error


def trusted_bundle() -> str | bool:
    """For requests' `verify`: a file or folder of certificates; True where only its own are to be had.

    Raises UsageError as `client_context` does.
    """
    if path := settings.get(settings.CA):
        client_context()
        return path
    system = ssl.get_default_verify_paths()
    return system.cafile or system.capath or True


def is_untrusted(error: BaseException) -> bool:
    """Whether somewhere below an error lies a certificate that was not trusted."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        each = todo.pop()
        if isinstance(each, ssl.SSLCertVerificationError):
            return True
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            todo += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]
    return False


def untrusted(url: str) -> str:
    """What to say of a server whose certificate is not trusted."""
    return (
        f"the certificate of {url} is not trusted: set {settings.CA.name} to the file of the authority that signed it,"
        " and call the server by a name that stands in the certificate"
    )
