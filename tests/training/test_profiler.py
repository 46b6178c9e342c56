"""The profiler hook: it traces the second call, and only if a folder is given."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from rlcb.training.profiler import maybe_profile


def test_the_second_call_is_traced_with_its_operators(tmp_path: Path) -> None:
    profile_update = maybe_profile(tmp_path, "learner")
    for operator in (torch.exp, torch.sin, torch.cos):
        assert not (tmp_path / "learner.json").exists() or operator is torch.cos
        with profile_update():
            operator(torch.ones(1000))
    found = json.loads((tmp_path / "learner.operators").read_text(encoding="utf-8"))
    names = {operator["name"]: operator for operator in found["operators"]}
    assert names["aten::sin"]["calls"] == 1
    assert "aten::exp" not in names and "aten::cos" not in names
    assert 0 < names["aten::sin"]["seconds"] <= found["seconds"]
    events = json.loads((tmp_path / "learner.json").read_text(encoding="utf-8"))["traceEvents"]
    assert "aten::sin" in {event.get("name") for event in events}


def test_without_a_folder_nothing_is_traced(tmp_path: Path) -> None:
    profile_update = maybe_profile(None, "learner")
    for _ in range(3):
        with profile_update():
            torch.sin(torch.ones(10))
    assert list(tmp_path.iterdir()) == []
