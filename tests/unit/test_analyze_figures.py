"""Every figure of the report beside an independent count of the same real trace."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from plain_figures import PlainFigures, covered, span
from trace_samples import TraceSample, case

from vime_otel.analyze.categories import CATEGORIES, EXCHANGES, category_of, is_collective
from vime_otel.analyze.rank_report import RankReport, rank_report
from vime_otel.analyze.step_report import spread
from vime_otel.analyze.summary import summarize

WITH_DEVICE = [
    "benchmark_result_2869224_1695835535_trace.json.gz",
    "event_sync_trace.json.gz",
    "mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "nccl_data.json.gz",
    "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "sampled_rank-0.json.gz",
    "sampled_rank-1.json.gz",
]
CPU_ONLY = ["rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", "rank_non_gpu.json.gz"]
# Both of the count and of the clock: times of 1.7e15 µs have no nanoseconds left in a double.
NEAR_MS = 2e-3
COARSE = ("rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",)
"""Written with a quarter of a microsecond at best: children end after their parents, and are cut to them."""


def report_of(path: Path, top_n: int = 10_000) -> RankReport:
    return rank_report(summarize(path), top_n)


@cache
def both(name: str) -> tuple[PlainFigures, RankReport]:
    """A real trace counted plainly and reported; each once, for it takes seconds."""
    return PlainFigures(case(name)), report_of(case(name))


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_the_devices_time_and_kernels_are_what_a_plain_count_gives(name: str) -> None:
    figures, report = both(name)
    exchange = figures.named(lambda kernel: category_of(kernel) in EXCHANGES)
    other = figures.named(lambda kernel: category_of(kernel) not in EXCHANGES)
    timeline = report.timeline
    assert report.events == figures.count
    assert timeline.of == "device"
    assert timeline.span == pytest.approx(span(figures.device) / 1e6, abs=NEAR_MS)
    assert timeline.busy == pytest.approx(covered(figures.device) / 1e6, abs=NEAR_MS)
    assert timeline.idle == pytest.approx((span(figures.device) - covered(figures.device)) / 1e6, abs=NEAR_MS)
    assert timeline.communication == pytest.approx(covered(exchange) / 1e6, abs=NEAR_MS)
    assert timeline.exposed == pytest.approx((covered(figures.device) - covered(other)) / 1e6, abs=NEAR_MS)
    assert timeline.wall == pytest.approx(span([*figures.device, *figures.host]) / 1e6, abs=NEAR_MS)
    sums = figures.sums()
    assert {row.name: (row.count, round(row.ms * 1e6)) for row in report.kernels} == sums
    streams = {(event["pid"], event["tid"]) for event in figures.device}
    assert {(s["device"], s["stream"], s["events"]) for s in report.streams} == {
        (pid, tid, sum((e["pid"], e["tid"]) == (pid, tid) for e in figures.device)) for pid, tid in streams
    }
    for stream in report.streams:
        of_stream = [e for e in figures.device if (e["pid"], e["tid"]) == (stream["device"], stream["stream"])]
        assert stream["busy_ms"] == pytest.approx(covered(of_stream) / 1e6, abs=NEAR_MS)


@pytest.mark.parametrize("name", WITH_DEVICE + CPU_ONLY)
def test_categories_add_up_to_what_a_plain_count_gives(name: str) -> None:
    figures, report = both(name)
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for work, (count, time) in (figures.sums() if figures.device else _renamed(figures.own_times())).items():
        counts[category_of(work)] += count
        times[category_of(work)] += time
    assert {row.category: row.count for row in report.categories} == dict(counts)
    for row in report.categories:
        assert row.ms == pytest.approx(times[row.category] / 1e6, abs=NEAR_MS)
        assert row.share == pytest.approx(times[row.category] / max(sum(times.values()), 1), abs=1e-4)
    assert sum(row.share for row in report.categories) == pytest.approx(1)


def _renamed(own: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Steps are one frame, whatever number they have."""
    found: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for name, (count, time) in own.items():
        frame = "ProfilerStep" if name.startswith("ProfilerStep#") else name
        found[frame] += count
        times[frame] += time
    return {name: (found[name], times[name]) for name in found}


@pytest.mark.parametrize("name", WITH_DEVICE + CPU_ONLY)
def test_host_operators_have_the_self_times_of_a_plain_count(name: str) -> None:
    figures, report = both(name)
    own = _renamed(figures.own_times())
    assert {row.name: row.count for row in report.operators} == {name: count for name, (count, _) in own.items()}
    for row in report.operators:
        count, time = own[row.name]
        rounded_ms = 0.5e-3 * count if name in COARSE else 0.0
        assert row.ms == pytest.approx(time / 1e6, abs=NEAR_MS + rounded_ms), row.name


