"""Files of others and our own exports, whatever is in them: a profile, or one clear line."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import write_sample

from viewer.app import Config, create_app
from vime_otel.data import folded
from vime_otel.data.errors import VimeOtelError
from vime_otel.data.find_runs import find_run, list_runs
from vime_otel.data.imported import write_imported
from vime_otel.data.profile import Profile
from vime_otel.data.profile_file import read_profile

SPEEDSCOPE: dict[str, Any] = {
    "shared": {"frames": [{"name": "a"}, {"name": "b"}]},
    "profiles": [
        {"type": "sampled", "name": "p", "unit": "seconds", "samples": [[0], [0, 1]], "weights": [1, 2.5]},
        {
            "type": "evented",
            "unit": "milliseconds",
            "startValue": 0,
            "events": [{"type": "O", "frame": 0, "at": 0}, {"type": "C", "frame": 0, "at": 2}],
        },
    ],
}
STACKS: dict[str, Any] = {
    "format": "vime-otel stacks",
    "version": 1,
    "kind": "all",
    "steps": 1,
    "unit": "bytes",
    "stacks": ["a", "a;b"],
    "self": [1, 2],
    "calls": [0, 1],
}
PAGE: dict[str, Any] = {
    "kind": "decode",
    "steps": 3,
    "unit": "microseconds",
    "tree": {
        "made_up_root": True,
        "names": ["all", "b"],
        "name": [0, 1],
        "depth": [0, 1],
        "self": [0, 5],
        "calls": [0, 1],
    },
}
ODD = (None, -1, 1.5, 2**64 - 1, 10**40, "x", "", [], {}, True, [[]], "../../x", 100_000)
NOTHING = object()


def in_a_page(document: object) -> bytes:
    return f'<!doctype html><script type="application/json" id="profile">{json.dumps(document)}</script>'.encode()


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document but the whole, as the keys that lead there."""
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in entries:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def changed(document: Any, place: tuple[Any, ...], value: object) -> Any:
    made = copy.deepcopy(document)
    within = made
    for key in place[:-1]:
        within = within[key]
    if value is NOTHING:
        del within[place[-1]]
    else:
        within[place[-1]] = value
    return made


@pytest.mark.parametrize("kind", ["speedscope", "stacks", "page"])
def test_a_document_that_is_wrong_anywhere_is_read_or_refused_in_one_line(kind: str) -> None:
    document = {"speedscope": SPEEDSCOPE, "stacks": STACKS, "page": PAGE}[kind]
    refused = 0
    for place in places(document):
        for value in (*ODD, NOTHING):
            made = changed(document, place, value)
            content = in_a_page(made) if kind == "page" else json.dumps(made).encode()
            told = ""
            try:
                profile = read_profile(content)
            except VimeOtelError as error:
                told = str(error)
            refused += bool(told)
            assert "\n" not in told
            assert "Error:" not in told
            assert told or all(0 <= own < 2**63 for own in profile.self_values.values()), (place, value)
    assert refused > 100


@pytest.mark.parametrize("form", ["stacks", "page"])
def test_the_kind_that_a_file_names_is_no_path(tmp_path: Path, form: str) -> None:
    """It becomes a part of files' names: one could lie outside the viewer's folder."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").mkdir()
    evil = {**(STACKS if form == "stacks" else PAGE), "kind": "../../evil"}
    content = json.dumps(evil).encode() if form == "stacks" else in_a_page(evil)
    client = create_app(Config(tmp_path / "runs", scratch=tmp_path / "scratch")).test_client()
    answer = client.post("/api/files?name=x", data=content)
    assert (answer.status_code, "'../../evil' is no kind of step" in answer.json["error"]["message"]) == (415, True)
    assert not list(tmp_path.rglob("evil*"))
    with pytest.raises(ValueError, match="is no kind of step"):
        Profile({"a": 1}, kind="a/b")


def test_profiles_that_count_different_things_are_told() -> None:
    profiles = [{"type": "sampled", "unit": unit, "samples": [[0]], "weights": [1]} for unit in ("none", "bytes")]
    content = json.dumps({**SPEEDSCOPE, "profiles": profiles}).encode()
    with pytest.raises(VimeOtelError, match="count different things: bytes, none"):
        read_profile(content)


def test_a_file_that_is_brought_twice_is_one_run_under_its_latest_name(tmp_path: Path) -> None:
    write_sample(tmp_path / "runs")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    content = b"main;work 3\n"
    run_id = write_imported(scratch, read_profile(content), "before.txt", content)
    earlier = find_run(scratch, run_id).path
    earlier.rename(scratch / f"20200101T000000Z-{run_id[:8]}")
    client = create_app(Config(tmp_path / "runs", scratch=scratch)).test_client()
    answer = client.post("/api/files?name=after.txt", data=content)
    assert answer.json["id"] == run_id
    assert client.get(answer.json["address"]).status_code == 200
    assert client.get(f"/api/runs/{run_id}").json["label"] == "after.txt"
    assert len(list_runs(scratch)) == 1


def test_stacks_too_deep_to_be_summed_one_by_one_are_refused_where_they_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each frame of a stack implies a stack as long as all above it: a megabyte becomes hundreds of gigabytes."""
    monkeypatch.setattr(folded, "_MOST_CHARACTERS", 100_000)
    content = f"{';'.join(['f'] * 2000)} 1\n".encode()
    run_id = write_imported(tmp_path, read_profile(content), "deep", content)
    client = create_app(tmp_path).test_client()
    answer = client.get(f"/runs/{run_id}/all.csv")
    assert (answer.status_code, "too deep to tell each one" in answer.text) == (404, True)
    assert "too deep" in client.get(f"/api/compare?a={run_id}").json["error"]["message"]
    for whole in ("folded", "speedscope.json", "svg", "html"):
        assert client.get(f"/runs/{run_id}/all.{whole}").status_code == 200
