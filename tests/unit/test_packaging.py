"""What the wheel holds and asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEVER = {"vllm", "torch", "numpy", "ray"}
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*(\(?>=[0-9][0-9.]*\)?)$")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy so that nothing is written into the clone."""
    source, target = tmp_path_factory.mktemp("source") / "clone", tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "runs", "build", "dist", "*.egg-info", "__pycache__")
    )
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(target), str(source)], check=True, capture_output=True, text=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_top_level_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"vime_otel", "collector", "viewer"}


def test_every_module_of_the_clone_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    for package in ("vime_otel", "collector", "viewer"):
        missing = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")} - packed
        assert not missing


def test_the_viewers_files_and_the_licence_are_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.startswith("viewer/static/") for name in names)
    assert any(name.startswith("viewer/templates/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_requirements_are_lower_bounds_and_none_is_the_engines(metadata: Message) -> None:
    required = [each.split(";")[0].strip() for each in metadata.get_all("Requires-Dist", [])]
    assert required
    names = set()
    for requirement in required:
        found = _REQUIREMENT.match(requirement)
        assert found, f"{requirement!r} has more than a lower bound"
        names.add(found[1].lower())
    assert not names & NEVER


def test_what_pip_and_vllm_are_told(wheel: Path, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("entry_points.txt"))
        text = archive.read(name).decode()
    assert "[vllm.general_plugins]\nvime_otel = vime_otel.recorder.plugin:register" in text
    assert "[console_scripts]\nvime-otel = vime_otel.cli.main:main" in text


def test_the_cpu_engine_is_pinned_without_what_breaks_it() -> None:
    lines = (ROOT / "deploy/cpu-engine/requirements.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    assert not {"torchvision", "torchaudio", "torchcodec"} & pins.keys()
