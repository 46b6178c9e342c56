"""Format a comparison as text: for the terminal, as a report, and as Markdown."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence

from rich.box import Box
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.answer import answer
from rlcb.comparison.findings import headline
from rlcb.comparison.format import listed
from rlcb.comparison.methods import methods
from rlcb.comparison.reference import reference_table, references
from rlcb.comparison.scaling import scaling_tables
from rlcb.comparison.scores import profile_table
from rlcb.comparison.tables import (
    Table,
    across_table,
    is_number_column,
    overview_table,
    pairs_table,
    phases_table,
    results_table,
    runs_table,
)
from rlcb.comparison.warnings import warning_texts

WIDTH = 80
NAME_WIDTH, CELL_WIDTH = 28, 24  # largest widths of the first and the other columns: two groups fit into 80
WIDE, WIDE_NAME = 136, 36  # widths of the report and its first column: the widest tables fit in one block
PROSE = 110
TITLE = "COMPARISON OF RUNS"
HEADER_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""Draws one line of dashes, below the header."""


def main_tables(comparison: Comparison) -> list[Table]:
    """Return the main tables: results of each game, scores over games, published results."""
    tables = [results_table(game) for game in comparison.games]
    across = across_table(comparison)
    tables += [table for table in (across, profile_table(comparison)) if table is not None]
    tables += scaling_tables(comparison)
    return [*tables, *map(reference_table, references(comparison))]


def further_tables(comparison: Comparison) -> list[Table]:
    """Return the tables of tests, time shares and single runs."""
    tables = []
    for game in comparison.games:
        tables.append(pairs_table(game.pairs, f"Tests: {game.game}", comparison.baseline))
        tables += [table] if (table := phases_table(game)) is not None else []
    if comparison.across is not None and len(comparison.across.games) > 1:
        title = "Tests over games, normalised scores"
        tables.append(pairs_table(comparison.across.pairs, title, comparison.baseline))
    return [table for table in [*tables, runs_table(comparison)] if table.rows]


def unfairness(comparison: Comparison) -> list[str]:
    if not comparison.fairness:
        return ["No difference was found between the runs but the one being compared."]
    return [f"{each.aspect}: {each.text}" for each in comparison.fairness]


def terminal(comparison: Comparison, full: bool = False) -> str:
    """Return the text for 80 columns: answer, findings, warnings, short tables; with `full`, everything."""
    tables = [*map(overview_table, comparison.games), *scaling_tables(comparison)]
    if full:
        tables = [*main_tables(comparison), *further_tables(comparison)]
    lines = [*_summary(comparison), *_laid_out(tables, WIDTH)]
    if not full:
        aspects = listed(list(dict.fromkeys(each.aspect for each in comparison.fairness)) or ["nothing"])
        lines += [
            "",
            *_wrapped(f"Not equal between these runs: {aspects}. Details, tests and more metrics: --full."),
        ]
        return "\n".join(lines)
    return "\n".join([*lines, *_notes(comparison)])


def report(comparison: Comparison) -> str:
    """Return comparison_report.txt: all tables and the methods."""
    tables = [*main_tables(comparison), *further_tables(comparison)]
    return "\n".join([*_summary(comparison), *_laid_out(tables, WIDE), *_notes(comparison), ""])


def _summary(comparison: Comparison) -> list[str]:
    """Return the title, the answer, the findings and the warnings."""
    lines = ["=" * WIDTH, TITLE, "=" * WIDTH, *_wrapped(answer(comparison))]
    lines += ["", *bullets(headline(comparison))]
    found = warning_texts(comparison)
    return [*lines, *(_section("Warnings", found) if found else [])]


def _notes(comparison: Comparison) -> list[str]:
    unequal = _section("Not equal between these runs", unfairness(comparison))
    return [*unequal, *_section("How the figures were made", methods(comparison))]


def _laid_out(tables: Sequence[Table], width: int) -> list[str]:
    return [line for table in tables for line in ["", *layout(table, width)]]


