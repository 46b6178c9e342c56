"""The page of a comparison in a browser: it draws, zooms, reads, hides, and fits a phone and both schemes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.comparison_browser import asked, chromium, find_browser, write_page

DARK = "--blink-settings=preferredColorScheme=0"


@pytest.fixture(scope="module")
def browser() -> str:
    return find_browser()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("page"))


def test_every_chart_is_drawn(browser: str, page: Path, tmp_path: Path) -> None:
    script = """
      return [...document.querySelectorAll('figure[data-panel]')].map((figure) => ({
        title: figure.querySelector('figcaption').textContent,
        lines: figure.querySelectorAll('path[d^=M]').length,
        bands: figure.querySelectorAll('polygon').length,
        text: [...figure.querySelectorAll('svg text')].map((t) => t.textContent).join(' '),
      }));"""
    charts = asked(browser, page, tmp_path, script)
    assert len(charts) == 8
    for chart in charts:
        assert chart["lines"] >= 2 and "NaN" not in json.dumps(chart)
    for chart in charts[:4]:  # the others are narrow
        assert "PPO parallel" in chart["text"] and "PPO sequential (2\u00a0of\u00a03)" in chart["text"]
    assert charts[0]["bands"] >= 2 and charts[0]["title"].startswith("Episode return over wall clock")
    assert "minutes of wall clock" in charts[0]["text"]


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


def test_names_stand_beside_the_chart_and_cover_no_line(browser: str, page: Path, tmp_path: Path) -> None:
    script = """
      return charts.slice(0, 4).map((chart) => ({
        edge: chart.box.right, width: chart.w, end: chart.x(400000),
        leaders: [...chart.svg.querySelectorAll('.leader')].map((node) => +node.getAttribute('x1')),
        dots: [...chart.svg.querySelectorAll(':scope > circle')].map((node) => +node.getAttribute('cx')),
        names: [...chart.svg.querySelectorAll('text.end')].map((node) => {
          const box = node.getBBox();
          return {x: box.x, right: box.x + box.width};
        }),
        lines: Math.max(...[...chart.svg.querySelectorAll('g.group path')].map((node) => {
          const box = node.getBBox();
          return box.x + box.width;
        })),
        caption: chart.figure.querySelector('figcaption').textContent,
      }));"""
    charts = asked(browser, page, tmp_path, script)
    for chart in charts:
        assert len(chart["leaders"]) == 2 and all(x >= chart["edge"] for x in chart["leaders"])
        assert chart["names"] and all(name["right"] <= chart["width"] for name in chart["names"])
        assert min(name["x"] for name in chart["names"]) > chart["lines"]
    over_timesteps, others = charts[1], [charts[0], *charts[2:]]
    assert over_timesteps["dots"] == [pytest.approx(over_timesteps["end"], abs=5)]  # the sequential runs' end
    assert all(not chart["dots"] for chart in others)  # over wall clock both end with the axis
    published = "published PPO in grey: circles on the training levels, squares on all levels"
    assert published in over_timesteps["caption"]
    assert all("published" not in chart["caption"] for chart in others)


@pytest.mark.parametrize("width", [1280, 800])
def test_no_hole_beside_cards_or_charts(browser: str, page: Path, tmp_path: Path, width: int) -> None:
    script = """
      return [...document.querySelectorAll('ul.headline, .charts')].map((box) => {
        const rows = {};
        for (const child of box.children) {
          const frame = child.getBoundingClientRect();
          rows[Math.round(frame.top)] = Math.max(rows[Math.round(frame.top)] || 0, frame.right);
        }
        return Object.values(rows).map((right) => box.getBoundingClientRect().right - right);
      });"""
    found = asked(browser, page, tmp_path, script, width=width)
    assert len(found) == 6 and all(rows for rows in found)
    assert max(abs(gap) for rows in found for gap in rows) < 2


@pytest.mark.parametrize("width", [1280, 390])
def test_legend_has_names_beside_the_colours(browser: str, page: Path, tmp_path: Path, width: int) -> None:
    script = """
      return [...document.querySelectorAll('.legend')].map((legend) => [
        legend.firstChild.textContent,
        ...[...legend.querySelectorAll('button')].map((node) => node.innerText.trim())]);"""
    found = asked(browser, page, tmp_path, script, width=width)
    assert found and all(each == ["Show or hide", "PPO sequential", "PPO parallel"] for each in found)


def test_pointing_at_a_group_stresses_it(browser: str, page: Path, tmp_path: Path) -> None:
    script = """
      const button = document.querySelector('.legend button');
      const send = (kind) => button.dispatchEvent(new PointerEvent(kind, {pointerType: 'mouse'}));
      const faint = () => [...charts[0].svg.querySelectorAll('g.group, text.end')]
        .filter((node) => node.style.opacity).map((node) => node.dataset.label);
      send('pointerenter');
      const on = faint();
      send('pointerleave');
      return {on, off: faint()};"""
    found = asked(browser, page, tmp_path, script)
    assert set(found["on"]) == {"PPO parallel"} and found["off"] == []


def test_screenshot_is_not_empty(browser: str, page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    chromium(browser, tmp_path, "--window-size=1200,1800", f"--screenshot={picture}", f"file://{page}")
    pixels = imread(picture)[..., :3]
    assert pixels.mean() > 0.8 and (pixels.reshape(-1, 3).std(1) > 0.15).mean() > 0.002  # light, with colour
