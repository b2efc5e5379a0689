"""deploy/compose: every file in the terms of the program that reads it, and all of them of one another.

The keys are those of Jaeger 2.17, Tempo 2.8, the OpenTelemetry Collector 0.130, Prometheus 3.5 and Grafana 12.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import requests
import yaml
from compose_spec import PyCompose
from prometheus_client.parser import text_string_to_metric_families
from running_collector import config, running

from collector.forwarding.endpoint import parse_endpoint
from vime_otel.cli.serve import serve
from vime_otel.cli.view import view
from vime_otel.data import otlp, settings

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
VIEWER_RUN = "http://localhost:8080/runs/"

ANY: dict[str, Any] = {}
"""Below here any key is the user's own."""

NAMED = "*"
"""Stands for names that the file itself gives."""

OTLP_RECEIVER = {"protocols": {"grpc": {"endpoint": None}, "http": {"endpoint": None}}}
PIPELINES = {NAMED: {"receivers": None, "processors": None, "exporters": None}}
KNOWN: dict[str, Any] = {
    "jaeger.yaml": {
        "service": {"extensions": None, "pipelines": PIPELINES},
        "extensions": {
            "jaeger_query": {
                "storage": {"traces": None},
                "ui": {"config_file": None},
                "http": {"endpoint": None},
            },
            "jaeger_storage": {"backends": {NAMED: {"memory": {"max_traces": None}}}},
        },
        "receivers": {"otlp": OTLP_RECEIVER},
        "processors": {"batch": None},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": None}},
    },
    "tempo.yaml": {
        "server": {"http_listen_port": None},
        "distributor": {"receivers": {"otlp": OTLP_RECEIVER}},
        "compactor": {"compaction": {"block_retention": None}},
        "storage": {"trace": {"backend": None, "wal": {"path": None}, "local": {"path": None}}},
        "usage_report": {"reporting_enabled": None},
    },
    "otel-gateway.yaml": {
        "receivers": {"otlp": OTLP_RECEIVER},
        "processors": {
            "memory_limiter": {"check_interval": None, "limit_percentage": None, "spike_limit_percentage": None},
            "batch": {"send_batch_size": None, "send_batch_max_size": None},
        },
        "exporters": {
            "otlp": {
                "endpoint": None,
                "headers": ANY,
                "tls": {"insecure": None},
                "retry_on_failure": {"max_elapsed_time": None},
                "sending_queue": {"queue_size": None},
            }
        },
        "service": {"pipelines": PIPELINES},
    },
    "prometheus.yaml": {
        "global": {"scrape_interval": None},
        "scrape_configs": [
            {
                "job_name": None,
                "authorization": {"credentials_file": None},
                "static_configs": [{"targets": None}],
            }
        ],
    },
    "grafana/provisioning/datasources/datasources.yaml": {
        "apiVersion": None,
        "datasources": [
            {
                "name": None,
                "uid": None,
                "type": None,
                "access": None,
                "url": None,
                "isDefault": None,
                "jsonData": {"nodeGraph": {"enabled": None}, "timeInterval": None},
                "correlations": [
                    {
                        "label": None,
                        "description": None,
                        "type": None,
                        "config": {
                            "field": None,
                            "target": {"url": None},
                            "transformations": [{"type": None, "field": None, "expression": None, "mapValue": None}],
                        },
                    }
                ],
            }
        ],
    },
    "grafana/provisioning/dashboards/dashboards.yaml": {
        "apiVersion": None,
        "providers": [{"name": None, "type": None, "disableDeletion": None, "options": {"path": None}}],
    },
    "jaeger-ui.json": {
        "linkPatterns": [{"type": None, "key": None, "url": None, "text": None}],
        "menu": [{"label": None, "items": [{"label": None, "url": None}]}],
        "topTagPrefixes": None,
    },
}


