"""A streaming client, and how what it measures is held against what the engine recorded."""

from __future__ import annotations

import itertools
import json
import time

import requests


def completion(url: str, prompt: str, tokens: int) -> str:
    """The text that an engine answers, at temperature 0."""
    answer = requests.post(f"{url}/v1/completions", json=_body(url, prompt, tokens), timeout=120)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def arrivals(url: str, prompt: str, tokens: int) -> list[float]:
    """When each token of a streamed completion arrived, in seconds of the monotonic clock.

    Where the API server is held up, a chunk has several tokens: they arrived together.
    """
    times: list[float] = []
    counted = {"include_usage": True, "continuous_usage_stats": True}
    body = {**_body(url, prompt, tokens), "stream": True, "stream_options": counted}
    with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=120) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith(b"data: {"):
                now = json.loads(line[6:])["usage"]["completion_tokens"]
                times += [time.monotonic()] * (now - len(times))
    return times


def slope(times_ns: list[int], intervals_ns: list[int]) -> float:
    """A client's time over the engine's on the same steps, between two outputs that came with the least delay.

    `times_ns` say when the client had the outputs, `intervals_ns` what each of these steps took. A client
    can only be late; one is looked for in the first third of the steps, the other in the last.
    """
    clock = list(itertools.accumulate(intervals_ns))
    late = [when - ended for when, ended in zip(times_ns, clock, strict=True)]
    third = len(late) // 3
    first = min(range(third), key=late.__getitem__)
    last = min(range(len(late) - third, len(late)), key=late.__getitem__)
    return (times_ns[last] - times_ns[first]) / (clock[last] - clock[first])


def _body(url: str, prompt: str, tokens: int) -> dict[str, object]:
    model = requests.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"]
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
