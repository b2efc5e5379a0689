"""What kind of work a kernel or an operator is, told from its name: one table, the first match counts."""

from __future__ import annotations

import re
from functools import lru_cache

COMMUNICATION = "communication"
DEEPEP_DISPATCH = "DeepEP dispatch"
DEEPEP_COMBINE = "DeepEP combine"
EXCHANGES = frozenset({COMMUNICATION, DEEPEP_DISPATCH, DEEPEP_COMBINE})
"""Categories whose time is communication between ranks."""

OTHER = "other"

# Names are searched without regard to case. Where a pattern could also fit the template arguments of another kind of
# kernel, that kind stands above it.
_TABLE: tuple[tuple[str, str], ...] = (
    ("copy HtoD", r"^memcpy htod|^copyhosttodevice"),
    ("copy DtoH", r"^memcpy dtoh|^copydevicetohost"),
    ("copy DtoD", r"^memcpy dtod|^copydevicetodevice"),
    ("copy PtoP", r"^memcpy ptop"),
    ("copy, other", r"^memcpy\b"),
    ("memset", r"^memset\b|^fillbuffer"),
    ("step, between its operators", r"^(?:execute_model|ProfilerStep)$"),
    ("Python", r"\.py\(\d+\): |^<(?:built-in|string|frozen|method|slot|class) |^<string>|^<frozen|^nn\.module: "),
    ("runtime calls", r"(?-i:^(?:cuda|cu|hip|ze|sycl)[A-Z]\w+$)"),
    ("autograd", r"^(?:autograd::engine|torch::autograd|torch::jit)|^<(?:forward|backward) op>|^\w+Backward\d+$"),
    (DEEPEP_DISPATCH, r"deep_?ep\b.*dispatch|::(?:intranode|internode|internode_ll)::\w*dispatch"),
    (DEEPEP_COMBINE, r"deep_?ep\b.*combine|::(?:intranode|internode|internode_ll)::\w*combine"),
    (
        COMMUNICATION,
        r"nccl|rccl|\bccl|gloo[:_]|\bmscclpp?|nvshmem|deep_?ep|pplx|c10d::|all_?reduce|all_?gather|reduce_?scatter"
        r"|all_?to_?all|\ball2all|cross_device_reduce|multimem|symm_mem|custom_ar\b|quick_?reduce|shm_(?:all|gather|send|recv|bcast)"
        r"|\bbroadcast_(?:kernel|coalesced)|send_?recv",
    ),
    (
        "attention",
        r"attention|attn|mqa_logits|flash_?(?:fwd|bwd|mla)|\bfmha|fmha_|paged_?(?:kv|attn)|\bmla_|_mla\b|flash::|batch(?:prefill|decode)with"
        r"|reshape_and_cache|kv_?cache|merge_?(?:attn|states?\b|stateskernel)|concat_and_cache|sdpa|xqa|_fwd_(?:grouped_)?kernel_stage",
    ),
    (
        "state space and linear attention",
        r"mamba|selective_scan|causal_conv1d|gated_delta|chunk_(?:scan|state|fwd)|\bssd_|wkv",
    ),
    ("sampling", r"\bsampling::"),
    (
        "top-k and routing",
        r"top_?k(?!_?top_?p)|gating|moe_align|routing|router|expert_?(?:map|offset|count)|count_and_sort_expert|expert_tokens"
        r"|select_experts|expandinputrows|moe_?permute|moe_?unpermute|(?:un)?permute_?(?:tokens|kernel)\b",
    ),
    (
        "MoE and grouped GEMM",
        r"moe|expert|^bmm_(?:e\dm\d|bfloat16|fp16|mx)|grouped_?(?:gemm|mm)|group_gemm|GroupProblemShape|m_grouped|k_grouped|group_wise",
    ),
    ("sampling", r"sampl|penalt|greedy|top_?k_?top_?p|multinomial|gumbel|rejection|exponential_|log_?probs"),
    (
        "convolution",
        r"conv(?:olution|olve|\dd|2d|1d|nd)?(?:_|\b)|convolve|fprop|dgrad|wgrad|winograd|cudnn::(?:ops|cnn)|scudnn|cask_cudnn|\bfft2d_|\bconv(?!ert)",
    ),
    (
        "GEMM",
        r"(?<!fb)(?<!deep_)gemm|gemv|matmul|cublas|cutlass(?!_kernels)|wgmma|\w*_mm\b|::mm\b|::bmm|::addmm|baddbmm|\bmm_|linear\b|splitk|nvjet|xmma|cijk_|wvsplitk"
        r"|marlin|machete|mma_sync|tensorop|::dot\b|\bdot_kernel",
    ),
    ("quantisation", r"quant|to_fp[48]|convert_fp8|fp8rowwise|fp8_?cast|scaled_fp|awq|gptq|nvfp4|mxfp"),
    (
        "norms",
        r"(?:rms|layer|batch|group|instance|l2|qk)_?norm|\bbn_(?:fw|bw)|bnorm|norm_(?:kernel|fwd|bwd)|_norm\b|rowwisemoments|gammabeta",
    ),
    ("rotary embedding", r"rotary|\brope|_rope"),
    ("embedding", r"embedding|vocab_parallel|embeddingbag|pooled_embs|table_batched"),
    ("activation", r"silu|gelu|swiglu|act_and_mul|relu|sigmoid|activation|threshold"),
    ("Triton and fused", r"^triton_|fused|multi_tensor_apply|_foreach_|^_\w+_kernel$|jit_fn|triton"),
    ("softmax and losses", r"softmax|nll_?loss|cross_entropy|mse_?loss"),
    ("reductions", r"::reduce_kernel<"),
    ("indexing", r"index_elementwise|scatter_gather|_gather_kernel"),
    (
        "elementwise",
        r"elementwise|pointwise|vectorized|unrolled_|functor|launch_clamp|distribution_"
        r"|^aten::(?:add|sub|mul|div|neg|pow|exp|log|sqrt|rsqrt|tanh|fill|zero|ones|where|clamp|eq|ne|lt|gt|le|ge|nan_to_num|bitwise_\w+|logical_\w+|"
        r"abs|cos|sin|maximum|minimum|lerp|addcmul|addcdiv|copysign|floor|ceil|round|masked_fill|triu|tril|uniform|normal|bernoulli)_?$",
    ),
    (
        "reductions",
        r"reduce(?!d_divisor)|::(?:sum|mean|max|min|argmax|argmin|any|all|prod|std|var|norm|amax|amin|cumsum|cumprod)\b|cumsum|scan|reduction",
    ),
    ("copies", r"^aten::(?:item|_local_scalar_dense)$"),
    ("views and allocation", r"^aten::(?:slice|transpose)_?$"),
    (
        "indexing",
        r"index|indic|gather|scatter|::cat\b|catarray|slice|sort|radix|nonzero|take|transpose|arange|flip|roll|repeat|unique|mask"
        r"|segment|bucketize|searchsorted|permute_\dd|jagged",
    ),
    ("copies", r"copy|::(?:to|contiguous|clone|cat|stack)\b"),
    (
        "views and allocation",
        r"^detach$|^aten::(?:empty|view|reshape|as_strided|expand|narrow|select|squeeze|unsqueeze|permute|t$|detach|split|chunk|flatten|alias"
        r"|resize|set_|lift|resolve|result_type|is_|unbind|unfold|numel|new_|_unsafe_view|_reshape|zeros|unflatten|movedim)",
    ),
)
_PATTERNS = tuple((category, re.compile(pattern, re.IGNORECASE)) for category, pattern in _TABLE)
CATEGORIES = (*dict.fromkeys(category for category, _ in _TABLE), OTHER)


@lru_cache(maxsize=2**16)
def category_of(name: str) -> str:
    """The category of a kernel, a copy on the device, or an operator on the CPU."""
    return next((category for category, pattern in _PATTERNS if pattern.search(name)), OTHER)


def is_collective(name: str) -> bool:
    """Whether all ranks of a group end an operation of this name together, unlike a send, a receive, or DeepEP's."""
    return category_of(name) == COMMUNICATION and not re.search(
        r"send|recv|deep_?ep|nvshmem|coalesc|c10d::_?(?:wait|barrier)|work", name, re.IGNORECASE
    )