def unknown(content: Any, known: Any, place: str = "") -> list[str]:
    """The places of keys that the program does not know."""
    if known is ANY or known is None:
        return [] if known is ANY or not isinstance(content, dict) else [place]
    if isinstance(known, list):
        return [found for number, each in enumerate(content) for found in unknown(each, known[0], f"{place}[{number}]")]
    assert isinstance(content, dict), place
    found = []
    for key, value in content.items():
        below = known.get(key, known.get(NAMED, key))
        found += [f"{place}.{key}"] if below is key else unknown(value, below, f"{place}.{key}")
    return found


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.parametrize("name", KNOWN)
def test_a_file_has_no_key_that_its_program_does_not_know(name: str) -> None:
    assert unknown(load(name), KNOWN[name]) == []


def test_an_unknown_key_would_be_found() -> None:
    content = load("tempo.yaml")
    content["storage"]["trace"]["local"]["paht"] = "/x"
    assert unknown(content, KNOWN["tempo.yaml"]) == [".storage.trace.local.paht"]


def test_every_file_is_checked() -> None:
    checked = {*KNOWN, "compose.yaml", "grafana/dashboards/vime-otel.json", "README.md"}
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert {name for name in files if not name.startswith("Dockerfile")} == checked


# -- compose.yaml -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = load("compose.yaml")["services"]
    return found


def filled_in(text: str) -> str:
    """As compose fills it in where the environment has nothing but what is asked for."""
    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", lambda found: found[3] if found[2] == "-" else "x", text)


def test_the_compose_file_is_of_the_specification() -> None:
    content = load("compose.yaml")
    PyCompose.from_json(json.dumps(content)).to_spec()
    content["services"]["viewer"]["restrat"] = "always"
    with pytest.raises(ValueError, match="restrat"):
        PyCompose.from_json(json.dumps(content))


def test_docker_takes_the_compose_file() -> None:
    asked = ["docker", "compose", "version"]
    if shutil.which("docker") is None or subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("there is no docker compose here")
    command = ["docker", "compose", "-f", str(FOLDER / "compose.yaml"), "--profile", "gateway", "config", "--quiet"]
    subprocess.run(command, env={**os.environ, settings.TOKEN.name: "x"}, check=True, timeout=60)


@pytest.mark.parametrize(("service", "command"), [("collector", serve), ("viewer", view)])
def test_our_commands_know_the_options(service: str, command: click.Command, services: dict[str, Any]) -> None:
    name, *args = map(filled_in, services[service]["command"])
    assert name == command.name
    command.make_context(name, args)


def test_the_collector_forwards_to_services_that_are_there(services: dict[str, Any]) -> None:
    forwards = [arg.removeprefix("--forward=") for arg in services["collector"]["command"] if "--forward=" in arg]
    for url in forwards:
        endpoint = parse_endpoint(url)
        host, port = endpoint.target.split(":")
        assert (host in services, endpoint.over_grpc) == (True, True)
        receivers = load(f"{host}.yaml")
        otlp_in = (receivers.get("receivers") or receivers["distributor"]["receivers"])["otlp"]
        assert otlp_in["protocols"]["grpc"]["endpoint"] == f"0.0.0.0:{port}"
    assert len(forwards) == 2


def test_only_the_collector_is_open_to_other_machines_and_asks_for_the_token(services: dict[str, Any]) -> None:
    open_to_all = {name for name, of in services.items() for port in of.get("ports", []) if port.count(":") < 2}
    assert open_to_all == {"collector"}
    assert settings.TOKEN.name in services["collector"]["environment"]
    assert "--insecure" not in services["collector"]["command"]


def test_mounted_files_and_volumes_are_there(services: dict[str, Any]) -> None:
    volumes = load("compose.yaml")["volumes"]
    for service in services.values():
        for source, *_ in (each.split(":") for each in service.get("volumes", [])):
            assert (FOLDER / source).exists() if source.startswith(".") else source in volumes, source
        for other in service.get("depends_on", []):
            assert other in services


def test_images_are_pinned(services: dict[str, Any]) -> None:
    images = {of["image"] for of in services.values() if "build" not in of}
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in images), images


# -- what the files say of one another --------------------------------------------------------


