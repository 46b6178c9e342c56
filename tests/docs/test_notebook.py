"""The notebook of the guides runs in a Jupyter kernel, and its stored outputs come from a run."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.runs import PROJECT

nbclient = pytest.importorskip("nbclient", reason="pip install -r requirements-dev.txt")
nbformat = pytest.importorskip("nbformat", reason="pip install -r requirements-dev.txt")
pytest.importorskip("ipykernel", reason="pip install -r requirements-dev.txt")

NOTEBOOK = PROJECT / "docs" / "quickstart.ipynb"
FULL, FEW = "20_000", "2_000"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_stored_outputs_are_complete() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output.output_type != "error" for cell in cells for output in cell.outputs)
    text = json.dumps(notebook)
    assert "completed after 20,480 timesteps" in text and "Return at equal timesteps" in text


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    notebook = copy.deepcopy(nbformat.read(NOTEBOOK, 4))
    assert any(FULL in cell.source for cell in notebook.cells)
    for cell in notebook.cells:
        cell.source = cell.source.replace(FULL, FEW).replace('log_interval": 10}', 'log_interval": 1}')
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources, kernel_name="python3").execute()
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    printed = "".join(output.get("text", "") for output in outputs)
    assert printed.count("TRAINING SUMMARY") == 2 and "FPS · reward" in printed
    shown = [output.data for output in outputs if "data" in output]
    assert any("<table>" in data.get("text/html", "") for data in shown)
    assert any("completed after 2,048 timesteps" in data.get("text/plain", "") for data in shown)
