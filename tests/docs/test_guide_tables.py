"""The tables of the guides say what the program says: settings, files, figures, flags, messages."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import integrate, stats

from rlcb.cli import evaluate
from rlcb.comparison import fairness
from rlcb.comparison.metrics import METRICS
from rlcb.comparison.sequential_test import ROUNDS_NEEDED, least_rounds, threshold
from rlcb.config.yaml_file import build_config, parse_yaml, read_config_files
from rlcb.errors import UsageError
from rlcb.parallel.remote_tally import RemoteTally
from rlcb.study.plan import plan_study
from rlcb.study.study import Study
from tests import guide_blocks as guide
from tests.guide_settings import settings
from tests.runs import PROJECT

REFERENCE, BENCHMARKING = PROJECT / "docs/reference.md", PROJECT / "docs/benchmarking.md"
CONFIG = PROJECT / "config"


def test_every_setting_is_in_the_guide_with_its_rule_and_default() -> None:
    (rows_of_guide,) = guide.tables(REFERENCE, "Every setting")
    named = {
        guide.code(key): (rule, parse_yaml(guide.code(default), key))
        for key, rule, default, _ in rows_of_guide
    }
    known = {key: (rule, json.loads(json.dumps(default))) for key, (rule, default) in settings().items()}
    assert list(named) == list(known)
    for key, (rule, default) in known.items():
        assert named[key] == (rule, default), key


def test_every_setting_of_a_study_is_in_the_guide() -> None:
    (rows_of_guide,) = guide.tables(REFERENCE, "Settings of a study")
    assert [guide.code(key) for key, _, _ in rows_of_guide] == list(Study.model_fields)


def test_the_rounds_of_the_sequential_test_are_in_the_guide() -> None:
    (rows_of_guide,) = guide.tables(BENCHMARKING, "Add seeds until it is settled")
    for groups, one, two, _, least in rows_of_guide:
        assert (int(one.split()[0]), int(two.split()[0])) == ROUNDS_NEEDED[int(groups)]
        assert int(least) == least_rounds(threshold(int(groups)))
    assert len(rows_of_guide) == len(ROUNDS_NEEDED)


def test_the_plans_in_the_guide_are_those_of_two_cores() -> None:
    (rows_of_guide,) = guide.tables(BENCHMARKING, "Let the program plan")
    for hours, games, algorithms, modes, seeds, length in rows_of_guide:
        plan = plan_study(float(hours), 2, {})
        sizes = [len(plan.settings[key]) for key in ("envs", "algorithms", "modes", "seeds")]
        assert sizes == [int(games), int(algorithms), {"parallel": 1, "both": 2}[modes], int(seeds)]
        number, unit = length.split()
        said = float(number) * {"seconds": 1, "minutes": 60}[unit]
        assert plan.training_seconds == pytest.approx(said, rel=0.1)


def sizes_of(files: list[Path], algorithm: str, mode: str) -> list[Any]:
    """Environments, steps, minibatch, epochs and processes of a run with these configuration files."""
    data = read_config_files(files, algorithm, mode)
    config, training = build_config(data, files[-1].name), data["training"]
    section, key = ("impala", "num_actors") if config.has_actors else ("parallel", "num_workers")
    processes = 1 if mode == "sequential" else (data.get(section) or {}).get(key)
    sizes = (training[key] for key in ("n_steps", "batch_size", "n_epochs"))
    return [data["env"]["num_envs"], *sizes, processes]


def test_every_configuration_file_is_in_the_guide_with_its_sizes() -> None:
    rows_of_guide, _ = guide.tables(REFERENCE, "Configuration files")
    files = {path.name for path in CONFIG.glob("*.yaml") if not path.name.startswith("local_")}
    assert {guide.code(row[0]) for row in rows_of_guide} == files - {"paper.yaml"}
    for name, _, *sizes in rows_of_guide:
        path = CONFIG / guide.code(name)
        algorithm, mode = path.stem.replace("cpu_cluster", "distributed").split("_")
        assert [yaml.safe_load(size) for size in sizes] == sizes_of([path], algorithm, mode), path.name


def test_every_overlay_is_in_the_guide_with_its_sizes() -> None:
    _, rows_of_guide = guide.tables(REFERENCE, "Configuration files")
    folders = [path for name in ("machine", "envs", "tuned") for path in (CONFIG / name).glob("*.yaml")]
    overlays = {"paper.yaml", *(str(path.relative_to(CONFIG)) for path in folders)}
    assert {guide.code(row[0]) for row in rows_of_guide} == overlays
    for name, _, label, *sizes in rows_of_guide:
        shown = [yaml.safe_load(size) for size in sizes]
        for mode, processes in (("sequential", 1), ("parallel", shown[-1])):
            files = [CONFIG / f"{label.lower()}_{mode}.yaml", CONFIG / guide.code(name)]
            assert sizes_of(files, label.lower(), mode) == [*shown[:-1], processes], (name, label, mode)


def test_what_runs_with_remote_actors_record_is_in_the_guide() -> None:
    """Its second tables of fields and of metrics, since no run of the guide has remote actors."""
    tally = RemoteTally(1)
    tally.add("gpu2", 1)
    tally._changed_at["gpu2"] -= 10
    tally.news()
    record = tally.record()
    named = {guide.code(row[0]) for row in guide.tables(REFERENCE, "benchmark_metrics.json")[1]}
    fields = {f"impala.remote.{key}" for key in record if key != "events"}
    assert named == fields | {f"impala.remote.events[].{key}" for key in record["events"][0]}
    named = {guide.code(row[0]) for row in guide.tables(REFERENCE, "metrics.jsonl")[1]}
    assert named == {*tally.metrics()}


def test_every_figure_of_comparisons_is_in_the_guide_with_its_unit() -> None:
    rows_of_guide = guide.tables(REFERENCE, "Metrics of a comparison")[-1]
    named = [(guide.code(key), unit) for key, unit, _ in rows_of_guide]
    assert named == [(metric.key, metric.unit) for metric in METRICS]


def test_every_flag_of_the_evaluator_that_is_named_exists_and_none_is_forgotten() -> None:
    named = set()
    for flag, _ in guide.tables(REFERENCE, "Evaluation flags")[0]:
        words = guide.code(flag).split()
        named.add(words[0])
        evaluate.make_parser().parse_args(words)
    known = {name for action in evaluate.make_parser()._actions for name in action.option_strings}
    assert known - named == {"-h", "--help", "--checkpoint", "--device", "--num-threads", "--video-episodes"}


def test_every_aspect_of_fairness_is_in_the_guide() -> None:
    tree = ast.parse(Path(fairness.__file__).read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Difference"
    ]
    aspects = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    aspects |= {*fairness.SECTIONS.values(), "total environments", "budget"}
    table = guide.tables(BENCHMARKING, "A fair comparison")[1]
    assert {guide.code(row[0]) for row in table} == aspects


def test_messages_that_the_guide_explains_are_those_of_the_program() -> None:
    texts: list[str] = []
    for path in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    said = "\n".join(texts)
    for message, _ in guide.tables(REFERENCE, "Troubleshooting")[1]:
        assert guide.code(message) in said, message


def test_the_power_of_few_seeds_is_as_the_guide_says() -> None:
    def power(difference: float, seeds: int, alpha: float) -> float:
        """Of a two-sided t-test of two groups with equal deviations; the difference in deviations."""
        degrees, shift = 2 * seeds - 2, difference * (seeds / 2) ** 0.5
        limit = stats.t.ppf(1 - alpha / 2, degrees)

        def density(u: float) -> float:
            cut = limit * (u / degrees) ** 0.5
            return float(
                stats.chi2.pdf(u, degrees) * (stats.norm.sf(cut - shift) + stats.norm.cdf(-cut - shift))
            )

        return float(integrate.quad(density, 0, 6 * degrees + 60, limit=200)[0])

    for seeds, one, six in guide.tables(BENCHMARKING, "How many seeds")[0]:
        for cell, alpha in ((one, 0.05), (six, 0.05 / 6)):
            assert power(float(cell), int(seeds), alpha) == pytest.approx(0.8, abs=0.005), (seeds, cell)


def test_a_combination_that_the_guide_rules_out_is_refused() -> None:
    for data in ({"algorithm": "a3c"}, {"algorithm": "impala", "training": {"n_epochs": 2}}):
        with pytest.raises(UsageError):
            build_config(data, "guide")
