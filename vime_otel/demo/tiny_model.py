"""A tiny model folder that real vLLM serves with `--load-format dummy`: real layers, random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ARCHITECTURE = "Qwen3MoeForCausalLM"
_END_OF_TEXT = "<|endoftext|>"

# Two layers of everything a MoE model has, small enough for one CPU core.
_SMALL: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def write_tiny_model(directory: Path, architecture: str = ARCHITECTURE, **config: Any) -> Path:
    """Write config and tokenizer into `directory` and return it.

    `config` overrides single values of config.json, `model_type` among them for another architecture.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = _write_tokenizer(directory)
    content = {
        "architectures": [architecture],
        **_SMALL,
        "vocab_size": vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        **config,
    }
    (directory / "config.json").write_text(json.dumps(content, indent=2))
    return directory


def _write_tokenizer(directory: Path) -> int:
    """Write a byte-level BPE tokenizer without merges; returns its number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = [_END_OF_TEXT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_END_OF_TEXT])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _END_OF_TEXT,
        "eos_token": _END_OF_TEXT,
        "pad_token": _END_OF_TEXT,
        "model_max_length": 1024,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    return len(symbols)
