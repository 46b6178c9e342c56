"""Reading the guides: their code blocks, commands, tables, headings and links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.runs import PROJECT

GUIDES = tuple(
    PROJECT / name
    for name in (
        "README.md",
        "QUICKSTART.md",
        "docs/guide.md",
        "docs/reference.md",
        "docs/benchmarking.md",
        "CONTRIBUTING.md",
        "docs/results.md",
        "docs/scaling.md",
        "docs/profiling.md",
        "docs/peers.md",
        "docs/speed.md",
        "docs/precision.md",
        "docs/tuning.md",
        "cluster/README.md",
    )
)
FENCE = re.compile(r"^( *)```(\w*)\s*$")
HEADING = re.compile(r"^(#+) (.*)$")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: bash (commands), console (commands with their output), text (output), diff, ..."""

    guide: Path
    line: int
    language: str
    section: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.guide.relative_to(PROJECT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command line as a guide has it, continuation lines joined."""

    guide: Path
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.guide.relative_to(PROJECT)}:{self.line}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)


def blocks(guide: Path) -> list[Block]:
    """All fenced blocks of a guide, in order."""
    found: list[Block] = []
    section, start, indent, language = "", 0, "", ""
    inside: list[str] | None = None
    for number, line in enumerate(guide.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if fence and inside is None:
            start, indent, language, inside = number, fence[1], fence[2], []
        elif fence and inside is not None:
            found.append(Block(guide, start, language, section, "\n".join(inside)))
            inside = None
        elif inside is not None:
            inside.append(line.removeprefix(indent))
        elif heading := HEADING.match(line):
            section = heading[2]
    assert inside is None, f"{guide.name}:{start}: a block without an end"
    return found


def prose(guide: Path) -> list[tuple[int, str]]:
    """(number, line) of what lies outside of the blocks."""
    lines, outside = [], True
    for number, line in enumerate(guide.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            outside = not outside
        elif outside:
            lines.append((number, line))
    return lines


def commands(block: Block) -> list[Command]:
    """The command lines of a bash block."""
    found, text, start = [], "", 0
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        start = start if text else number
        text += line.strip() if text else line
        if text.endswith("\\"):
            text = text[:-1].rstrip() + " "
            continue
        if text.strip() and not text.lstrip().startswith("#"):
            found.append(Command(block.guide, start, text.strip()))
        text = ""
    assert not text, f"{block.place}: ends with a backslash"
    return found


def exchanges(block: Block) -> list[tuple[Command, list[str]]]:
    """(command, lines that it prints) of a console block, whose commands begin with `$ `."""
    found: list[tuple[Command, list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            found.append((Command(block.guide, number, line[2:]), []))
        else:
            found[-1][1].append(line)
    return found


def inline_commands(guide: Path) -> list[Command]:
    """Programs of the project with flags, as they are named within sentences and tables."""
    found = []
    for number, line in prose(guide):
        for span in SPAN.findall(line.replace(r"\|", "|")):
            if re.search(r"(^|[ /])\w+\.py +-", span) or re.match(r"(make|python -m|rlcb) \S", span):
                found.append(Command(guide, number, span))
    return found


def tables(guide: Path, section: str) -> list[list[list[str]]]:
    """The tables below a heading, up to the next one: rows of cells, without the head."""
    found: list[list[list[str]]] = []
    here, previous = False, False
    for _, line in prose(guide):
        if heading := HEADING.match(line):
            here, previous = heading[2] == section, False
        elif here and line.startswith("|"):
            if not previous:
                found.append([])
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
            previous = True
        else:
            previous = False
    return [rows[2:] for rows in found]


def code(cell: str) -> str:
    """What a cell has between its first backticks."""
    spans = SPAN.findall(cell)
    assert spans, f"no `code` in the cell {cell!r}"
    return str(spans[0]).replace(r"\|", "|")


def anchors(guide: Path) -> set[str]:
    """The names under which links find the headings of a guide."""
    names = set()
    for _, line in prose(guide):
        if heading := HEADING.match(line):
            text = re.sub(r"[^\w\- ]", "", heading[2].lower())
            names.add(text.replace(" ", "-"))
    return names


def links(guide: Path) -> list[tuple[int, str]]:
    """(line, target) of links and pictures."""
    return [(number, a or b) for number, line in prose(guide) for a, b in LINK.findall(line)]
