"""`--max-disk`: the oldest runs go, and never one that is being recorded or kept."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from pathlib import Path

import orjson
import pytest
from running_collector import ControlClient, config, running, until
from simulated_recorder import SimulatedRecorder

from collector import disk
from collector.disk import DiskLimit, removable, size_of
from vime_otel.cli.serve import disk_size
from vime_otel.data.errors import UsageError
from vime_otel.data.find_runs import list_runs
from vime_otel.data.run_files import HEADER_FILE, OPEN_FILE

RUN_BYTES = 100_000


def make_run(root: Path, day: int, complete: bool | None = True, *files: str) -> Path:
    """A run of about RUN_BYTES, recorded on that day."""
    run = root / f"202601{day:02d}T000000Z-{day:08d}"
    (run / "ranks").mkdir(parents=True)
    header = {"format": 1, "id": f"{day:016x}", "created": f"2026-01-{day:02d}T00:00:00+00:00", "complete": complete}
    (run / HEADER_FILE).write_bytes(orjson.dumps(header))
    (run / "ranks" / "file").write_bytes(b"x" * RUN_BYTES)
    for name in files:
        (run / name).touch()
    return run


def names(root: Path) -> list[int]:
    """The days of the runs that are there."""
    return sorted(int(path.name[6:8]) for path in root.iterdir() if path.is_dir())


def test_the_oldest_go_until_the_limit_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for day in (3, 1, 5, 2, 4):
        make_run(tmp_path, day)
    limit = DiskLimit(tmp_path, int(3.5 * RUN_BYTES))
    limit.enforce()
    assert names(tmp_path) == [3, 4, 5]
    assert (limit.counts.removed_runs, limit.counts.used_bytes <= 3.5 * RUN_BYTES) == (2, True)
    assert sum(size_of(path) for path in tmp_path.iterdir()) == limit.counts.used_bytes
    assert len([record for record in caplog.records if record.getMessage().startswith("removed the run")]) == 2
    limit.enforce()
    assert names(tmp_path) == [3, 4, 5]


def test_what_is_being_recorded_or_kept_stays_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(tmp_path, 1, True, disk.KEEP_FILE)
    make_run(tmp_path, 2, True, OPEN_FILE)
    of_today = make_run(tmp_path, 3, None) / HEADER_FILE
    header = orjson.loads(of_today.read_bytes())
    of_today.write_bytes(orjson.dumps(header | {"created": f"{datetime.now(timezone.utc):%Y-%m-%d}T00:00:00+00:00"}))
    make_run(tmp_path, 4, False)
    make_run(tmp_path, 6, None)  # nobody adds to a day that is long over
    unfinished = tmp_path / "20260105T000000Z-00000005"
    unfinished.mkdir()
    (unfinished / "spans.otlp").write_bytes(b"x" * RUN_BYTES)
    (tmp_path / "not-a-run").write_text("of somebody else")
    DiskLimit(tmp_path, RUN_BYTES).enforce()
    assert names(tmp_path) == [1, 2, 3, 5]
    assert (tmp_path / "not-a-run").is_file()
    assert "--max-disk allows 100000" in caplog.text


def test_what_is_no_run_removes_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for day in (1, 2):
        make_run(tmp_path, day)
    (tmp_path / "video.mp4").write_bytes(b"x" * 20 * RUN_BYTES)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "file").write_bytes(b"x" * 20 * RUN_BYTES)
    limit = DiskLimit(tmp_path, 3 * RUN_BYTES)
    limit.enforce()
    assert len(list_runs(tmp_path)) == 2
    assert RUN_BYTES < limit.counts.used_bytes < 3 * RUN_BYTES
    assert not caplog.text


def test_a_link_to_a_run_elsewhere_stays(tmp_path: Path) -> None:
    outside = make_run(tmp_path / "elsewhere", 1)
    runs = tmp_path / "runs"
    make_run(runs, 2)
    (runs / outside.name).symlink_to(outside)
    DiskLimit(runs, 1).enforce()
    assert [path.name for path in runs.iterdir()] == [outside.name]


def test_a_damaged_run_may_go(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1)
    (run / HEADER_FILE).write_text("{")
    assert list(removable(tmp_path)) == [run]


def test_what_a_killed_collector_had_begun_to_remove_goes(tmp_path: Path) -> None:
    left = tmp_path / ".removed-20260101T000000Z-00000001"
    left.mkdir()
    (left / "file").write_bytes(b"x" * RUN_BYTES)
    DiskLimit(tmp_path, 2**40).enforce()
    assert list(tmp_path.iterdir()) == []


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = make_run(tmp_path / "elsewhere", 1)
    runs = tmp_path / "runs"
    run = make_run(runs, 2)
    (run / "link").symlink_to(outside)
    assert size_of(run) < 2 * RUN_BYTES
    DiskLimit(runs, 1).enforce()
    assert list(runs.iterdir()) == []
    assert (outside / "ranks" / "file").is_file()


def test_a_serving_collector_keeps_the_limit_while_it_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LOOK_SECONDS", 0.05)
    make_run(tmp_path, 1)
    with running(config(tmp_path, max_disk=RUN_BYTES)) as collector, SimulatedRecorder(collector.url):
        until(lambda: not any(path.name.startswith("202601") for path in tmp_path.iterdir()))
        recorded = ControlClient(collector.url).record(steps=2)
        assert recorded["complete"]
    assert len(list_runs(tmp_path)) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("5K", 5120), ("50G", 50 * 2**30), ("2TiB", 2 * 2**40), ("3mb", 3 * 2**20), (" 7 ", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert disk_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "G", "5X", "10 G", "1e9", "9" * 16])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        disk_size(text)
