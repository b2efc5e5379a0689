"""Gives a tiny model folder real weights, wide enough that every prompt gets tokens of its own.

Usage: save_weights.py MODEL
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(sys.argv[1])
    config.initializer_range = 0.4
    AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
