"""What a training log says about whether engines can be profiled."""

from __future__ import annotations

from collections.abc import Iterator

from vime_otel.data.summary import counted

from .findings import Finding, mend, note, ok
from .train_log import ROUTES, SYMPTOMS, TrainLog

PROFILER_CONFIG = (
    "--vllm-profiler-config"
    ' \'{"profiler":"torch","torch_profiler_dir":"/abs/dir","max_iterations":5,"ignore_frontend":true}\''
)
_RESTART = f"start the job with {PROFILER_CONFIG}, as one JSON argument"


def check_log(log: TrainLog) -> list[Finding]:
    """The guide's three facts (arguments parsed, forwarded, routes registered), the router, settings, failures."""
    return [
        _router(log),
        *_parsed(log),
        _forwarded(log),
        _routes(log),
        *_settings(log),
        *_failures(log),
    ]


def _router(log: TrainLog) -> Finding:
    if not log.routers:
        return mend(
            "router",
            "no line `Router launched at HOST:PORT`",
            "wait until the job has started its router, or name the log of the process that did",
        )
    again = f", the last of {len(log.routers)}: each job takes another port" if len(log.routers) > 1 else ""
    return ok("router", f"{log.router_url}{again}")


def _parsed(log: TrainLog) -> Iterator[Finding]:
    subject, config = "arguments parsed", log.parsed
    if config is None:
        yield mend(subject, "no line `vllm_profiler_config …`", _RESTART)
        return
    if not config:
        yield mend(subject, "vllm_profiler_config is None", _RESTART)
        return
    yield from _config(subject, config)


def _config(subject: str, config: dict[str, str]) -> Iterator[Finding]:
    profiler, directory = config.get("profiler", ""), config.get("torch_profiler_dir", "")
    if profiler != "torch":
        yield mend(subject, f"profiler={profiler or 'none'}: only `torch` writes traces", _RESTART)
        return
    if not directory.startswith("/") and "://" not in directory:
        yield mend(
            subject,
            f"torch_profiler_dir={directory or 'none'} is no absolute path: each process takes it from its own folder",
            _RESTART,
        )
        return
    yield ok(subject, f"profiler=torch, torch_profiler_dir={directory}")
    if config.get("max_iterations", "0") in ("0", "None"):
        yield note(
            subject,
            "no max_iterations: vLLM before 0.32 records until it is stopped",
            'put "max_iterations":5 into it, or let `vime-otel profile run` stop it',
        )


def _forwarded(log: TrainLog) -> Finding:
    subject = "forwarded to vllm serve"
    with_config = sum(bool(config) and (config or {}).get("profiler") == "torch" for config in log.launched)
    if not log.launched:
        return mend(
            subject, "no line `Launching vLLM server: …`", "wait until the engines start, or name the log that has them"
        )
    if not with_config:
        return mend(
            subject,
            f"{counted(len(log.launched), 'server')} launched without a --profiler-config for torch",
            f"{_RESTART}; an option given in parts (--vllm-profiler-config.profiler) is not forwarded",
        )
    if with_config < len(log.launched):
        return mend(
            subject, f"only {with_config} of {counted(len(log.launched), 'server')} got --profiler-config", _RESTART
        )
    return ok(subject, f"{counted(with_config, 'server')} with --profiler-config")


def _routes(log: TrainLog) -> Finding:
    subject = "routes registered"
    missing = [route for route in ROUTES if route not in log.routes]
    if not missing:
        return ok(subject, " and ".join(ROUTES))
    if not log.servers:
        return mend(subject, "no server has started yet", "wait for the line `Starting vLLM server on http://…`")
    return mend(
        subject,
        f"{' and '.join(missing)} not among the routes: a POST gets 404",
        f"vLLM registers them only with --profiler-config; {_RESTART}",
    )


def _settings(log: TrainLog) -> Iterator[Finding]:
    if value := log.settings.get("VLLM_RPC_TIMEOUT"):
        yield note(
            "settings",
            f"VLLM_RPC_TIMEOUT={value} means nothing to vLLM since 0.24",
            "a trace is written inside a step: VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (default 300) bounds it; set it in"
            " env_vars of the Ray runtime env, before the engines start",
        )


_MEANING = dict(
    zip(
        SYMPTOMS,
        (
            (
                "a profiler did not start, though /start_profile answers 200",
                "the lines around it say why: often another tool holds CUPTI (nsys, DCGM), or torch_profiler_dir"
                " can't be written",
            ),
            (
                "a profiler's trace could not be written",
                "the lines around it say why: a full disk, or a folder that can't be written",
            ),
            ("a start got 404: that server has no profiler routes", _RESTART),
            ("a start got 409: a profile was running already", "`vime-otel profile stop`, or start with --restart"),
            (
                "a step took longer than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, as writing a long trace does: vLLM ends"
                " the engine",
                "raise it in env_vars of the Ray runtime env, profile fewer --iterations, or turn"
                " torch_profiler_with_stack off",
            ),
        ),
        strict=True,
    )
)


def _failures(log: TrainLog) -> Iterator[Finding]:
    for text, (meaning, fix) in _MEANING.items():
        if times := log.symptoms.get(text):
            yield mend("failures", f"{meaning} ({counted(times, 'line')})", fix)
