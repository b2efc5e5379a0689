"""vLLM's releases on the package index that pip is set up for. Of a wheel only the modules asked for are fetched."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import requests

PACKAGE = "vllm"
OLDEST = (0, 20)
_TIMEOUT_S = 60
_READ_AHEAD = 2**16
# One wheel is as good as another for reading Python files; these are the platforms that vLLM has had wheels for.
_PLATFORMS = [f"manylinux_2_{glibc}_x86_64" for glibc in range(17, 40)]


class ContractError(Exception):
    """Says in one line why the check can't go on."""


def cache_directory() -> Path:
    """Where fetched modules are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vime-otel-contract"


def parse_version(version: str) -> tuple[int, ...]:
    """'0.20.2' as (0, 20, 2). Raises ValueError for anything but a final release."""
    return tuple(int(part) for part in version.split("."))


def newest_of_each_minor(versions: list[str]) -> list[str]:
    """The newest final release of every minor version from OLDEST on, oldest first."""
    newest: dict[tuple[int, ...], tuple[int, ...]] = {}
    for version in versions:
        if not re.fullmatch(r"\d+(\.\d+)+", version):
            continue
        parsed = parse_version(version)
        if parsed[:2] >= OLDEST:
            newest[parsed[:2]] = max(parsed, newest.get(parsed[:2], ()))
    return [".".join(map(str, newest[minor])) for minor in sorted(newest)]


def released_versions() -> list[str]:
    """All that the index offers. Raises ContractError."""
    answer = _pip("index", "versions", PACKAGE)
    match = re.search(r"^Available versions: (.*)$", answer, re.MULTILINE)
    if match is None:
        raise ContractError(f"pip names no versions of {PACKAGE}")
    return match[1].split(", ")


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else done.stderr.strip()[-200:]
        raise ContractError(f"pip finds nothing on its index; is there a network? It says: {reason}")
    return done.stdout


class Release:
    """The modules of one release, from the cache or out of the wheel."""

    def __init__(self, version: str, cache: Path):
        self.version = version
        self._folder = cache / version
        self._wheel: zipfile.ZipFile | None = None
        self._members: set[str] | None = None

    def module(self, name: str) -> str | None:
        """Its source, or None where the release has no such module. Raises ContractError."""
        path = name.replace(".", "/")
        for member in (f"{path}.py", f"{path}/__init__.py"):
            if member in self._names():
                return self._text(member)
        return None

    def _names(self) -> set[str]:
        if self._members is None:
            listing = self._folder / "members.json"
            if not listing.exists():
                names = [name for name in self._open().namelist() if name.endswith(".py")]
                _write(listing, json.dumps(names))
            self._members = set(json.loads(listing.read_text()))
        return self._members

    def _text(self, member: str) -> str:
        kept = self._folder / member
        if not kept.exists():
            try:
                _write(kept, self._open().read(member).decode())
            except (requests.RequestException, zipfile.BadZipFile) as error:
                raise ContractError(f"{PACKAGE} {self.version} can't be read: {_first_line(error)}") from error
        return kept.read_text()

    def _open(self) -> zipfile.ZipFile:
        if self._wheel is None:
            try:
                self._wheel = zipfile.ZipFile(io.BufferedReader(RemoteFile(wheel_url(self.version)), _READ_AHEAD))
            except (requests.RequestException, zipfile.BadZipFile) as error:
                raise ContractError(f"{PACKAGE} {self.version} can't be read: {_first_line(error)}") from error
        return self._wheel


def wheel_url(version: str) -> str:
    """Where the index has the release's wheel. Raises ContractError."""
    options = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--ignore-requires-python", "--report", "-"]
    # A wheel for another platform than this one is found only for a target folder; nothing is written into it.
    options += ["--only-binary=:all:", "--target", "unused"]
    options += [option for platform in _PLATFORMS for option in ("--platform", platform)]
    report = json.loads(_pip("install", *options, f"{PACKAGE}=={version}"))
    return str(report["install"][0]["download_info"]["url"])


class RemoteFile(io.RawIOBase):
    """A file on a server, read in ranges. Raises ContractError where the server does not do that."""

    def __init__(self, url: str):
        self._url = url
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = "identity"
        self._position = 0
        self._size = int(self._range("bytes=0-0").headers["Content-Range"].rpartition("/")[2])

    def _range(self, wanted: str) -> requests.Response:
        answer = self._session.get(self._url, headers={"Range": wanted}, timeout=_TIMEOUT_S, stream=True)
        answer.raise_for_status()
        if answer.status_code != requests.codes.partial_content:
            answer.close()
            raise ContractError("the package index does not send parts of files; try another index (pip config)")
        return answer

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        content = self._range(f"bytes={self._position}-{end - 1}").content
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
