"""A comparison as text: for the terminal, as a report, as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.findings import cautions, headline
from rlcb.comparison.methods import methods
from rlcb.comparison.reference import reference_table, references, without_reference
from rlcb.comparison.tables import (
    Table,
    across_table,
    is_number_column,
    pairs_table,
    phases_table,
    results_table,
    runs_table,
)

WIDTH = 80
NAME_WIDTH, CELL_WIDTH = 32, 24  # of the first column and of the others, at the most
WIDE, WIDE_NAME = 136, 36  # of the report: hold the widest tables, of tests and of runs, in one piece
PROSE = 110
TITLE = "COMPARISON OF RUNS"


def main_tables(comparison: Comparison) -> list[Table]:
    """The tables that everybody looks at: figures of each game, scores over games, published figures."""
    tables = [results_table(game) for game in comparison.games]
    across = across_table(comparison)
    tables += [across] if across is not None else []
    return [*tables, *map(reference_table, references(comparison))]


def further_tables(comparison: Comparison) -> list[Table]:
    """Tests, where the time went, and single runs."""
    tables = []
    for game in comparison.games:
        tables.append(pairs_table(game.pairs, f"Tests: {game.game}", comparison.baseline))
        tables += [table] if (table := phases_table(game)) is not None else []
    if comparison.across is not None and len(comparison.across.games) > 1:
        title = "Tests over games, normalised scores"
        tables.append(pairs_table(comparison.across.pairs, title, comparison.baseline))
    return [table for table in [*tables, runs_table(comparison)] if table.rows]


def notices(comparison: Comparison) -> list[str]:
    """Cautions, and what was asked for but cannot be given."""
    absent = without_reference(comparison) if comparison.options.reference else []
    found = cautions(comparison)
    if absent:
        found.append(f"No published figures exist for {', '.join(absent)} (Procgen, easy mode only).")
    return found


def unfairness(comparison: Comparison) -> list[str]:
    if not comparison.fairness:
        return ["No difference was found between the runs but the one being compared."]
    return [f"{each.aspect}: {each.text}" for each in comparison.fairness]


def terminal(comparison: Comparison, width: int = WIDTH) -> str:
    """What is printed: 80 columns, or tables of another width."""
    return "\n".join(
        [
            *_title(TITLE),
            *_bullets([*headline(comparison), *notices(comparison)]),
            *(line for table in main_tables(comparison) for line in ["", *layout(table, width)]),
            *_section("Not equal between these runs", unfairness(comparison)),
        ]
    )


def report(comparison: Comparison) -> str:
    """comparison_report.txt: all tables, and how the figures were made."""
    further = [line for table in further_tables(comparison) for line in ["", *layout(table, WIDE)]]
    made = _section("How the figures were made", methods(comparison))
    return "\n".join([terminal(comparison, WIDE), *further, *made, ""])


def _title(text: str) -> list[str]:
    return ["=" * WIDTH, text, "=" * WIDTH]


def _section(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, "-" * len(title), *_bullets(items)]


def _bullets(items: Sequence[str]) -> list[str]:
    return [
        line
        for item in items
        for line in textwrap.wrap(
            item, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
    ]


def layout(table: Table, width: int = WIDTH) -> list[str]:
    """A table in as many blocks as it takes to stay within `width`; each block repeats the first column."""
    first = NAME_WIDTH if width < WIDE else WIDE_NAME
    columns = [
        [_wrapped(cell, CELL_WIDTH if index else first) for cell in column]
        for index, column in enumerate(zip(table.header, *table.rows))
    ]
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    lines = [table.title, "-" * len(table.title)]
    for number, block in enumerate(_blocks(widths, width)):
        lines += [""] if number else []
        rule = "  ".join("-" * widths[index] for index in block)
        for row in range(len(table.rows) + 1):
            cells = [columns[index][row] for index in block]
            for line in range(max(map(len, cells))):
                texts = [cell[line] if line < len(cell) else "" for cell in cells]
                parts = [
                    text.rjust(widths[index]) if is_number_column(table, index) else text.ljust(widths[index])
                    for text, index in zip(texts, block)
                ]
                lines.append("  ".join(parts).rstrip())
            lines += [rule] if row == 0 else []
    if table.note:
        lines += textwrap.wrap(f"({table.note})", min(width, PROSE), break_on_hyphens=False)
    return lines


def _wrapped(cell: str, width: int) -> list[str]:
    lines = [part for line in cell.split("\n") for part in textwrap.wrap(line, width)]
    return lines or [""]


def _blocks(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Which columns stand beside each other; the first one is in every block."""
    block, used = [0], widths[0]
    for index in range(1, len(widths)):
        if len(block) > 1 and used + 2 + widths[index] > width:
            yield block
            block, used = [0], widths[0]
        block.append(index)
        used += 2 + widths[index]
    yield block


def markdown(comparison: Comparison, picture: str) -> str:
    """comparison.md; `picture` is the name of the plot beside it."""
    lines = ["# Comparison of runs", ""]
    lines += [f"- {_escaped(item)}" for item in headline(comparison)]
    lines += ["", *(f"> {_escaped(item)}\n>" for item in notices(comparison))]
    lines += ["", f"![Comparison]({picture.replace(' ', '%20')})", ""]
    lines += [
        "## Not equal between these runs",
        "",
        *(f"- {_escaped(i)}" for i in unfairness(comparison)),
        "",
    ]
    for table in [*main_tables(comparison), *further_tables(comparison)]:
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
    """Text that Markdown shows as it is."""
    for sign in "\\|*_<>`#":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return text
