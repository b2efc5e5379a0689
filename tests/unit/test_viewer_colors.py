"""What a frame is, and whether its colour says so to everyone."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from viewer.colors import BY_KEY, CATEGORIES, TEXT_COLOR, Category, category


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("step", "engine"),
        ("wait", "engine"),
        ("update_from_output", "engine"),
        ("execute_model", "runner"),
        ("forward", "runner"),
        ("bookkeep", "runner"),
        ("self_attn:Qwen3MoeAttention", "attention"),
        ("linear_attn:Qwen3NextGatedDeltaNet", "attention"),
        ("rotary_emb:RotaryEmbedding", "attention"),
        ("q_norm:RMSNorm", "norm"),
        ("post_attention_layernorm:RMSNorm", "norm"),
        ("mlp:Qwen3MoeSparseMoeBlock", "moe"),
        ("mlp:DeepseekV2MoE", "moe"),
        ("experts:FusedMoE", "moe"),
        ("moe.dispatch", "moe"),
        ("shared_expert:Qwen3MoeMLP", "moe"),
        ("mlp:LlamaMLP", "mlp"),
        ("gate_up_proj:MergedColumnParallelLinear", "mlp"),
        ("embed_tokens:VocabParallelEmbedding", "embedding"),
        ("lm_head:ParallelLMHead", "sampling"),
        ("sample_tokens", "sampling"),
        ("Qwen3MoeForCausalLM", "other"),
        ("Qwen3MoeDecoderLayer", "other"),
        ("model:Qwen3MoeModel", "other"),
        ("copy", "other"),
    ],
)
def test_a_frame_is_known_by_its_name(frame: str, expected: str) -> None:
    assert category(frame) == expected


@pytest.mark.parametrize(
    ("frame", "parent", "expected"),
    [
        ("qkv_proj:QKVParallelLinear", "attention", "attention"),
        ("gate:ReplicatedLinear", "moe", "moe"),
        ("qkv_proj:QKVParallelLinear", "other", "mlp"),
        ("q_norm:RMSNorm", "attention", "norm"),
        ("mlp:LlamaMLP", "runner", "mlp"),
    ],
)
def test_a_projection_belongs_to_what_it_stands_in(frame: str, parent: str, expected: str) -> None:
    assert category(frame, parent) == expected


def test_every_key_has_one_colour() -> None:
    assert len(BY_KEY) == len(CATEGORIES) == len({entry.color for entry in CATEGORIES})


@pytest.mark.parametrize("entry", CATEGORIES, ids=lambda entry: entry.key)
def test_labels_are_readable_on_every_colour(entry: Category) -> None:
    lighter, darker = (_luminance(_linear(value)) + 0.05 for value in (entry.color, TEXT_COLOR))
    assert lighter / darker >= 7  # WCAG AAA


# How the colour-blind see linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.
_SIGHT = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


@pytest.mark.parametrize("sight", _SIGHT)
def test_colours_stay_apart_for_the_colour_blind(sight: str) -> None:
    seen = {entry.key: _lab(_apply(_SIGHT[sight], _linear(entry.color))) for entry in CATEGORIES}
    nearest = min((math.dist(seen[a], seen[b]), a, b) for a, b in combinations(seen, 2))
    assert nearest[0] > 9, nearest  # CIE76; 2.3 is just noticeable


def _linear(color: str) -> tuple[float, ...]:
    values = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return tuple(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)


def _luminance(rgb: tuple[float, ...]) -> float:
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), rgb, strict=True))


def _apply(matrix: tuple[tuple[float, ...], ...], rgb: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(min(max(sum(a * b for a, b in zip(row, rgb, strict=True)), 0), 1) for row in matrix)


def _lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (
        sum(a * b for a, b in zip(row, rgb, strict=True)) / full for row, full in zip(to_xyz, white, strict=True)
    )
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)
