"""`/metrics` for Prometheus: the collector's counts, named as the OpenTelemetry Collector's where that has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector as MetricSource

from .counts import Counts
from .disk import DiskLimit
from .forwarding.forwarder import Forwarder

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RECEIVER = "otlp"
_Labels = tuple[str, ...]
_Values = Mapping[Any, float]


class Metrics(MetricSource):
    """The families, made anew from the counts each time they are asked for."""

    def __init__(self, counts: Counts, refresh: Callable[[], None]) -> None:
        """`refresh` brings counts up to date that nobody counts as they happen."""
        self.forwarders: list[Forwarder] = []
        self.disk: DiskLimit | None = None
        self._counts = counts
        self._refresh = refresh
        self._process = psutil.Process()
        self._started = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        self._refresh()
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Any]:
        """Nothing: registering must not ask for values."""
        return ()

    def collect(self) -> Iterator[Any]:
        """The families."""
        yield from self._received()
        yield from self._journal()
        yield from self._state()
        yield from self._forwarded()
        yield from self._kept_on_disk()
        yield from self._of_process()

    def _received(self) -> Iterator[Any]:
        counts = self._counts
        for signal in ("spans", "log_records"):
            accepted = {
                (_RECEIVER, transport): value for (of, transport), value in counts.accepted.items() if of == signal
            }
            what = signal.replace("_", " ")
            yield _counter(
                f"otelcol_receiver_accepted_{signal}", f"{what} of requests that were answered with success",
                ("receiver", "transport"), accepted or {(_RECEIVER, "grpc"): 0, (_RECEIVER, "http"): 0},
            )  # fmt: skip
        yield _counter(
            "vime_otel_requests", "requests that were answered with success", ("signal", "transport"), counts.requests
        )
        yield _counter(
            "vime_otel_received_bytes", "bytes of these, after decompression", ("signal", "transport"),
            counts.received_bytes,
        )  # fmt: skip
        yield _counter(
            "vime_otel_refused_requests", "requests that were answered with an error",
            ("signal", "transport", "reason"), counts.refused,
        )  # fmt: skip
        yield _counter("vime_otel_kept_items", "items that were summed", ("signal",), _single(counts.kept))
        yield _counter(
            "vime_otel_duplicate_items", "items that had been summed before", ("signal",), _single(counts.duplicate)
        )
        yield _counter("vime_otel_dropped_items", "items that were passed over", ("signal", "reason"), counts.dropped)

    def _journal(self) -> Iterator[Any]:
        counts = self._counts
        yield _counter("vime_otel_journal_bytes", "bytes written into journals", (), {(): counts.journal_bytes})
        yield _counter("vime_otel_journal_commits", "group commits", (), {(): counts.journal_commits})
        yield _counter("vime_otel_journal_sync_seconds", "time that these took", (), {(): counts.journal_sync_ns / 1e9})
        yield _counter(
            "vime_otel_journal_failures", "group commits that the disk refused", (), {(): counts.journal_failures}
        )
        yield _counter(
            "vime_otel_journal_torn_bytes", "bytes cut off from journals at the start", (), {(): counts.torn_bytes}
        )

    def _state(self) -> Iterator[Any]:
        counts = self._counts
        yield _gauge("vime_otel_recordings", "recordings by state", ("state",), _single(counts.recordings))
        yield _gauge("vime_otel_recorders", "recorders that were heard lately", (), {(): counts.recorders_connected})
        yield _gauge("vime_otel_polls_waiting", "long polls that are open", (), {(): counts.polls_waiting})
        yield _gauge("vime_otel_pending_requests", "requests in hand", (), {(): counts.pending_requests})
        yield _gauge("vime_otel_pending_bytes", "memory that these take", (), {(): counts.pending_bytes})
        yield _gauge("vime_otel_pending_bytes_limit", "the most of it", (), {(): counts.memory_limit_bytes})
        yield _gauge("vime_otel_foreign_services", "services folded today", (), {(): counts.foreign_services})
        yield _gauge("vime_otel_foreign_open_spans", "spans that may get parents", (), {(): counts.foreign_open_spans})

    def _forwarded(self) -> Iterator[Any]:
        by_url = {(each.endpoint.url,): each for each in self.forwarders}

        def of(read: Callable[[Forwarder], float]) -> _Values:
            return {labels: read(each) for labels, each in by_url.items()}

        label = ("exporter",)
        yield _counter(
            "otelcol_exporter_sent_spans", "spans that an endpoint took", label, of(lambda each: each.counts.sent)
        )
        yield _counter(
            "otelcol_exporter_send_failed_spans", "spans that an endpoint refused for good", label,
            of(lambda each: each.counts.refused),
        )  # fmt: skip
        yield _counter(
            "vime_otel_forward_over_limit_spans", "spans left out since their trace had become too large", label,
            of(lambda each: each.counts.over_limit),
        )  # fmt: skip
        yield _counter(
            "vime_otel_forward_failed_requests", "tries that are repeated", label,
            of(lambda each: each.counts.failed_requests),
        )  # fmt: skip
        yield _gauge(
            "vime_otel_forward_waiting_bytes", "journal yet to be forwarded", label,
            of(lambda each: each.counts.waiting_bytes),
        )  # fmt: skip

    def _kept_on_disk(self) -> Iterator[Any]:
        if self.disk is not None:
            counts = self.disk.counts
            yield _gauge("vime_otel_runs_bytes", "disk space of all runs", (), {(): counts.used_bytes})
            yield _counter("vime_otel_removed_runs", "runs removed to keep a limit", (), {(): counts.removed_runs})
            yield _counter("vime_otel_removed_bytes", "what these took", (), {(): counts.removed_bytes})

    def _of_process(self) -> Iterator[Any]:
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
        yield _counter(
            "otelcol_process_uptime_seconds", "seconds since the start", (), {(): time.time() - self._started}
        )
        yield _counter("otelcol_process_cpu_seconds", "user and system time", (), {(): times.user + times.system})
        yield _gauge("otelcol_process_memory_rss_bytes", "resident memory", (), {(): memory.rss})


def _single(values: Mapping[str, int]) -> _Values:
    return {(key,): value for key, value in values.items()}


def _counter(name: str, text: str, labels: _Labels, values: _Values) -> Any:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _gauge(name: str, text: str, labels: _Labels, values: _Values) -> Any:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _filled(family: Any, values: _Values) -> Any:
    for labels, value in sorted(values.items()):
        family.add_metric(list(labels), value)
    return family
