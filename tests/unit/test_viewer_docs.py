"""docs/viewer.md and docs/api.md say what there is."""

from __future__ import annotations

import re
from pathlib import Path

from samples import RECORDING_ID, write_sample

from viewer.app import Config, create_app
from viewer.comparing import KEYS as COMPARE_KEYS
from viewer.exports import EXPORTS
from viewer.view import KEYS

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text()
FEATURES = (ROOT / "docs" / "viewer.md").read_text()


def test_every_test_that_the_table_of_features_names_is_there() -> None:
    rows = [line.split("|") for line in FEATURES.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row[-2])
        files = re.findall(r"`(tests/[\w/]+\.py)`", row[-2])
        assert named or files, row[1]
        assert all(f"def {name}(" in tests for name in named), row[1]
        assert all((ROOT / file).is_file() for file in files), row[1]
        assert all(cell.strip() for cell in row[1:-1]), row[1]


def test_every_route_of_the_api_is_described(tmp_path: Path) -> None:
    app = create_app(Config(tmp_path, scratch=tmp_path))
    routes = {rule.rule for rule in app.url_map.iter_rules() if rule.rule.startswith("/api/")} - {"/api/<path:path>"}
    assert len(routes) >= 9
    for route in routes:
        assert route.replace("<which>", "RUN").replace("<name>", "NAME") in API, route


def test_every_key_of_a_query_and_every_download_is_described() -> None:
    for key in (*KEYS, *COMPARE_KEYS):
        assert f"`{key}`" in API, key
    for form in EXPORTS.values():
        assert f"`{form.extension}`" in API, form.extension


def test_every_key_of_an_answer_is_described(tmp_path: Path) -> None:
    write_sample(tmp_path)
    client = create_app(tmp_path).test_client()
    graph = client.get(f"/api/runs/{RECORDING_ID}/flamegraph").json
    compared = client.get(f"/api/compare?a={RECORDING_ID}&a_steps=1-8&b_steps=10-19").json
    keys = {*graph, *graph["tree"], *compared["sides"][0], *compared["changes"][0], *compared["loads"][0]}
    keys |= {"verdict", "summary", "notes", "changes", "sides", "outlier", "trace_link"}
    for key in keys:
        assert re.search(rf"\b{key}\b", API), key