@pytest.mark.parametrize("name", WITH_DEVICE + CPU_ONLY)
def test_threads_are_traced_for_what_their_events_cover(name: str) -> None:
    figures, report = both(name)
    threads = {tid: covered(events) / 1e6 for (_, tid), events in figures.threads().items()}
    assert {t["tid"]: t["traced_ms"] for t in report.threads} == pytest.approx(threads, abs=NEAR_MS)
    if not figures.device:
        assert report.timeline.busy == pytest.approx(covered(figures.host) / 1e6, abs=NEAR_MS)
        collectives = [event for event in figures.host if is_collective(event["name"])]
        assert report.timeline.communication == pytest.approx(covered(collectives) / 1e6, abs=NEAR_MS)


def test_gaps_are_the_time_that_nothing_covers_and_have_what_the_host_did() -> None:
    figures, report = PlainFigures(case("sampled_rank-0.json.gz")), report_of(case("sampled_rank-0.json.gz"), top_n=20)
    gaps = report.gaps
    assert gaps is not None
    assert gaps.ms == pytest.approx((span(figures.device) - covered(figures.device)) / 1e6, abs=NEAR_MS)
    longest = gaps.longest[0]
    begin = min(float(e["ts"]) for e in figures.events if e.get("cat") != "Trace") + longest["at_s"] * 1e6
    end = begin + longest["ms"] * 1e3
    assert not [e for e in figures.device if float(e["ts"]) < end - 1 and float(e["ts"] + e["dur"]) > begin + 1]
    explaining = [e for e in figures.host if e["name"] == longest["host_activity"]]
    inside = sum(max(0.0, min(float(e["ts"] + e["dur"]), end) - max(float(e["ts"]), begin)) for e in explaining)
    assert inside / (end - begin) >= longest["share"] > 0.5


def test_steps_come_from_annotations_with_their_batches_and_tokens(tmp_path: Path) -> None:
    trace = TraceSample()
    for number in range(20):
        trace.step(1000 * number, 600, (0, 0), (4, 4))
        trace.add("sample", 1000 * number + 700, 100 + number)
    trace.step(20_000, 3000, (2, 70), (0, 0))
    trace.step(24_000, 4000, (1, 30), (4, 4))
    trace.step(29_000, 100, (0, 0), (0, 0))
    trace.add("execute_context_1(1)_generation_1(1) of somebody", 29_200, 10)
    report = report_of(trace.write(tmp_path / "trace.json.gz"))
    rows = {row.kind: row for row in report.steps.rows}
    assert (list(rows), report.steps.empty) == (["prefill", "mixed", "decode"], 1)
    decode = rows["decode"]
    assert (decode.steps, decode.batch.p50, decode.generation_tokens, decode.context_tokens) == (20, 4, 80, 0)
    assert decode.cadence_ms is not None
    assert (decode.annotated_ms.p50, decode.cadence_ms.p50) == (0.6, 1.0)
    assert (decode.step_ms.p50, decode.step_ms.most) == (0.809, 0.819)
    assert decode.tokens_per_second == pytest.approx(80 / (20 * 0.8095e-3))
    assert (rows["mixed"].batch.p50, rows["mixed"].context_tokens, rows["mixed"].generation_tokens) == (5, 30, 4)
    assert report.steps.generation_tokens_per_second == pytest.approx(84 / 0.028)
    assert report.steps.context_tokens_per_second == pytest.approx(100 / 0.028)


def test_detailed_annotations_of_vllm_are_read_too(tmp_path: Path) -> None:
    trace = TraceSample()
    name = "execute_70_context_1(sq64sk64sqsq4096sqsk4096)_generation_6(sq6sk900sqsq6sqsk900)"
    trace.add(name, 0, 10, "user_annotation")
    (step,) = summarize(trace.write(tmp_path / "trace.json")).steps
    assert (step.kind, step.signature) == ("mixed", (1, 64, 6, 6))


def test_graph_launches_are_counted_and_make_no_steps(tmp_path: Path) -> None:
    trace = TraceSample()
    for number in range(3):
        trace.launch(100 * number, 20, number, "cudaGraphLaunch")
        for kernel in range(5):
            trace.kernel(f"kernel_{kernel}", 100 * number + 30 + 5 * kernel, 4, number)
    trace.launch(400, 5, 50)
    trace.kernel("eager", 420, 20, 50)
    report = report_of(trace.write(tmp_path / "trace.json"))
    assert report.graphs is not None
    assert (report.graphs.launches, report.graphs.kernels) == (3, 15)
    assert (report.graphs.launch_ms, report.graphs.kernel_ms) == pytest.approx((0.06, 0.06))
    assert report.graphs.share == pytest.approx(0.75)
    assert [row.kind for row in report.steps.rows] == ["whole trace"]