@pytest.mark.parametrize("name", ["jaeger.yaml", "otel-gateway.yaml"])
def test_pipelines_name_components_that_are_configured(name: str) -> None:
    content = load(name)
    for pipeline in content["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= content[kind].keys()
    assert set(content["service"].get("extensions", [])) == set(content.get("extensions", {}))


def test_jaeger_links_back_by_an_attribute_that_spans_have() -> None:
    patterns = load("jaeger-ui.json")["linkPatterns"]
    assert {pattern["type"] for pattern in patterns} == {"tags", "process"}
    for pattern in patterns:
        assert pattern["key"] == otlp.RECORDING_ID
        assert pattern["url"] == f"{VIEWER_RUN}#{{{otlp.RECORDING_ID}}}"
    backends = load("jaeger.yaml")["extensions"]["jaeger_storage"]["backends"]
    assert load("jaeger.yaml")["exporters"]["jaeger_storage_exporter"]["trace_storage"] in backends


def test_grafana_links_a_span_to_its_flame_graph() -> None:
    tempo, _ = load("grafana/provisioning/datasources/datasources.yaml")["datasources"]
    (correlation,) = tempo["correlations"]
    assert correlation["type"] == "external"
    # Grafana fills environment variables in: $$ stands for a dollar sign.
    assert correlation["config"]["target"]["url"] == f"{VIEWER_RUN}$${{recording}}"
    (transformation,) = correlation["config"]["transformations"]
    tags = json.dumps(
        [{"key": "service.name", "value": "vllm"}, {"key": otlp.RECORDING_ID, "value": "94f40cd57b85b001"}],
        separators=(",", ":"),
    )
    found = re.search(transformation["expression"], tags)
    assert found is not None
    assert (transformation["mapValue"], found[1]) == ("recording", "94f40cd57b85b001")


def test_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    dashboard = json.loads((FOLDER / "grafana/dashboards/vime-otel.json").read_text())
    uids = {each["uid"] for each in load("grafana/provisioning/datasources/datasources.yaml")["datasources"]}
    used = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] in uids
        for target in panel["targets"]:
            used |= set(re.findall(r"\b(?:otelcol|vime_otel)_\w+", target.get("expr", "")))
    endpoint = parse_endpoint("http://127.0.0.1:1")
    with running(config(tmp_path, forward=(endpoint,), max_disk=2**40, drain_seconds=0)) as collector:
        text = requests.get(f"{collector.url}/metrics", timeout=10).text
    families = list(text_string_to_metric_families(text))
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert used
    assert used <= known


def test_the_dashboards_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads((FOLDER / "grafana/dashboards/vime-otel.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells
        assert max(x for x, _ in own) < 24
        cells |= own


def test_the_table_of_steps_links_to_flame_graphs() -> None:
    panels = json.loads((FOLDER / "grafana/dashboards/vime-otel.json").read_text())["panels"]
    (table,) = [panel for panel in panels if panel["type"] == "table"]
    (override,) = table["fieldConfig"]["overrides"]
    assert override["matcher"]["options"] == otlp.RECORDING_ID
    (link,) = [link for each in override["properties"] if each["id"] == "links" for link in each["value"]]
    assert link["url"] == f"{VIEWER_RUN}${{__value.raw}}"
    asked = re.findall(r"span\.(vime[\w.]+)", table["targets"][0]["query"])
    row = [f"vime.step.{name}" for name in ("kind", "index", "requests", "execution")]
    assert set(asked) == {otlp.RECORDING_ID, *row}


def test_the_gateway_shows_the_token_and_the_scraper_reads_it(services: dict[str, Any]) -> None:
    headers = load("otel-gateway.yaml")["exporters"]["otlp"]["headers"]
    assert headers == {"authorization": f"Bearer ${{env:{settings.TOKEN.name}}}"}
    assert settings.TOKEN.name in services["gateway"]["environment"]
    (scrape,) = load("prometheus.yaml")["scrape_configs"]
    secret = Path(scrape["authorization"]["credentials_file"]).name
    assert secret in services["prometheus"]["secrets"]
    assert load("compose.yaml")["secrets"][secret] == {"environment": settings.TOKEN.name}
