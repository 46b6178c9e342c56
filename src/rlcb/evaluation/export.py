"""Exports a run as a folder for a model hub: weights, configuration, metrics and a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open
from safetensors.torch import save_file

from rlcb.config.algorithms import ALGORITHMS
from rlcb.config.config import Config
from rlcb.config.games import procgen_game
from rlcb.config.yaml_file import build_config, dump_config, read_config_file
from rlcb.errors import RunError, UsageError
from rlcb.evaluation.evaluation import load_model
from rlcb.files import read_json, write_atomically, write_json
from rlcb.rl.models import ActorCritic
from rlcb.training.checkpoint import last_checkpoint, load_checkpoint
from rlcb.training.run_folder import CONFIG_FILE, config_of_run

WEIGHTS, METRICS, CARD, EVALUATION = "model.safetensors", "metrics.json", "README.md", "evaluation.json"
FACTS_KEY = "rlcb"
"""The key of the spaces and counters in the metadata of the weights."""
LIBRARY = "rl-cluster-benchmark"
SPLITS = {"train": "training levels", "test": "unseen levels", "full": "all levels"}


def export_run(root: Path, output: Path) -> Path:
    """Write the newest policy of the run in `root` to the folder `output`, which must be new or empty.

    Returns `output`. Raises UsageError if there is no run or no checkpoint, RunError if a file cannot be
    written.
    """
    config = config_of_run(root)
    path = last_checkpoint(root)
    checkpoint = load_checkpoint(path)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"--output {output} is not empty; give another folder")
    record = read_json(root / "benchmark_metrics.json")
    evaluation = newest_evaluation(root, path)
    facts = {
        "algorithm": checkpoint["algorithm"],
        "mode": checkpoint["mode"],
        "timesteps": checkpoint["counters"]["timesteps"],
        "spaces": checkpoint["spaces"],
    }
    weights = {name: tensor.contiguous() for name, tensor in checkpoint["learner"]["model"].items()}
    try:
        output.mkdir(parents=True, exist_ok=True)
        save_file(weights, output / WEIGHTS, {"format": "pt", FACTS_KEY: json.dumps(facts)})
        write_atomically(output / CONFIG_FILE, dump_config(config).encode())
        write_json(output / METRICS, record or {"status": "unfinished"})
        if evaluation is not None:
            write_json(output / EVALUATION, evaluation)
        card = model_card(config, facts, record, evaluation)
        write_atomically(output / CARD, card.encode())
    except OSError as error:
        shutil.rmtree(output, ignore_errors=True)
        raise RunError(f"cannot write to {output}: {error.strerror or error}") from error
    return output


def load_export(folder: Path) -> ActorCritic:
    """Return the network of an exported folder, in evaluation mode. Raises UsageError if it is damaged."""
    path = folder / WEIGHTS
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()[FACTS_KEY])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has no common exception for files that it cannot read
        raise UsageError(f"{path} is damaged or not an export ({type(error).__name__})") from error
    config = build_config(read_config_file(folder / CONFIG_FILE), str(folder / CONFIG_FILE))
    return load_model(path, {"spaces": facts["spaces"], "learner": {"model": weights}}, config)


def newest_evaluation(root: Path, checkpoint: Path) -> dict[str, Any] | None:
    """Return the newest evaluation of a checkpoint in the environment that it was trained in, or None."""
    found = [read_json(path) for path in (root / "evaluation").glob("*.json")]
    fitting = [
        each
        for each in found
        if each.get("checkpoint") is not None
        and Path(each["checkpoint"]).name == checkpoint.name
        and each["algorithm"] != "random"
        and each["env"] == each["trained_env"]
    ]
    return max(fitting, key=lambda each: str(each["start_time"]), default=None)


def model_card(
    config: Config, facts: Mapping[str, Any], record: Mapping[str, Any], evaluation: Mapping[str, Any] | None
) -> str:
    """Return the text of README.md: YAML front matter for the Hugging Face hub, then Markdown."""
    game = procgen_game(config.env.id) or config.env.id
    label = f"{ALGORITHMS[config.algorithm].label} {config.mode}"
    front: dict[str, Any] = {
        "library_name": LIBRARY,
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", config.algorithm, config.env.id],
    }
    if evaluation is not None:
        front["model-index"] = [{"name": f"{label}, {game}", "results": results(evaluation)}]
    status = record.get("status", "unfinished")
    lines = [
        f"# {label} on {game}",
        "",
        f"A policy trained with {LIBRARY} for {facts['timesteps']:,} timesteps, seed {config.training.seed}.",
    ]
    if status != "completed":
        lines += ["", f"**The run did not complete (status: {status}).** These are its newest parameters."]
    lines += ["", "## Evaluation", "", *evaluation_lines(evaluation), "", *training_lines(record), *USE]
    return f"---\n{yaml.safe_dump(front, sort_keys=False, width=110)}---\n\n" + "\n".join(lines)


USE = (
    "## Use",
    "",
    "```python",
    "import rlcb",
    "",
    'policy = rlcb.load("path/to/this/folder")',
    "action = policy.predict(observation)  # one observation, or a batch of them",
    "```",
    "",
    f"`{WEIGHTS}` holds the weights, `{CONFIG_FILE}` every setting, `{METRICS}` the record of the run.",
    "",
)


def results(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the results of an evaluation as the hub's model-index has them, one for each level split."""
    name = procgen_game(evaluation["env"]) or evaluation["env"]
    return [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"type": evaluation["env"], "name": f"{name}, {SPLITS[split]}"},
            "metrics": [
                {"type": "mean_reward", "name": "mean return", "value": round(summary["mean_reward"], 4)}
            ],
        }
        for split, summary in evaluation["splits"].items()
    ]


def evaluation_lines(evaluation: Mapping[str, Any] | None) -> list[str]:
    """Return a table of the evaluation in Markdown, or a note that there is none."""
    if evaluation is None:
        return ["This policy has not been evaluated; `rlcb evaluate` does it."]
    lines = ["| levels | mean return | 95 % interval | episodes |", "|---|---|---|---|"]
    for split, summary in evaluation["splits"].items():
        interval = summary["ci95_mean_reward"]
        text = "one episode has none" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
        lines.append(f"| {SPLITS[split]} | {summary['mean_reward']:.2f} | {text} | {summary['episodes']} |")
    how = "most probable" if evaluation["deterministic"] else "sampled"
    return [*lines, "", f"Actions: {how}. The interval is Student's t over episodes of this one policy."]


def training_lines(record: Mapping[str, Any]) -> list[str]:
    """Return a table of the training in Markdown; nothing for a run that left no record."""
    if not record:
        return []
    final = record["performance"]["final_reward"]
    rows = {
        "status": record["status"],
        "wall clock": f"{record['duration_hours']:.3f} hours",
        "timesteps": f"{record['total_timesteps']:,}",
        "timesteps per second": f"{record['average_fps']:,.0f}" if record["average_fps"] else "unknown",
        "mean return of the last 100 episodes": "none" if final is None else f"{final:.2f}",
        "processor": record["hardware"]["cpu_model"],
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return ["## Training", "", "| | |", "|---|---|", *lines, ""]
