"""What the exporter sends, and how: to a collector, and to any OTLP endpoint."""

from __future__ import annotations

import array
import os
import threading
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from fake_port import FakePort
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_sink import OtlpSink, span_attributes
from standins import answer, closed_port_url, never, serving_in_thread

from vime_otel.data import settings
from vime_otel.data.errors import Unavailable, VimeOtelError
from vime_otel.data.otlp import CLOSING_EVENT, MAX_REQUEST_BYTES, STEP_EVENT, plain_value
from vime_otel.recorder import send, send_otlp
from vime_otel.recorder.send import send_to_collector
from vime_otel.recorder.send_otlp import send_to_environment
from vime_otel.recorder.window import Clock, Command, EngineStep, RankLog, StepCounts, Window
from vime_otel.recorder.write_directory import merge, to_recording

STEP_TICKS = 1_000_000
FRAMES = [("execute_model", ""), *((f"module_{n}:SomeModuleOfSomeModel", f"model.layers.{n}") for n in range(200))]


def window(steps: int, spans: int) -> Window:
    """Steps of two ranks with `spans` module calls each."""
    counts = StepCounts("decode", False, 0, 8, 8)
    made = [
        EngineStep(n, counts, (at := n * STEP_TICKS), at + 10, at + 900_000, at + 900_010, at, n) for n in range(steps)
    ]
    entries = array.array("q")
    starts = []
    for step in made:
        starts.append(len(entries))
        at = step.schedule_start + 100
        for span in range(spans):
            entries.extend((1 + span % 200, at + span * 10, at + span * 10 + 5))
        entries.extend((0, at, at + spans * 10))
    here = Clock("boot", 0, 1_700_000_000_000_000_000)
    ranks = [RankLog(rank, 0, rank, here, FRAMES, entries.tobytes(), starts) for rank in range(2)]
    return Window(Command("r" * 16, steps), {"engine": "e" * 16, **FakePort().describe()}, here, made, ranks)


class Collecting:
    """A stand-in collector that keeps what it gets; the first answers are those of `trouble`."""

    def __init__(self, trouble: list[int] | None = None) -> None:
        self.trouble = trouble or []
        self.bodies: list[tuple[str, bytes]] = []
        self.tokens: set[str | None] = set()

    async def take(self, request: web.Request) -> web.StreamResponse:
        if self.trouble:
            return web.Response(status=self.trouble.pop(0))
        self.tokens.add(request.headers.get("Authorization"))
        self.bodies.append((request.path, await request.read()))
        return web.Response()

    @property
    def routes(self) -> dict[str, Any]:
        return {"POST /v1/traces": self.take, "POST /v1/logs": self.take}


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def collected() -> Collecting:
    """A large window, sent."""
    collecting = Collecting()
    with serving_in_thread(collecting.routes) as (url,):
        send_to_collector(window(steps=6, spans=5000), url, "secret")
    return collecting


def logs(collecting: Collecting) -> list[Any]:
    return [
        record
        for path, body in collecting.bodies
        if path == "/v1/logs"
        for group in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in group.scope_logs
        for record in scope.log_records
    ]


def test_no_request_reaches_four_mebibytes(collected: Collecting) -> None:
    sizes = [len(body) for _, body in collected.bodies]
    assert max(sizes) < MAX_REQUEST_BYTES
    assert sum(sizes) > 2 * MAX_REQUEST_BYTES, "there was something to split"


def test_a_ranks_step_is_never_split(collected: Collecting) -> None:
    requests_of = defaultdict(set)
    for number, (path, body) in enumerate(collected.bodies):
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                rank = {pair.key: plain_value(pair.value) for pair in group.resource.attributes}.get("vime.rank")
                for scope in group.scope_spans:
                    for span in scope.spans:
                        requests_of[rank, span.trace_id].add(number)
    assert len(requests_of) == 6 * 3
    assert all(len(numbers) == 1 for numbers in requests_of.values())


