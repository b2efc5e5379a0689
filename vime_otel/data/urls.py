"""URLs: which ones can be called, and how they are shown without passwords."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_OTLP_HTTP_PORT = 4318
_USER_INFO = re.compile(r"(?<=//)[^/?#\s]*@")


def shown(text: str) -> str:
    """A URL, or a text with URLs, as people may see it: without user names and passwords."""
    return _USER_INFO.sub("", text)


def without_user(text: str) -> str:
    """A text that was meant as one URL: what stands before an @ may be a password, however the rest is spelt."""
    scheme, slashes, rest = text.partition("://") if "://" in text else ("", "", text)
    return scheme + slashes + rest.rpartition("@")[2]


def is_http_url(url: str) -> bool:
    """Whether it names an HTTP server, with or without a path, and nothing else."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return valid and not parts.query and not parts.fragment and url.isprintable() and " " not in url


def otlp_over_http(url: SplitResult) -> bool:
    """Whether an OTLP endpoint is spoken to in HTTP: on its port, and where the URL has a path; gRPC otherwise."""
    return url.port == _OTLP_HTTP_PORT or bool(url.path.strip("/"))
