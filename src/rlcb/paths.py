"""Where the project lies, and the configuration file of each of its training scripts."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def default_config_path(algorithm: str, mode: str) -> Path:
    name = "cpu_cluster" if mode == "distributed" else mode
    return PROJECT / "config" / f"{algorithm}_{name}.yaml"
