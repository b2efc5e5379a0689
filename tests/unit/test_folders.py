from __future__ import annotations

import shutil
from pathlib import Path

from vime_otel.data.folders import files_below


def test_a_folder_that_vanishes_while_it_is_looked_through_is_passed_over(tmp_path: Path) -> None:
    for name in ("one", "gone/two", "stays/three"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = files_below(tmp_path)
    assert next(found) == tmp_path / "one"
    shutil.rmtree(tmp_path / "gone")
    assert list(found) == [tmp_path / "stays" / "three"]


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    assert not list(files_below(tmp_path / "here"))
    assert not list(files_below(tmp_path / "missing"))