def test_totals_go_first_and_the_closing_event_last_with_the_true_counts(collected: Collecting) -> None:
    paths = [path for path, _ in collected.bodies]
    first_trace = paths.index("/v1/traces")
    assert set(paths[:first_trace]) == {"/v1/logs"}
    names = [record.event_name for record in logs(collected)]
    assert names == [STEP_EVENT] * 18 + [CLOSING_EVENT]
    parts = {part["rank"]: part for part in plain_value(logs(collected)[-1].body)["parts"]}
    assert {rank: part["totals"] for rank, part in parts.items()} == {"engine": 6, "0": 6, "1": 6}
    assert (parts["0"]["spans"], parts["0"]["dropped"]) == (6 * 5001, 0)


def test_the_token_is_sent_with_everything(collected: Collecting) -> None:
    assert collected.tokens == {"Bearer secret"}


def test_an_overloaded_collector_is_tried_again() -> None:
    collecting = Collecting(trouble=[503, 429])
    with serving_in_thread(collecting.routes) as (url,):
        send_to_collector(window(steps=1, spans=1), url, "")
    assert len(logs(collecting)) == 4
    assert collecting.trouble == []


def test_a_collector_that_names_a_time_is_tried_again_no_later_for_that() -> None:
    collecting, told_to_wait = Collecting(), [True]

    async def maybe(request: web.Request) -> web.StreamResponse:
        if told_to_wait:
            told_to_wait.clear()
            return web.Response(status=503, headers={"Retry-After": "3600"})
        return await collecting.take(request)

    with serving_in_thread({**collecting.routes, "POST /v1/logs": maybe}) as (url,):
        sending = threading.Thread(target=send_to_collector, args=(window(steps=1, spans=1), url, ""), daemon=True)
        sending.start()
        sending.join(timeout=20)
    assert not sending.is_alive()
    assert len(logs(collecting)) == 4


def test_a_collector_that_accepts_and_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "TIMEOUT_SECONDS", 0.3)
    asked: list[str] = []

    async def silent(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return await never(request)

    with serving_in_thread({"POST /v1/logs": silent}) as (url,), pytest.raises(Unavailable, match="timed out"):
        send_to_collector(window(steps=1, spans=1), url, "")
    assert asked == ["/v1/logs"]


def test_what_answers_and_is_no_collector_may_be_one_later() -> None:
    with (
        serving_in_thread({"POST /v1/logs": answer(200, text="<html>Welcome</html>")}) as (url,),
        pytest.raises(Unavailable, match="no vime-otel collector: <html>Welcome"),
    ):
        send_to_collector(window(steps=1, spans=1), url, "")


def test_certificates_that_can_not_be_read_now_may_be_there_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CA.name, "/nowhere/ca.pem")
    with pytest.raises(Unavailable, match=r"VIME_OTEL_CA=/nowhere/ca\.pem can't be used"):
        send_to_collector(window(steps=1, spans=1), closed_port_url(), "")


def test_a_refusal_is_told_and_not_tried_again() -> None:
    refusing = {"POST /v1/logs": answer(400, text="no such thing")}
    with (
        serving_in_thread(refusing) as (url,),
        pytest.raises(VimeOtelError, match=r"refused logs: 400 no such thing"),
    ):
        send_to_collector(window(steps=1, spans=1), url, "")


def test_what_the_collector_does_not_take_is_an_error() -> None:
    rejected = ExportLogsServiceResponse()
    rejected.partial_success.rejected_log_records = 3
    rejected.partial_success.error_message = "no such recording here"

    async def take_nothing(request: web.Request) -> web.StreamResponse:
        return web.Response(body=rejected.SerializeToString(), content_type="application/x-protobuf")

    with (
        serving_in_thread({"POST /v1/logs": take_nothing}) as (url,),
        pytest.raises(VimeOtelError, match="did not take all logs: no such recording here"),
    ):
        send_to_collector(window(steps=1, spans=1), url, "")


def test_without_an_endpoint_in_the_environment_nothing_is_sent() -> None:
    send_to_environment(window(steps=1, spans=1))


