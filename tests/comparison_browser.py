"""A comparison's page in a headless browser, for the tests that look at it."""

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

from rlcb.cli.compare import main
from tests.comparison_run_folders import curve, evaluation, write_run

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


def installed(names: tuple[str, ...], what: str) -> str:
    """Path of a program; without it the test is skipped, or fails where it should be there."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        reason = f"{' or '.join(names)} is not installed, so {what}"
        if os.environ.get("REQUIRE_REAL_COMPONENTS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def find_browser() -> str:
    return installed(BROWSERS, "the page cannot be looked at")


def write_page(root: Path) -> Path:
    """The page of two groups of three seeds, of which one run was interrupted, in one game."""
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
