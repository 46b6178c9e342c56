"""The page of a comparison on paper: every chart and every table is there, folded ones open."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path

import pytest

from tests.comparison_browser import chromium, find_browser, installed, write_page

HEADINGS = (
    r"<h[1-3]>(.*?)</h[1-3]>",
    r"<figcaption>(.*?)<small>",
    r"<summary>(.*?)</summary>",
    r'<th scope="col"[^>]*>(.*?)</th>',
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def printed(page: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The words of the printed page, in the order in which they are drawn."""
    browser, reader = find_browser(), installed(("pdftotext",), "what is printed cannot be read")
    folder = tmp_path_factory.mktemp("print")
    paper = folder / "page.pdf"
    chromium(browser, folder, "--no-pdf-header-footer", f"--print-to-pdf={paper}", f"file://{page}")
    found = subprocess.run([reader, "-raw", str(paper), "-"], capture_output=True, timeout=30, check=True)
    return " ".join(found.stdout.decode("utf-8").split())


def headings(page: Path) -> list[str]:
    """What stands above the parts, charts and tables of the page and above the columns of its tables."""
    text = re.sub(r"<(script|style)>.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
    found = [each for pattern in HEADINGS for each in re.findall(pattern, text, re.S)]
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", each)).split()) for each in found]


def test_every_heading_is_printed(page: Path, printed: str) -> None:
    expected = headings(page)
    for known in (
        "Where the time went",
        "Memory over wall clock",
        "Equal in all groups",
        "Holm's p",
        "Tests",
    ):
        assert any(known in each for each in expected), known
    assert len(expected) > 40
    assert [each for each in expected if each not in printed] == []


def test_every_chart_is_printed(printed: str) -> None:
    assert printed.count("minutes of wall clock") == 5  # an axis below each of so many charts
    assert "PPO sequential (2 of 3)" in printed  # at the end of a line


def test_folded_tables_are_open_and_buttons_left_out(printed: str) -> None:
    assert "gae_lambda" in printed and "Show or hide" not in printed