def test_spans_go_to_the_standard_endpoint_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpSink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        send_to_environment(window(steps=2, spans=3))
    _assert_two_steps(sink)


def test_spans_go_to_the_standard_endpoint_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    collecting = Collecting()
    with serving_in_thread(collecting.routes) as (url,):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        send_to_environment(window(steps=2, spans=3))
    sink = OtlpSink()
    sink.requests = [ExportTraceServiceRequest.FromString(body) for _, body in collecting.bodies]
    _assert_two_steps(sink)


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_an_endpoint_with_a_path_is_spoken_to_in_http(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    collecting = Collecting()
    with serving_in_thread({"POST /base/v1/traces": collecting.take}) as (url,):
        monkeypatch.setenv(variable, f"{url}/base{'/v1/traces' if 'TRACES' in variable else ''}")
        send_to_environment(window(steps=1, spans=1))
    assert {path for path, _ in collecting.bodies} == {"/base/v1/traces"}


def test_on_the_port_of_otlp_over_http_that_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, spoken in (("http://host:4318", "http/protobuf"), ("http://host:4317/", "grpc"), ("host:4317", "grpc")):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        assert send_otlp._protocol() == spoken, url


@pytest.mark.parametrize(("variable", "value"), [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")])
def test_where_tracing_is_switched_off_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed_port_url())
    monkeypatch.setenv(variable, value)
    send_to_environment(window(steps=1, spans=1))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
    ],
)
def test_a_variable_that_can_not_be_used_is_told(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed_port_url())
    monkeypatch.setenv(variable, value)
    with pytest.raises(Unavailable, match=rf"OTEL_EXPORTER_OTLP_.*{value}"):
        send_to_environment(window(steps=1, spans=1))


def test_an_endpoint_that_refuses_is_told_with_its_reason_and_without_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving_in_thread({"POST /v1/traces": answer(401, text="")}) as (url,):
        place = url.removeprefix("http://")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://me:s3cr3t@{place}/v1/traces")
        with pytest.raises(
            Unavailable, match=rf"endpoint http://{place}/v1/traces did not take .*(401|Unauthorized)"
        ) as told:
            send_to_environment(window(steps=1, spans=1))
    assert "s3cr3t" not in str(told.value)


def _assert_two_steps(sink: OtlpSink) -> None:
    spans = sink.spans()
    assert len({span.trace_id for _, span in spans}) == 2
    assert {resource.get("vime.rank") for resource, _ in spans} == {None, 0, 1}
    roots = [span_attributes(span) for _, span in spans if not span.parent_span_id]
    assert [root["vime.step.requests"] for root in roots] == [8, 8]
    names = Counter(span.name for _, span in spans)
    assert (names["decode step"], names["schedule"], names["execute_model"]) == (2, 2, 2 * 2)
    assert names["module_0:SomeModuleOfSomeModel"] == 2 * 2
    assert len({span.span_id for _, span in spans}) == len(spans)


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = closed_port_url()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with pytest.raises(VimeOtelError, match=url):
        send_to_environment(window(steps=1, spans=1))


def test_resource_attributes_of_the_user_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "rollout")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=rl")
    with OtlpSink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        send_to_environment(window(steps=1, spans=1))
    assert {(resource["service.name"], resource["team"]) for resource, _ in sink.spans()} == {("rollout", "rl")}


def test_a_folder_tells_of_spans_that_a_full_log_dropped() -> None:
    recorded = window(3, 4)
    (first, second) = recorded.ranks
    folded = replace(first, folded={1: [((0,), 5, 1), ((0, 0), 3, 4)]})
    header = to_recording(replace(recorded, ranks=[folded, second])).header
    whole = to_recording(recorded).header
    assert whole["spans"]["dropped"] == 0
    assert header["spans"]["dropped"] == 5
    assert header["spans"]["received"] < whole["spans"]["received"]
    assert (
        merge([to_recording(recorded), to_recording(replace(recorded, ranks=[folded, second]))], []).header["spans"][
            "dropped"
        ]
        == 5
    )
