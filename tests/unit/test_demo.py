"""The demo's parts that need no engine."""

from __future__ import annotations

import json
import socket
import urllib.request
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from samples import RECORDING_ID, write_sample

from vime_otel.cli import demo
from vime_otel.cli.main import main
from vime_otel.data.errors import VimeOtelError
from vime_otel.demo.tiny_model import write_tiny_model
from vime_otel.demo.viewing import wait_for_viewer


def test_the_tiny_model_has_a_tokenizer_for_any_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    config = json.loads((write_tiny_model(tmp_path) / "config.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Where does a step go? Größe 时间 \n\t"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert max(ids) < config["vocab_size"] == tokenizer.get_vocab_size()


def test_another_architecture_keeps_what_is_not_overridden(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    write_tiny_model(tmp_path, "LlamaForCausalLM", model_type="llama", num_hidden_layers=3)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["LlamaForCausalLM"], "llama")
    assert (config["num_hidden_layers"], config["hidden_size"]) == (3, 64)


def test_the_viewer_answers_while_the_block_runs(tmp_path: Path) -> None:
    write_sample(tmp_path)
    with (
        wait_for_viewer(tmp_path, 0, tmp_path / "viewer.log") as viewer,
        urllib.request.urlopen(viewer.url, timeout=10) as response,
    ):
        assert RECORDING_ID[:8] in response.read().decode()
    assert viewer.process.family() == []


def test_a_viewer_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(VimeOtelError, match=f"port {port} on 127.0.0.1 is in use"),
            wait_for_viewer(tmp_path, port, tmp_path / "viewer.log"),
        ):
            pass


def test_without_vllm_the_demo_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def only_tokenizers(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name == "tokenizers" else None

    monkeypatch.setattr(demo, "find_spec", only_tokenizers)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "error: the demo needs vllm, vllm_router in this environment; `make demo` in a clone installs all of it\n"
    )
