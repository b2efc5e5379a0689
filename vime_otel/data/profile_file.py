"""Reading a profile from a file of whichever kind: folded stacks, speedscope, and each of our own exports.

What a file is, its content tells, not its name. Text may be UTF-8 or UTF-16, with any line ends; gzip is undone.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from . import folded, speedscope, stack_table
from .errors import VimeOtelError
from .folded import escape_frame
from .profile import Profile, count_of, unit_of
from .summary import counted

MAX_BYTES = 512 * 1024 * 1024
"""Of a file's content, after decompression."""

PAGE_DATA = re.compile(r'<script type="application/json" id="profile">(.*?)</script>', re.S)
"""Where a stand-alone page holds its profile."""

_READABLE = "folded stacks, speedscope JSON and the exports html, folded, speedscope, csv and json can be shown"

_GZIP = b"\x1f\x8b"
_LINE_END = re.compile(r"\r\n|\r|\n")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def read_profile(content: bytes, limit: int = MAX_BYTES) -> Profile:
    """The profile that a file holds; raises VimeOtelError for one that holds none, or more than `limit` bytes."""
    text = _text(_inflated(content, limit))
    start = text.lstrip()[:200]
    if start.startswith("{"):
        profile = _from_json(_json(text))
    elif start.lower().startswith(("<!doctype html", "<html")):
        profile = _from_page(text)
    elif start.startswith(("stack,", '"stack",')):
        profile = stack_table.load_csv(io.StringIO(text, newline=""))
    else:
        profile = _from_folded(text)
    profile.self_values = {stack: value for stack, value in profile.self_values.items() if stack}
    if not profile.self_values:
        others = f" ({counted(profile.invalid_lines, 'line')} in no known format)" if profile.invalid_lines else ""
        raise VimeOtelError(f"no stacks in it{others}; {_READABLE}")
    return profile


def _inflated(content: bytes, limit: int) -> bytes:
    if content.startswith(_GZIP):
        try:
            content = zlib.decompressobj(wbits=31).decompress(content, limit + 1)
        except zlib.error as error:
            raise VimeOtelError(f"its gzip can't be read ({error})") from error
    if len(content) > limit:
        raise VimeOtelError(f"it holds more than {limit / 2**20:.0f} MiB")
    return content


def _text(content: bytes) -> str:
    encoding = next((name for mark, name in _BOMS if content.startswith(mark)), None)
    if encoding is None:
        # Without a mark every other byte of UTF-16 text is zero, as long as it is mostly ASCII.
        encoding = "utf-16-le" if content[1:2] == b"\0" else "utf-16-be" if content[:1] == b"\0" else "utf-8"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise VimeOtelError(f"it is neither UTF-8 nor UTF-16 text (byte {error.start}); {_READABLE}") from error


def _json(text: str) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise VimeOtelError(f"its JSON can't be read ({error})") from error
    if not isinstance(document, dict):
        raise VimeOtelError("its JSON is no object")
    return document


def _from_json(document: dict[str, Any]) -> Profile:
    if document.get("format") == stack_table.FORMAT:
        return stack_table.load_json(document)
    if "profiles" in document and "shared" in document:
        return speedscope.load(document)
    if "traceEvents" in document:
        raise VimeOtelError("it is a timeline, not a sum of stacks; open it at https://ui.perfetto.dev")
    raise VimeOtelError("its JSON is neither speedscope's nor what `vime-otel export --format json` writes")


def _from_page(text: str) -> Profile:
    found = PAGE_DATA.search(text)
    if not found:
        raise VimeOtelError("it is a web page, and none that `vime-otel export --format html` wrote")
    document = _json(found[1])
    try:
        return _from_tree(document)
    except (LookupError, TypeError, ValueError) as error:
        raise VimeOtelError(f"its data can't be read ({error})") from error


def _from_tree(document: Mapping[str, Any]) -> Profile:
    """The stacks of a flame graph's columns, as docs/api.md has them."""
    tree = document["tree"]
    names = [escape_frame(str(name)) for name in tree["names"]]
    steps = max(count_of(document["steps"]), 1)
    profile = Profile({}, kind=str(document["kind"]), steps=steps, unit=unit_of(document["unit"]))
    path: list[str] = []
    columns = zip(tree["name"], tree["depth"], tree["self"], tree["calls"], strict=True)
    for number, (name, depth, own, calls) in enumerate(columns):
        path[depth:] = [names[name]]
        if number == 0 and tree["made_up_root"]:
            continue
        stack = ";".join(path[1:] if tree["made_up_root"] else path)
        profile.self_values[stack] = count_of(own)
        if calls:
            profile.calls[stack] = count_of(calls)
    return profile


def _from_folded(text: str) -> Profile:
    parsed = folded.parse(_LINE_END.split(text))  # str.splitlines would split within names, too
    # Ours count microseconds below a `step`; other tools' count samples.
    ours = all(stack.partition(";")[0] == "step" for stack in parsed.values)
    return Profile(parsed.values, unit="microseconds" if ours else "samples", invalid_lines=parsed.invalid_lines)
