"""What a scheduler output of vLLM is, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .window import StepCounts


def count_step(requests: Mapping[str, Any], scheduler_output: Any, decode_tokens: int | None = None) -> StepCounts:
    """Kind and tokens of a scheduler output, by the scheduler's own numbers; right after schedule().

    `requests` are the scheduler's, by id. A request prefills while tokens that it already has (its
    prompt, or, resumed after a preemption, what it had generated) are not computed up to the last
    one. With `decode_tokens` N the kind alone follows another rule: more than N tokens are a prefill.
    """
    context = generation = prefilling = 0
    scheduled = scheduler_output.num_scheduled_tokens
    for request in scheduler_output.scheduled_new_reqs:
        context += scheduled[request.req_id]
        prefilling += 1
    cached = scheduler_output.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        request = requests[request_id]
        if computed < max(request.num_prompt_tokens, request.num_tokens - 1):
            context += scheduled[request_id]
            prefilling += 1
        else:
            generation += scheduled[request_id]
    kind = "prefill" if prefilling else "decode"
    if decode_tokens is not None:
        kind = "prefill" if context + generation > decode_tokens else "decode"
    return StepCounts(
        kind,
        mixed=bool(prefilling and generation),
        context_tokens=context,
        generation_tokens=generation,
        requests=len(scheduled),
        resumed=_resumed(cached),
        speculative_tokens=sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values())),
    )


def _resumed(cached: Any) -> int:
    """Requests that go on after a preemption."""
    return len(cached.resumed_req_ids)
