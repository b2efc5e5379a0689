"""A laid out report as text for the terminal, as Markdown, or as a page of HTML that stands alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..data.texts import printable
from .layout import Section, Table

_NAME_WIDTH = 70
_LEAST_NAME = 24
_BETWEEN = 2
"""Columns of the terminal between two of a table."""

_STYLE = """
:root { color-scheme: light dark }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
caption { text-align: left; padding: .3rem 0 }
th, td { padding: .15rem .7rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top }
td:first-child { max-width: 48rem; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: 12px }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
h1, h2, h3 { line-height: 1.2; overflow-wrap: anywhere }
h2 { margin-top: 2.5rem; border-bottom: 2px solid #8886 }
li ul { opacity: .8 }
"""


def print_text(console: Console, sections: Sequence[Section]) -> None:
    """Print to a terminal or a pipe; names are cut to fit, figures never are."""
    for section in sections:
        console.print()
        console.print(_text(section.title), style="bold" if section.level > 1 else "bold underline", soft_wrap=True)
        for line in section.lines:
            console.print(_text(line), soft_wrap=True)
        for point, evidence in section.points:
            console.print(_text(f"• {point}"), soft_wrap=True, style="yellow")
            for line in evidence:
                console.print(_text(f"    {line}"), soft_wrap=True)
        for table in section.tables:
            for drawn in _fitting(table, console.width):
                console.print()
                console.print(drawn)


def _text(text: str) -> Text:
    return Text(printable(text))


def _fitting(table: Table, width: int) -> Iterator[RichTable]:
    """The table; where it is wider than that, its columns in turn, each time beside the first."""
    cells = [[_text(heading.lstrip(">")) for heading in table.headings], *([*map(_text, row)] for row in table.rows)]
    widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
    for number, heading in enumerate(table.headings):
        if not heading.startswith(">"):
            widths[number] = min(widths[number], _NAME_WIDTH)
    left = width - sum(_BETWEEN + each for each in widths[1:])
    widths[0] = min(widths[0], left if left >= _LEAST_NAME else width // 2)
    chosen, used = [0], widths[0]
    for number, each in enumerate(widths[1:], 1):
        if used + _BETWEEN + each > width and len(chosen) > 1:
            yield _rich(table, cells, widths, chosen)
            chosen, used = [0], widths[0]
        chosen.append(number)
        used += _BETWEEN + each
    yield _rich(table, cells, widths, chosen)


def _rich(table: Table, cells: Sequence[Sequence[Text]], widths: Sequence[int], chosen: Sequence[int]) -> RichTable:
    """These columns of a table; `cells` begin with the headings."""
    drawn = RichTable(
        box=None,
        pad_edge=False,
        title_justify="left",
        title_style="",
        title=_text(table.title) if table.title else None,
    )
    for number in chosen:
        drawn.add_column(
            cells[0][number],
            justify="right" if table.headings[number].startswith(">") else "left",
            no_wrap=True,
            width=widths[number],
            overflow="ellipsis",
        )
    for row in cells[1:]:
        drawn.add_row(*(row[number] for number in chosen))
    return drawn


def markdown(sections: Sequence[Section]) -> str:
    """The report as Markdown; names in full."""
    return "\n".join(line for section in sections for line in _markdown(section)) + "\n"


def _markdown(section: Section) -> Iterator[str]:
    yield f"{'#' * section.level} {_plain(section.title)}"
    yield ""
    for line in section.lines:
        yield _plain(line) + "  "
    for point, evidence in section.points:
        yield f"- {_plain(point)}"
        yield from (f"  - {_plain(line)}" for line in evidence)
    for table in section.tables:
        yield ""
        if table.title:
            yield _plain(table.title)
            yield ""
        yield f"| {' | '.join(_plain(heading.lstrip('>')) for heading in table.headings)} |"
        yield f"|{'|'.join('---:' if heading.startswith('>') else '---' for heading in table.headings)}|"
        yield from (f"| {' | '.join(map(_plain, row))} |" for row in table.rows)
    yield ""


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    text = " ".join(printable(text).split())
    for mark in "\\`*_{}[]<>#|~&":
        text = text.replace(mark, f"\\{mark}")
    return text


def html(sections: Sequence[Section]) -> str:
    """The report as one HTML file that needs no other."""
    title = _escaped(sections[0].title)
    body = "\n".join(line for section in sections for line in _html(section))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"</head>\n<body>\n{body}\n</body></html>\n"
    )


def _escaped(text: str) -> str:
    return escape(printable(text))


def _html(section: Section) -> Iterator[str]:
    yield f"<h{section.level}>{_escaped(section.title)}</h{section.level}>"
    yield from (f"<p>{_escaped(line)}</p>" for line in section.lines)
    if section.points:
        yield "<ul>"
        for point, evidence in section.points:
            below = "".join(f"<li>{_escaped(line)}</li>" for line in evidence)
            yield f"<li>{_escaped(point)}{f'<ul>{below}</ul>' if below else ''}</li>"
        yield "</ul>"
    for table in section.tables:
        marks = [' class="number"' if heading.startswith(">") else "" for heading in table.headings]
        yield f"<table>{f'<caption>{_escaped(table.title)}</caption>' if table.title else ''}<thead><tr>"
        yield "".join(
            f"<th{mark}>{_escaped(h.lstrip('>'))}</th>" for mark, h in zip(marks, table.headings, strict=True)
        )
        yield "</tr></thead><tbody>"
        for row in table.rows:
            cells = "".join(f"<td{mark}>{_escaped(cell)}</td>" for mark, cell in zip(marks, row, strict=True))
            yield f"<tr>{cells}</tr>"
        yield "</tbody></table>"