def test_exposed_communication_is_what_no_other_kernel_covers(tmp_path: Path) -> None:
    trace = TraceSample()
    trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 0, 100, 1, stream=20)
    trace.kernel("gemm", 50, 20, 2)
    trace.kernel("deep_ep::internode_ll::dispatch<true>", 90, 30, 3, stream=21)
    timeline = report_of(trace.write(tmp_path / "trace.json")).timeline
    assert (timeline.busy, timeline.communication, timeline.exposed) == pytest.approx((0.12, 0.12, 0.1))


def test_percentiles_are_values_that_occur() -> None:
    values = spread([float(number) for number in range(1, 101)])
    assert (values.mean, values.p50, values.p90, values.p99, values.most) == (50.5, 50, 90, 99, 100)
    assert spread([7.0]).p99 == 7.0
    assert spread([]).most == 0


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "communication"),
        ("_C::shm_allreduce", "communication"),
        ("gloo:all_reduce", "communication"),
        ("void deep_ep::internode_ll::dispatch<false, 3, 10, 7168>(void*)", "DeepEP dispatch"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>()", "DeepEP combine"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>", "attention"),
        ("kernel_unified_attention_2d", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "attention"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>", "attention"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("fused_moe_kernel", "MoE and grouped GEMM"),
        ("void deep_gemm::sm90_fp8_m_grouped_gemm_contiguous_1d2d_impl<...>", "MoE and grouped GEMM"),
        ("void vllm::moe::topkGating<8, 128, 4, 16, 32, int>", "top-k and routing"),
        ("void vllm::moe::moe_align_block_size_kernel<int>", "top-k and routing"),
        ("nvjet_tst_128x64_64x10_1x2_h_bz_TNT", "GEMM"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas", "GEMM"),
        ("void marlin::Marlin<...>", "GEMM"),
        ("Cijk_Alik_Bljk_BBS_BH_MT128x128x64", "GEMM"),
        ("aten::addmm", "GEMM"),
        ("void vllm::per_token_group_quant_8bit_kernel<__nv_bfloat16>", "quantisation"),
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>", "norms"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "rotary embedding"),
        ("void vllm::act_and_mul_kernel<...silu_kernel<...>>", "activation"),
        ("triton_poi_fused_add_mul_3", "Triton and fused"),
        ("_compute_slot_mapping_kernel", "Triton and fused"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "elementwise"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>",
            "reductions",
        ),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<...>", "indexing"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<...>", "indexing"),
        ("Memcpy HtoD (Pageable -> Device)", "copy HtoD"),
        ("Memcpy DtoH (Device -> Pinned)", "copy DtoH"),
        ("Memcpy DtoD (Device -> Device)", "copy DtoD"),
        ("Memset (Device)", "memset"),
        ("cudaLaunchKernel", "runtime calls"),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "convolution"),
        ("vllm/v1/worker/gpu_model_runner.py(3939): execute_model", "Python"),
        ("<built-in method item of Tensor object>", "Python"),
        ("fbgemm::bounds_check_indices", "indexing"),
        ("aten::new_empty", "views and allocation"),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>", "norms"),
        ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, silu>", "activation"),
        ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<...>", "rotary embedding"),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<...>", "sampling"),
        ("void flashinfer::sampling::TopKMaskLogitsKernel<...>", "sampling"),
        ("void flashinfer::MergeStatesKernel<...>", "attention"),
        ("void deep_gemm::sm90_fp8_mqa_logits<...>", "attention"),
        ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_swiGlu_dynB_sm100f", "MoE and grouped GEMM"),
        ("void tensorrt_llm::kernels::cutlass_kernels::doActivationKernel<...>", "activation"),
        ("void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<...>", "top-k and routing"),
        ("void deep_gemm::fp8_gemm_kernel<4096u, (deep_gemm::GemmType)0>", "GEMM"),
        ("_silu_mul_fp8_quant_deep_gemm", "quantisation"),
        ("cvt_fp16_to_fp4", "quantisation"),
        ("void vllm::convert_fp8_kernel<...>", "quantisation"),
        ("void vllm::apply_repetition_penalties_kernel<...>", "sampling"),
        ("_C::greedy_argmax", "sampling"),
        ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...>>", "indexing"),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 4, ...>", "indexing"),
        ("void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>", "indexing"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", "Triton and fused"),
        ("aten::_foreach_add_", "Triton and fused"),
        ("void fft2d_r2c_32x32<float>(float2*, float const*, cudnn::reduced_divisor)", "convolution"),
        ("aten::item", "copies"),
        ("aten::transpose", "views and allocation"),
        ("aten::slice", "views and allocation"),
        ("AddmmBackward0", "autograd"),
        ("something_nobody_knows", "other"),
    ],
)
def test_names_have_the_category_that_a_reader_would_give_them(name: str, category: str) -> None:
    assert category in CATEGORIES
    assert category_of(name) == category
