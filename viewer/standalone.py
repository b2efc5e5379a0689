"""A view as one HTML file that works offline: its data, style and script are in it."""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from pathlib import Path

import orjson

from .colors import palette_css
from .view import View

_STATIC = Path(__file__).parent / "static"
_ENTRY = "standalone.js"
_IMPORT = re.compile(r'^import \{\s*([^}]+?),?\s*\} from "\./([a-z_]+)\.js";\n', re.M)
_EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.M)


def render_page(view: View) -> str:
    """The page's text. Nothing in it may load anything, and only its one script may run."""
    data = orjson.dumps(view.flamegraph()).decode().replace("<", "\\u003c")
    style = palette_css() + (_STATIC / "style.css").read_text("utf-8")
    script = bundle(_ENTRY)
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'"
    return _PAGE.format(policy=policy, title=escape(view.title), style=style, script=script, data=data)


def bundle(entry: str) -> str:
    """The script of a static module and all that it imports, each in a scope of its own."""
    texts: dict[str, str] = {}
    _collect(entry.removesuffix(".js"), texts)
    return "\n".join(f"const module_{name} = (() => {{\n{text}\n}})();" for name, text in texts.items())


def _collect(name: str, texts: dict[str, str]) -> None:
    """Add a module after those that it imports."""
    source = (_STATIC / f"{name}.js").read_text("utf-8")
    for _, imported in _IMPORT.findall(source):
        if imported not in texts:
            _collect(imported, texts)
    exported = ", ".join(_EXPORT.findall(source))
    body = _IMPORT.sub(lambda match: f"const {{ {match[1]} }} = module_{match[2]};\n", source)
    body = re.sub(r"^export ", "", body, flags=re.M)
    texts[name] = f"{body}\nreturn {{ {exported} }};"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · vime-otel</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<div id="app"></div>
</main>
<script type="application/json" id="profile">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""
