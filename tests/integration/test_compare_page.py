"""The page of a comparison in a browser: it draws, zooms, reads, hides, and fits a phone and both schemes."""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from src.comparison_cli import main
from tests.comparison_run_folders import curve, evaluation, write_run

pytestmark = pytest.mark.integration

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
DARK = "--blink-settings=preferredColorScheme=0"


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium is installed, so the page cannot be looked at"
        if os.environ.get("REQUIRE_REAL_COMPONENTS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of three seeds and one interrupted run, in one game."""
    root = tmp_path_factory.mktemp("page")
    for mode, fps in (("sequential", 400.0), ("parallel", 700.0)):
        for seed in (1, 2, 3):
            short = mode == "sequential" and seed == 3
            rows = curve(
                lambda t, s=seed: 5 + 4 * (1 - np.exp(-t / 2e5)) + s / 5, fps, 500 if short else 1000, 80
            )  # type: ignore[misc]
            run = write_run(
                root / f"runs/{mode}_{seed}",
                rows,
                mode=mode,
                seed=seed,
                status="interrupted" if short else "completed",
                settings={"env.num_envs": 64 if mode == "sequential" else 128},
            )
            evaluation(run, 8, 7)
    flags = ["--output", str(root / "c.png"), "--reference", "--bootstrap-samples", "200"]
    assert main(["--runs", str(root / "runs"), *flags]) == 0
    return root / "c.html"


def chromium(browser: str, folder: Path, *arguments: str) -> str:
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def asked(browser: str, page: Path, folder: Path, script: str, *flags: str, width: int | None = None) -> Any:
    """What a script returns that runs in the page after the page's own; with `width` in a frame so wide."""
    errors = "<script>window.faults = []; addEventListener('error', (e) => faults.push(e.message));</script>"
    answer = (
        "<script>(() => { let found; try { found = (() => {"
        + script
        + "})(); } catch (e) { found = String(e); } "
        "const node = document.createElement('pre'); node.id = 'answer'; "
        "node.textContent = 'ANSWER' + JSON.stringify({found, faults}) + 'END'; "
        "(window.parent === window ? document : parent.document).body.append(node); })();</script>"
    )
    text = (
        page.read_text(encoding="utf-8")
        .replace("<head>", f"<head>{errors}", 1)
        .replace("</body>", f"{answer}</body>")
    )
    if width is not None:
        frame = (
            f'<iframe style="width:{width}px;height:3000px;border:0" srcdoc="{html.escape(text)}"></iframe>'
        )
        text = f"<!doctype html><body>{frame}</body>"
    (folder / "asked.html").write_text(text, encoding="utf-8")
    flags = ("--window-size=1280,2000", *flags)
    dom = chromium(
        browser, folder, *flags, "--virtual-time-budget=3000", "--dump-dom", f"file://{folder / 'asked.html'}"
    )
    assert "ANSWER" in dom, dom[-2000:]
    # The page's own copy of this text is in a script; the answer comes last.
    result = json.loads(html.unescape(dom.rsplit("ANSWER", 1)[1].split("END", 1)[0]))
    assert result["faults"] == []
    return result["found"]


def test_every_chart_is_drawn(browser: str, page: Path, tmp_path: Path) -> None:
    script = """
      return [...document.querySelectorAll('figure[data-panel]')].map((figure) => ({
        title: figure.querySelector('figcaption').textContent,
        lines: figure.querySelectorAll('path[d^=M]').length,
        bands: figure.querySelectorAll('polygon').length,
        text: [...figure.querySelectorAll('svg text')].map((t) => t.textContent).join(' '),
      }));"""
    charts = asked(browser, page, tmp_path, script)
    assert len(charts) == 7
    for chart in charts:
        assert chart["lines"] >= 4 and "NaN" not in json.dumps(chart)
    assert all("PPO parallel (n=3)" in chart["text"] for chart in charts[:4])  # the others are narrow
    assert charts[0]["bands"] >= 2 and charts[0]["title"].startswith("Episode return over timesteps")
    assert "n=2" in charts[1]["text"] and "minutes of wall clock" in charts[1]["text"]


def test_zoom_reset_and_reading(browser: str, page: Path, tmp_path: Path) -> None:
    script = """
      const chart = charts[1], button = (name) => chart.figure.querySelector(`[data-zoom=${name}]`).click();
      const before = [...chart.range];
      button('in');
      const zoomed = [...chart.range];
      button('all');
      const after = [...chart.range];
      const frame = chart.svg.getBoundingClientRect();
      const {left, right} = chart.box;
      const at = (share) => frame.left + ((left + share * (right - left)) / chart.w) * frame.width;
      const send = (kind, share, buttons) => chart.svg.dispatchEvent(new PointerEvent(kind,
        {clientX: at(share), clientY: frame.top + 80, pointerId: 1, pointerType: 'pen', buttons}));
      send('pointerdown', 0.25, 1);
      send('pointermove', 0.4, 1);
      send('pointermove', 0.5, 1);
      send('pointerup', 0.5, 0);
      const dragged = [...chart.range];
      chart.svg.dispatchEvent(new MouseEvent('dblclick'));
      chart.svg.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}));
      const tip = chart.tip.textContent, hidden = chart.tip.hidden;
      return {before, zoomed, after, dragged, end: [...chart.range], tip, hidden};"""
    found = asked(browser, page, tmp_path, script)
    low, high = found["before"]
    assert found["zoomed"] == pytest.approx([low + 0.2 * (high - low), low + 0.8 * (high - low)])
    assert found["after"] == found["end"] == found["before"]
    assert found["dragged"] == pytest.approx([0.25 * high, 0.5 * high], rel=0.02)
    assert not found["hidden"] and "PPO parallel" in found["tip"] and "n=3" in found["tip"]


def test_groups_can_be_hidden(browser: str, page: Path, tmp_path: Path) -> None:
    script = """
      const count = () => document.querySelectorAll('figure[data-panel=\"0\"] polygon').length;
      const before = count(), button = document.querySelector('.legend button');
      button.click();
      const less = count(), pressed = button.getAttribute('aria-pressed');
      button.click();
      return {before, less, pressed, after: count()};"""
    found = asked(browser, page, tmp_path, script)
    assert found["less"] < found["before"] == found["after"] and found["pressed"] == "false"


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_both_schemes(browser: str, page: Path, tmp_path: Path, dark: bool) -> None:
    script = """
      const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => { v /= 255;
        return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const paper = light(getComputedStyle(document.body).backgroundColor);
      const ratio = (node, key) => { const v = light(getComputedStyle(node)[key]);
        return (Math.max(v, paper) + 0.05) / (Math.min(v, paper) + 0.05); };
      const note = ratio(document.querySelector('.note'), 'color');
      return {paper, body: ratio(document.body, 'color'), note,
        ends: [...document.querySelectorAll('svg text.end')].map((node) => ratio(node, 'fill'))};"""
    found = asked(browser, page, tmp_path, script, *([DARK] if dark else []))
    assert (found["paper"] < 0.1) == dark
    assert found["body"] > 10 and found["note"] > 4.5
    assert found["ends"] and min(found["ends"]) > 3  # bold labels and lines


def test_phone_scrolls_in_one_direction_only(browser: str, page: Path, tmp_path: Path) -> None:
    script = """
      const over = [...document.querySelectorAll('main *')].filter((node) =>
        !node.closest('.scroll') && !node.closest('svg')
        && node.getBoundingClientRect().right > innerWidth + 1)
        .map((node) => node.outerHTML.slice(0, 120));
      return {width: innerWidth, scroll: document.documentElement.scrollWidth, over};"""
    found = asked(browser, page, tmp_path, script, width=390)
    assert found["width"] == 390 and found["scroll"] <= 390 and found["over"] == []


def test_prints_with_all_charts(browser: str, page: Path, tmp_path: Path) -> None:
    chromium(
        browser,
        tmp_path,
        "--no-pdf-header-footer",
        f"--print-to-pdf={tmp_path / 'page.pdf'}",
        f"file://{page}",
    )
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF") and len(content) > 50_000


def test_screenshot_is_not_empty(browser: str, page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    chromium(browser, tmp_path, "--window-size=1200,1800", f"--screenshot={picture}", f"file://{page}")
    pixels = imread(picture)[..., :3]
    assert pixels.mean() > 0.8 and (pixels.reshape(-1, 3).std(1) > 0.15).mean() > 0.002  # light, with colour
