"""Writing where a user says, with respect for what is there."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_output(path: Path, content: bytes) -> None:
    """Write `content` to a path that a user named; raises OSError.

    A file, also behind links, is replaced whole and keeps its mode and owner; a new one is made as the
    umask says. A pipe, a terminal or another device is written to as it is.
    """
    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    if there is None or stat.S_ISREG(there.st_mode):
        _replace(Path(os.path.realpath(path)), content, there)
    else:
        with open(path, "wb") as file:
            file.write(content)


def _replace(path: Path, content: bytes, there: os.stat_result | None) -> None:
    """Write a file beside `path` and rename it into its place."""
    temporary = path.with_name(f".vime-otel-{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        if there is not None:
            with contextlib.suppress(OSError):  # only root may give files away
                os.chown(temporary, there.st_uid, there.st_gid)
            os.chmod(temporary, stat.S_IMODE(there.st_mode))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
