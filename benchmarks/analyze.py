"""`make bench-analyze`: a trace of 1 GB read by us, by `json.load` with a sum over kernels, by HolisticTraceAnalysis.

The trace is a real one with its events repeated. Every contender reads the same file in a process of its own, by turns;
its time is the wall clock's, its memory the peak of its resident set.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from repeated_trace import repeat

CASES = Path(__file__).parents[2] / "shared" / "cases" / "torch-traces"
SEED = CASES / "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"

OURS = """
import sys
from pathlib import Path
from vime_otel.analyze.engines import group
from vime_otel.analyze.parallel import summarize_all
from vime_otel.analyze.report import build
from vime_otel.analyze.thresholds import parse
if __name__ == "__main__":
    summaries, unread = summarize_all([Path(sys.argv[1])], None, lambda path, count: None)
    report = build(sys.argv[1], group(summaries), parse(()), 15, unread)
    rank = report.engines[0].ranks[0]
    print(rank.events, sum(row.ms for row in rank.categories))
"""
JSON_LOAD = """
import json, sys
with open(sys.argv[1]) as file:
    trace = json.load(file)
sums = {}
for event in trace["traceEvents"]:
    if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
        sums[event["name"]] = sums.get(event["name"], 0) + event["dur"]
print(len(trace["traceEvents"]), sum(sums.values()) / 1000)
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
print(len(analysis.t.traces[0]), float(kernels["sum (us)"].sum()) / 1000)
"""


def measure(python: str, script: str, trace: Path) -> tuple[float, float, str]:
    """(seconds, peak MB, what it printed) of a script on the trace."""
    command = [python, "-c", _WITH_MEMORY % (script, str(trace))]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"status {done.returncode}").splitlines()[-1])
    *printed, memory = done.stdout.strip().splitlines()
    return seconds, float(memory) / 1024, printed[-1]


# A script of its own, so that processes which it starts can import it.
_WITH_MEMORY = """
import resource, runpy, sys, tempfile
script, sys.argv[1:] = %r, [%r]
with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
    file.write(script)
    file.flush()
    runpy.run_path(file.name, run_name="__main__")
print(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""


def main() -> int:
    """Measure, print, end with the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=Path, default=SEED, help="the real trace that is repeated")
    parser.add_argument("--size", type=float, default=1.0, metavar="GB", help="size of the file that is read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta", metavar="PYTHON", help="a Python that has HolisticTraceAnalysis")
    options = parser.parse_args()
    if not options.seed.is_file():
        print(f"skipped: {options.seed} is not there; name a torch trace with --seed")
        return 0
    contenders = {"vime-otel": (sys.executable, OURS), "json.load": (sys.executable, JSON_LOAD)}
    if options.hta:
        contenders["HolisticTraceAnalysis"] = (options.hta, HTA)
    else:
        print("HolisticTraceAnalysis: skipped, no --hta PYTHON that has it was named")
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "large.pt.trace.json"
        size, times = repeat(options.seed, trace, int(options.size * 1e9))
        print(
            f"{size / 1e9:.3f} GB: the events of {options.seed.name}, {times} times; {options.rounds} rounds, medians"
        )
        results = _rounds(contenders, trace, options.rounds)
    return _print(results)


def _rounds(
    contenders: dict[str, tuple[str, str]], trace: Path, rounds: int
) -> dict[str, list[tuple[float, float, str]]]:
    """What each contender came to in each round; one that fails is left out, with the reason."""
    results: dict[str, list[tuple[float, float, str]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (python, script) in contenders.items():
            if name not in results:
                continue
            try:
                results[name].append(measure(python, script, trace))
            except RuntimeError as error:
                print(f"{name}: left out, it failed: {error}")
                del results[name]
    return results


def _print(results: dict[str, list[tuple[float, float, str]]]) -> int:
    medians = {}
    for name, runs in results.items():
        seconds, memory = (statistics.median(run[n] for run in runs) for n in (0, 1))
        medians[name] = (seconds, memory)
        print(f"  {name:22s} {seconds:7.1f} s {memory:8.0f} MB   events, ms of kernels: {runs[-1][2]}")
    ours = medians["vime-otel"]
    for name, (seconds, memory) in medians.items():
        if name != "vime-otel":
            short = name.replace(".", "_").lower()
            print(f"RATIO analyze_vs_{short}_time {ours[0] / seconds:.3f}")
            print(f"RATIO analyze_vs_{short}_memory {ours[1] / memory:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
