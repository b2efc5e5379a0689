"""A streaming client, and what it measures."""

from __future__ import annotations

import json
import time

import requests


def completion(url: str, prompt: str, tokens: int) -> str:
    """The text that an engine answers, at temperature 0."""
    answer = requests.post(f"{url}/v1/completions", json=_body(url, prompt, tokens), timeout=120)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def arrivals(url: str, prompt: str, tokens: int) -> list[float]:
    """When each token of a streamed completion arrived, in seconds of the monotonic clock."""
    times = []
    body = {**_body(url, prompt, tokens), "stream": True}
    with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=120) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                times.append(time.monotonic())
    return times


def _body(url: str, prompt: str, tokens: int) -> dict[str, object]:
    model = requests.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"]
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
