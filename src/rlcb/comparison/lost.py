"""Runs that left no usable results: failed, damaged, empty, or planned by a study and never started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlcb.config.yaml_file import read_config_file
from rlcb.errors import UsageError
from rlcb.training.run_folder import CONFIG_FILE

RECORD_FILE = "benchmark_metrics.json"


class LostRun(NamedTuple):
    """A run without usable results. The fields after `reason` are None if its folder does not tell them."""

    path: Path
    reason: str
    algorithm: str | None = None
    mode: str | None = None
    env: str | None = None
    seed: int | None = None
    config: Mapping[str, Any] | None = None
    nodes: int | None = None
    """The number of nodes of a distributed run."""

    @property
    def state(self) -> str:
        """The reason in a word or two: `failed`, `damaged`, `empty`, `not started` or `lost`."""
        starts = {"the run has not started": "not started", "the run ended": "failed"}
        starts |= {word: word for word in ("failed", "damaged", "empty")}
        return next((state for start, state in starts.items() if self.reason.startswith(start)), "lost")


def identify(path: Path, reason: str) -> LostRun:
    """Return the lost run in a folder, with what its record or else its config.yaml tells about it."""
    try:
        record = json.loads((path / RECORD_FILE).read_text(encoding="utf-8"))
        config = record["config"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):  # missing or damaged: the next file
        record, config = {}, None
    if not isinstance(config, Mapping):
        try:
            config = read_config_file(path / CONFIG_FILE)
        except UsageError:  # the run stays unidentified; `reason` already says what is wrong with it
            return LostRun(path, reason)

    def section(name: str) -> Mapping[str, Any]:
        found = config.get(name)
        return found if isinstance(found, Mapping) else {}

    names = {
        "algorithm": record.get("algorithm", config.get("algorithm")),
        "mode": record.get("training_mode", config.get("mode")),
        "env": record.get("env", section("env").get("id")),
    }
    texts = {key: value if isinstance(value, str) else None for key, value in names.items()}
    seed = record.get("seed", section("training").get("seed"))
    nodes = section("cluster").get("num_nodes") if texts["mode"] == "distributed" else None
    return LostRun(
        path,
        reason,
        **texts,
        seed=seed if type(seed) is int else None,
        config=config,
        nodes=nodes if type(nodes) is int else None,
    )
