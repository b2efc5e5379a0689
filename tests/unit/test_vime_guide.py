"""The guide for vime and the files that it has users paste are true, in both languages."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import click
import pytest

from collector.doctor.check_log import check_log
from collector.doctor.train_log import parse_train_log
from vime_otel.cli.main import vime_otel
from vime_otel.data import settings

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "vime"
ENGLISH, CHINESE = (ROOT / "docs" / name for name in ("vime.md", "vime.zh.md"))


def commands(text: str) -> list[str]:
    """What the guide has one type, from code blocks and code spans."""
    return re.findall(r"(?:^    |`)(vime-otel [^`\n]+)", text, re.MULTILINE)


def options_of(command: str) -> tuple[set[str], set[str]]:
    """The options that a typed command uses, and those that its subcommand has."""
    words = command.split()[1:]
    found: click.Command = vime_otel
    while isinstance(found, click.Group) and words:
        inner = found.get_command(click.Context(found), words[0])
        assert inner is not None, command
        found = inner
        words = words[1:]
    has = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {word for word in words if word.startswith("--")}, has


@pytest.mark.parametrize("path", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_every_command_and_option_exists(path: Path) -> None:
    typed = commands(path.read_text())
    assert len(typed) >= 8
    for command in typed:
        used, has = options_of(command)
        assert used <= has, command


def test_both_languages_say_the_same_commands_in_as_many_rows() -> None:
    english, chinese = ENGLISH.read_text(), CHINESE.read_text()
    assert commands(english) == commands(chinese)
    for pattern in (r"^\|", r"^## ", r"\]\((\.\./)?deploy/vime[^)]*\)"):
        assert len(re.findall(pattern, english, re.M)) == len(re.findall(pattern, chinese, re.M)), pattern


@pytest.mark.parametrize("path", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(((?!https?:)[^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_runtime_env_sets_what_the_recorder_reads() -> None:
    variables = json.loads((FILES / "runtime-env.json").read_text())["env_vars"]
    assert {settings.COLLECTOR.name, settings.TOKEN.name} <= set(variables)
    assert all(isinstance(value, str) for value in variables.values()), "Ray takes nothing else"
    assert "VLLM_RPC_TIMEOUT" not in variables


def test_the_profiler_config_passes_the_doctor() -> None:
    config = (FILES / "profiler-config.json").read_text().strip()
    lines = [f"vllm_profiler_config .... {config}", f"Launching vLLM server: vllm serve /m --profiler-config {config}"]
    found = {each.subject: each.level for each in check_log(parse_train_log(FILES, lines))}
    assert found["arguments parsed"] == found["forwarded to vllm serve"] == "ok"


@pytest.mark.parametrize("name", ["train.sh", "profile.sh"])
def test_scripts_parse_and_use_what_exists(name: str) -> None:
    script = FILES / name
    subprocess.run(["bash", "-n", str(script)], check=True)
    for command in re.findall(r"vime-otel [^\n]*", script.read_text()):
        used, has = options_of(command)
        assert used <= has
