"""The command line as a whole: help, exit statuses, errors in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from samples import write_sample

from vime_otel.cli import main as cli
from vime_otel.cli.main import main
from vime_otel.data.errors import VimeOtelError


def fails(capsys: pytest.CaptureFixture[str], args: list[str]) -> tuple[int, str]:
    """The exit status, and what stands on stderr: a single line."""
    status = main(args)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return status, captured.err


def plant(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make every subcommand raise `error`."""

    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr(cli._LazyGroup, "get_command", lambda self, ctx, name: broken)


def test_help_lists_every_subcommand_and_imports_none() -> None:
    code = (
        "import sys\n"
        "from vime_otel.cli.main import main\n"
        "status = main(['--help'])\n"
        "heavy = {'aiohttp', 'grpc', 'flask', 'torch', 'vllm', 'collector', 'viewer'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("demo", "collect", "serve", "workers", "profile", "view", "top", "export"):
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize(
    "args", [["workers"], ["profile"], ["profile", "start"], ["view"], ["top"], ["export"], ["demo"]]
)
def test_each_subcommand_has_help(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main([*args, "--help"]) == 0
    assert "Usage: vime-otel " + " ".join(args) in capsys.readouterr().out


@pytest.mark.parametrize(
    "args",
    [
        ["bogus"],
        ["top", "--bogus"],
        ["top", "--kind", "other"],
        ["top", "--limit", "0"],
        ["workers", "--router", "ftp://x"],
        ["workers", "--router", "http://"],
        ["workers", "--router", "http://h:99999"],
        ["workers"],
        ["profile", "stop"],
        ["profile", "start", "--timeout", "soon"],
        ["view", "--port", "70000"],
    ],
)
def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert fails(capsys, args)[0] == 2


def test_python_dash_m(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "vime_otel", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("vime-otel ")


def test_an_interrupt_is_status_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, KeyboardInterrupt())
    assert main(["top"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_our_errors_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, VimeOtelError("the port is in use; give another"))
    assert fails(capsys, ["top"]) == (1, "error: the port is in use; give another\n")


def test_a_bug_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, ZeroDivisionError("by\nzero"))
    monkeypatch.delenv("VIME_OTEL_DEBUG", raising=False)
    status, text = fails(capsys, ["top"])
    assert status == 1
    assert "ZeroDivisionError: by zero" in text
    assert "VIME_OTEL_DEBUG=1" in text
    monkeypatch.setenv("VIME_OTEL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["top"])


def test_a_reader_that_leaves_early_is_no_traceback(tmp_path: Path) -> None:
    write_sample(tmp_path)
    command = f"{sys.executable} -m vime_otel top --runs {tmp_path} --limit 100 | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(("package", "args"), [("collector", ["workers", "--router", "h:1"]), ("viewer", ["view"])])
def test_a_folder_that_hides_our_package_is_named(tmp_path: Path, package: str, args: list[str]) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise RuntimeError('not ours')")
    done = subprocess.run(
        [sys.executable, "-m", "vime_otel", *args],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path.parent,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / package} hides")
    assert done.stderr.count("\n") == 1
