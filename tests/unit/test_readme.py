"""What the README repeats of the code is true."""

from __future__ import annotations

import re
from pathlib import Path

from vime_otel.cli.main import vime_otel
from vime_otel.data import settings

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_settings_table_is_the_codes() -> None:
    (table,) = re.findall(r"<!-- settings: .*? -->\n(.*?)<!-- /settings -->", README, re.DOTALL)
    heading = "| variable | default | meaning |\n|---|---|---|\n"
    rows = [
        f"| `{each.name}` | {f'`{each.default}` ' if each.default else ''}| {each.meaning} |\n" for each in settings.ALL
    ]
    assert table == heading + "".join(rows)


def test_every_subcommand_is_told_of() -> None:
    for name in vime_otel.list_commands(None):  # type: ignore[arg-type]
        assert re.search(rf"`vime-otel [^`]*{name}|`{name}`", README), name
