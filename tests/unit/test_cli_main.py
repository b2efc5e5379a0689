"""The command line as a whole: help, exit statuses, errors in one line."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from samples import write_sample

from vime_otel.cli import main as cli
from vime_otel.cli.main import main
from vime_otel.data import settings
from vime_otel.data.errors import UsageError, VimeOtelError


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

    @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
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
        ["top", "--mixed", "other"],
        ["top", "--limit", "0"],
        ["workers", "--router", "ftp://x"],
        ["workers", "--router", "http://"],
        ["workers", "--router", "http://h:99999"],
        ["workers"],
        ["profile", "stop"],
        ["profile", "start", "--timeout", "soon"],
        ["profile", "start", "--timeout", "nan"],
        ["profile", "start", "--timeout", "inf"],
        ["view", "--port", "70000"],
    ],
)
def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert fails(capsys, args)[0] == 2


@pytest.mark.parametrize("args", [[], ["profile"]])
def test_without_a_subcommand_the_help_is_shown(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: vime-otel ")
    assert "error" not in captured.err
    assert "--help` shows" not in captured.err


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (["export", "-o"], "vime-otel export"),
        (["profile", "start", "--timeout"], "vime-otel profile start"),
        (["profile", "pause"], "vime-otel profile"),
        (["top", "--bogus"], "vime-otel top"),
        (["--bogus"], "vime-otel"),
    ],
)
def test_wrong_usage_points_to_the_right_help(capsys: pytest.CaptureFixture[str], args: list[str], path: str) -> None:
    assert f"(`{path} --help` shows the usage)" in fails(capsys, args)[1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "can't write the output: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/x/steps.json"), "/x/steps.json: Permission denied"),
        (OSError(errno.EMFILE, "Too many open files"), "this is a bug in vime-otel"),
    ],
)
def test_what_the_system_refuses_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: OSError, message: str
) -> None:
    plant(monkeypatch, error)
    monkeypatch.setattr(cli, "_give_up_stdout", lambda: None)
    status, text = fails(capsys, ["top"])
    assert status == 1
    assert message in text


def test_output_that_does_not_fit_is_told(tmp_path: Path) -> None:
    write_sample(tmp_path)
    with open(tmp_path / "output", "wb") as output:
        done = subprocess.run(
            ["bash", "-c", f"ulimit -f 0; exec {sys.executable} -m vime_otel top --runs {tmp_path}"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "error: can't write the output: File too large\n")


def test_with_json_an_error_is_json_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIME_OTEL_DEBUG", raising=False)
    for error, status in (
        (VimeOtelError("no"), 1),
        (click.UsageError("no"), 2),
        (KeyError("no"), 1),
        (KeyboardInterrupt(), 130),
    ):
        plant(monkeypatch, error)
        assert main(["top", "--json"]) == status
        captured = capsys.readouterr()
        message = json.loads(captured.out)["error"]["message"]
        assert captured.err.strip().removeprefix("error: ") == message


@pytest.mark.parametrize("value", ["many", "²", "-1", "1" * 5000])
def test_a_setting_that_is_no_number_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("VIME_OTEL_DECODE_TOKENS", value)
    with pytest.raises(UsageError, match="VIME_OTEL_DECODE_TOKENS"):
        settings.decode_tokens()


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
