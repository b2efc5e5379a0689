"""vLLM's real scheduler without a model: whoever drives it makes up what a model would have sampled.

vLLM is imported when a scheduler is made and not before: that takes seconds and changes environment variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_MODEL_LEN = 96


@dataclass(frozen=True)
class Options:
    """How a scheduler is set up; `blocks` of `block_size` tokens are its whole KV cache."""

    blocks: int = 64
    block_size: int = 4
    token_budget: int = 64
    max_requests: int = 8
    drafts: int = 0
    prefix_caching: bool = True
    asynchronous: bool = False
    policy: str = "fcfs"
    v2_model_runner: bool = False


class RealScheduler:
    """A `Scheduler` or `AsyncScheduler` of vLLM for the model folder `model`."""

    def __init__(self, model: Path, options: Options) -> None:
        import torch
        from vllm.config import CacheConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        speculative = None
        if options.drafts:
            speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=options.drafts, prompt_lookup_max=2)
        cache = CacheConfig(block_size=options.block_size, enable_prefix_caching=options.prefix_caching)
        cache.num_gpu_blocks = options.blocks
        config = VllmConfig(
            model_config=_model_config(model),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=options.token_budget,
                max_num_seqs=options.max_requests,
                max_model_len=MAX_MODEL_LEN,
                is_encoder_decoder=False,
                policy=options.policy,
            ),
            cache_config=cache,
            speculative_config=speculative,
        )
        attention = FullAttentionSpec(block_size=options.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        kv_cache = KVCacheConfig(
            num_blocks=options.blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["attention"], attention)],
        )
        scheduler_class = AsyncScheduler if options.asynchronous else Scheduler
        self.scheduler = scheduler_class(
            config, kv_cache, StructuredOutputManager(config), block_size=options.block_size
        )
        # The configuration refuses this runner on a machine without Triton; the scheduler alone can do without.
        self.scheduler.use_v2_model_runner = options.v2_model_runner
        init_none_hash(sha256)
        self._block_hasher = get_request_block_hasher(options.block_size, sha256)
        self._proposes = bool(options.drafts) and not options.asynchronous

    @property
    def requests(self) -> Mapping[str, Any]:
        """The scheduler's requests by id."""
        return self.scheduler.requests

    def add(self, request_id: str, prompt: list[int], max_tokens: int, priority: int = 0) -> None:
        """Queue a request."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self.scheduler.add_request(
            Request(
                request_id,
                prompt,
                SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                None,
                priority=priority,
                block_hasher=self._block_hasher,
            )
        )

    def abort(self, request_id: str) -> None:
        """End a request from outside, if it is still there."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def preempt_all(self) -> None:
        """Empty the KV cache between two steps, as before a weight update: what runs is preempted."""
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def schedule(self) -> Any:
        """The next scheduler output, which may be empty."""
        return self.scheduler.schedule()

    def sampling(self, output: Any) -> set[str]:
        """The requests that a model would sample for, by the scheduler; right after `schedule`."""
        return {name for name in output.num_scheduled_tokens if not self.requests[name].is_prefill_chunk}

    def update(
        self, output: Any, sampled: Mapping[str, list[int]], propose: Callable[[], list[int]]
    ) -> tuple[dict[str, list[int]], set[str]]:
        """Bring back what was sampled; `propose` makes up the drafts of one request.

        Returns the tokens that came out for each request, and who has finished.
        """
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[list(sampled.get(name, ())) for name in names],
        )
        answers: Iterable[Any] = self.scheduler.update_from_output(output, made).values()
        if self._proposes:
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, [propose() for _ in names]))
        outputs = [each for answer in answers for each in answer.outputs]
        tokens = {each.request_id: list(each.new_token_ids) for each in outputs}
        return tokens, {each.request_id for each in outputs if each.finish_reason is not None}


@functools.cache
def _model_config(model: Path) -> Any:
    from vllm.config import ModelConfig

    return ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=MAX_MODEL_LEN)