def _section(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, "-" * len(title), *bullets(items)]


def bullets(items: Sequence[str]) -> list[str]:
    """Return items as lines of at most 80 columns that begin with a dash."""
    return [line for item in items for line in _wrapped(item, "- ", "  ")]


def _wrapped(text: str, first: str = "", others: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def layout(table: Table, width: int = WIDTH) -> list[str]:
    """Return a table as lines, in as many blocks as fit into `width`; each block repeats the first column."""
    widths = _widths(table, width)
    lines = [table.title, "-" * len(table.title)]
    for number, block in enumerate(_blocks(widths, width)):
        # Cells hold names from files: as Text, rich reads no markup in them.
        grid = RichTable(box=HEADER_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index in block:
            right = is_number_column(table, index)
            grid.add_column(
                Text(table.header[index]), justify="right" if right else "left", width=widths[index]
            )
        for row in table.rows:
            grid.add_row(*(Text(row[index]) for index in block))
        lines += [""] if number else []
        lines += _printed(grid, width)
    if table.note:
        lines += _printed(Text(f"({table.note})"), min(width, PROSE))
    return lines


def _widths(table: Table, width: int) -> list[int]:
    """Return the widths of the columns; headers wrap between words if the table is too wide otherwise."""
    first = NAME_WIDTH if width < WIDE else WIDE_NAME
    for separator in ("\n", " "):
        widths = []
        for index, column in enumerate(zip(table.header, *table.rows)):
            longest = max(len(line) for cell in column[1:] for line in cell.split("\n"))
            longest = max(longest, *(len(part) for part in column[0].split(separator)))
            widths.append(min(longest, CELL_WIDTH if index else first))
        if sum(widths) + 2 * len(widths) <= width:
            break
    return widths


def _printed(content: RenderableType, width: int) -> list[str]:
    """Return what rich prints at this width, without colours."""
    output = io.StringIO()
    Console(file=output, width=width, color_system=None, highlight=False, legacy_windows=False).print(content)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def _blocks(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield the columns of each block that fits into `width`; the first column is in every block."""
    block, used = [0], widths[0]
    for index in range(1, len(widths)):
        if len(block) > 1 and used + 2 + widths[index] > width:
            yield block
            block, used = [0], widths[0]
        block.append(index)
        used += 2 + widths[index]
    yield block


def markdown(comparison: Comparison, picture: str) -> str:
    """Return comparison.md; `picture` is the file name of the plot beside it."""
    lines = ["# Comparison of runs", "", f"**{_escaped(answer(comparison))}**", ""]
    lines += [f"- {_escaped(item)}" for item in headline(comparison)]
    lines += ["", *(f"> {_escaped(item)}\n>" for item in warning_texts(comparison))]
    lines += ["", f"![Comparison]({picture.replace(' ', '%20')})", ""]
    lines += [
        "## Not equal between these runs",
        "",
        *(f"- {_escaped(i)}" for i in unfairness(comparison)),
        "",
    ]
    overviews = [overview_table(game) for game in comparison.games]
    for table in [*overviews, *main_tables(comparison), *further_tables(comparison)]:
        lines += [f"## {_escaped(table.title)}", "", *_markdown_table(table), ""]
    lines += [
        "## How the figures were made",
        "",
        *(f"- {_escaped(item)}" for item in methods(comparison)),
        "",
    ]
    return "\n".join(lines)


def _markdown_table(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(_escaped(cell).replace(chr(10), '<br>') for cell in cells)} |"

    align = [
        "---" if index == 0 or not is_number_column(table, index) else "---:"
        for index in range(len(table.header))
    ]
    lines = [row(table.header), f"|{'|'.join(align)}|", *map(row, table.rows)]
    return [*lines, *(["", f"*{_escaped(table.note)}*"] if table.note else [])]


def _escaped(text: str) -> str:
    """Escape text so that Markdown shows it unchanged."""
    for sign in "\\|*_<>`#":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return text
