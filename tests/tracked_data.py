"""Reading back what the experiment trackers stored, and a stand-in for wandb that writes plain JSON."""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs import PROJECT

STAND_IN = """
import json, os, time

FILE, TROUBLE = os.environ["STAND_IN_FILE"], os.environ.get("STAND_IN_TROUBLE", "")


def trouble(call):
    if TROUBLE == f"raise {call}":
        raise ValueError(f"no {call} today")
    while TROUBLE == f"hang {call}":
        time.sleep(1)
    if TROUBLE == f"die {call}":
        os._exit(7)


def write(kind, content):
    with open(FILE, "a") as file:
        file.write(json.dumps([kind, content]) + "\\n")


class Settings:
    def __init__(self, **settings): pass


class Image:
    def __init__(self, path): self.size = os.path.getsize(path)


class Summary:
    def update(self, facts): write("summary", facts)


class Run:
    dir, url, summary = "here/files", None, Summary()

    def log(self, row, step=None):
        trouble("log")
        write("row", {key: getattr(value, "size", value) for key, value in row.items()})

    def finish(self, exit_code):
        trouble("finish")
        write("finish", exit_code)


def init(**options):
    trouble("init")
    options.pop("settings")
    write("init", options)
    return Run()


def teardown(exit_code): pass
"""


def stand_in_for_wandb(folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str = "") -> Path:
    """Put a stand-in before the package wandb, for this process and its children; return its file.

    `trouble` is `raise`, `hang` or `die` with the call where that happens: init, log or finish.
    """
    (folder / "stand_in").mkdir()
    (folder / "stand_in" / "wandb.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder / "stand_in"))
    path = os.pathsep.join([str(folder / "stand_in"), str(PROJECT / "src")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("STAND_IN_FILE", str(folder / "tracked.jsonl"))
    monkeypatch.setenv("STAND_IN_TROUBLE", trouble)
    return folder / "tracked.jsonl"


def stood_in(path: Path, kind: str) -> list[Any]:
    """Everything of a kind that the stand-in was given: init, row, summary or finish."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [content for each, content in lines if each == kind]


def offline_records(folder: Path) -> Iterator[Any]:
    """The records of all offline files of wandb below a folder, oldest first.

    A file has a header of 7 bytes and then blocks of 32 KiB, as LevelDB's log: each piece of a record has a
    CRC, its length, and whether it is whole (1) or the first (2), a middle (3) or the last piece (4).
    """
    pb = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, position, record = path.read_bytes(), 7, b""
        while position + 7 <= len(data):
            if 32768 - position % 32768 < 7:
                position += 32768 - position % 32768
                continue
            _, length, kind = struct.unpack("<IHB", data[position : position + 7])
            record = (b"" if kind in (1, 2) else record) + data[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):
                yield pb.Record.FromString(record)


def wandb_items(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def wandb_data(run: Path) -> dict[str, Any]:
    """The rows, the summary, the configuration and the names that wandb stored of a run."""
    found: dict[str, Any] = {"rows": [], "summary": {}, "runs": []}
    for record in offline_records(run / "tracking"):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = wandb_items(record.history.item)
            found["rows"].append({key: value for key, value in row.items() if not key.startswith("_")})
        elif kind == "summary":
            found["summary"] |= wandb_items(record.summary.update)
        elif kind == "run":
            found["runs"].append(record.run)
            found["config"] = found.get("config", {}) | wandb_items(record.run.config.update)
    first = found["runs"][0]
    return {**found, "name": first.display_name, "group": first.run_group, "tags": list(first.tags)}


def trackio_data(run: Path) -> dict[str, Any]:
    """The same from trackio's database in this process's TRACKIO_DIR."""
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    state = json.loads((run / "tracking" / "state.json").read_text())
    project, name = state["project"], state["name"]
    logs = storage.get_logs(project, name)
    rows = [
        {key: value for key, value in each.items() if key not in ("timestamp", "step")}
        for each in logs
        if "update" in each
    ]
    steps = [each["step"] for each in logs if "update" in each]
    assert steps == [row["timesteps"] for row in rows]
    config = storage.get_run_config(project, name)
    facts = [each for each in logs if "update" not in each]
    return {
        "rows": rows,
        "summary": {key: value for each in facts for key, value in each.items()},
        "config": config,
        "name": name,
        "group": config["_Group"],
        "tags": config["tags"],
        "runs": storage.get_runs(project),
    }
