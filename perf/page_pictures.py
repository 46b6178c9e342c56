"""Pictures of a comparison's page, as docs/results.md shows them.

Its top in light colours; in dark ones where the time went, loss, memory and CPU, and settings that differ:

    python perf/page_pictures.py benchmarks/starpilot_2min/comparison.html docs
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, MARGIN = 1200, 14  # of the page and above a heading, in pixels
DARK = "--blink-settings=preferredColorScheme=0"
PLACES = """<script>
const tops = [...document.querySelectorAll('h2, h3, summary')].map((node) =>
  [node.tagName, node.textContent, Math.round(node.getBoundingClientRect().top + scrollY)]);
const root = document.documentElement;
root.dataset.places = JSON.stringify([...tops, ['H2', '', root.scrollHeight]]);
</script></body>"""

Places = list[tuple[str, str, int]]
"""Kind of heading, its text, and its distance from the top of the page."""


def chromium(folder: Path, *arguments: str) -> str:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"error: one of {', '.join(BROWSERS)} has to be installed")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
    command = [browser, *flags, f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def find_places(folder: Path, page: Path) -> Places:
    """Return all headings of the page, and its end, at width WIDTH."""
    copy = folder / "page.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", PLACES), encoding="utf-8")
    size = f"--window-size={WIDTH},1000"
    found = re.search(r'data-places="([^"]*)"', chromium(folder, size, "--dump-dom", f"file://{copy}"))
    if found is None:
        raise SystemExit(f"error: {page} is not the page of a comparison")
    return [(kind, text, top) for kind, text, top in json.loads(html.unescape(found[1]))]


def part(picture: Image.Image, places: Places, start: str, end: str) -> Image.Image:
    """From one heading to another; without the other one's name, to where the next section begins."""
    first = next(index for index, place in enumerate(places) if place[1] == start)
    last = next(p for p in places[first + 1 :] if p[1] == end or (not end and p[0] == "H2"))
    return picture.crop((0, places[first][2] - MARGIN, WIDTH, last[2] - MARGIN))


def stacked(parts: list[Image.Image]) -> Image.Image:
    whole = Image.new("RGB", (WIDTH, sum(each.height for each in parts)))
    top = 0
    for each in parts:
        whole.paste(each, (0, top))
        top += each.height
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="comparison.html")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    arguments = parser.parse_args()
    page, folder = arguments.page.resolve(), arguments.folder
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        places = find_places(temporary, page)
        pictures = {}
        for scheme, flags in (("light", []), ("dark", [DARK])):
            size, shot = f"--window-size={WIDTH},{places[-1][2]}", temporary / f"{scheme}.png"
            chromium(temporary, size, *flags, f"--screenshot={shot}", f"file://{page}")
            pictures[scheme] = Image.open(shot).convert("RGB")
    (top,) = [place[2] for place in places if place[1] == "All metrics"][:1]
    light = pictures["light"].crop((0, 0, WIDTH, top - MARGIN))
    light.save(folder / "comparison_page.png", optimize=True)
    dark = pictures["dark"]
    settings = part(dark, places, "Hardware and settings", "Equal in all groups")
    stacked([part(dark, places, "Where the time went", ""), settings]).save(
        folder / "comparison_page_dark.png", optimize=True
    )
    print(f"{folder / 'comparison_page.png'}\n{folder / 'comparison_page_dark.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
