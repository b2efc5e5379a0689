"""What a scheduler output of vLLM is, in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .window import StepCounts


def count_step(requests: Mapping[str, Any], scheduler_output: Any, decode_tokens: int | None = None) -> StepCounts:
    """Kind and tokens of a scheduler output, by the scheduler's own numbers; right after schedule().

    `requests` are the scheduler's, by id. A request prefills while tokens that it already has (its
    prompt, or, resumed after a preemption, what it had generated but for the last) are not computed;
    all that is scheduled for it then counts as context. With `decode_tokens` N the kind alone follows
    another rule: more than N tokens are a prefill.
    """
    context = generation = 0
    scheduled = scheduler_output.num_scheduled_tokens
    for request_id, computed in _starts(scheduler_output):
        request = requests[request_id]
        if computed < request.num_prompt_tokens or computed < request.num_tokens - 1:
            context += scheduled[request_id]
        else:
            generation += scheduled[request_id]
    kind = "prefill" if context else "decode"
    if decode_tokens is not None:
        kind = "prefill" if context + generation > decode_tokens else "decode"
    return StepCounts(
        kind,
        mixed=bool(context and generation),
        context_tokens=context,
        generation_tokens=generation,
        requests=len(scheduled),
        resumed=_resumed(requests, scheduler_output),
        speculative_tokens=sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values())),
    )


def _starts(scheduler_output: Any) -> Iterator[tuple[str, int]]:
    """Each scheduled request and how many of its tokens were computed before the step."""
    for new in scheduler_output.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens
    cached = scheduler_output.scheduled_cached_reqs
    yield from zip(cached.req_ids, cached.num_computed_tokens, strict=True)


def _resumed(requests: Mapping[str, Any], scheduler_output: Any) -> int:
    """Requests that go on after a preemption; with vLLM's V2 model runner they stand among the new ones."""
    among_new = [new for new in scheduler_output.scheduled_new_reqs if requests[new.req_id].num_preemptions]
    return len(among_new) + len(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
