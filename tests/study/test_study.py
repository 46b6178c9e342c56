"""A study: its planned runs, their order, settings and states, and its time estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcb.cli.benchmark import chosen_settings, given_settings, make_parser
from rlcb.config.yaml_file import parse_settings
from rlcb.errors import UsageError
from rlcb.paths import PROJECT
from rlcb.study.console import print_study_plan
from rlcb.study.folder import StudyFolder, open_study
from rlcb.study.settings import configuration_settings
from rlcb.study.state import (
    EVALUATION_START_SECONDS,
    START_SECONDS,
    TimeEstimate,
    last_row,
    read_state,
)
from rlcb.study.study import Study, build_study


def study(**settings: Any) -> Study:
    return build_study({"algorithms": ["ppo", "a2c"], **settings}, "study")


def open_with(root: Path, *flags: object, extend: bool = False) -> StudyFolder:
    """Open a study as the command line does."""
    return open_study(root, given_settings(make_parser().parse_args([*map(str, flags)])), extend)


PPO = ("--algorithms", "ppo", "--duration", 0.5)


# --- The matrix ---------------------------------------------------------------------------------------------


def test_by_seed_runs_every_configuration_before_the_next_seed() -> None:
    runs = study(seeds=[7, 8], envs=["coinrun", "maze"]).runs
    assert [run.number for run in runs] == list(range(1, 17))
    assert [run.seed for run in runs] == [7] * 8 + [8] * 8
    first, second = ([(c.algorithm, c.mode, c.env) for c in runs if c.seed == seed] for seed in (7, 8))
    assert first == second
    assert len({*first}) == 8


def test_by_config_runs_all_seeds_of_a_configuration_in_a_row() -> None:
    runs = study(seeds=[8, 7], envs=["coinrun", "maze"], order="by-config").runs
    assert [run.seed for run in runs] == [8, 7] * 8
    pairs = [(c.algorithm, c.mode, c.env) for c in runs]
    assert pairs[::2] == pairs[1::2]
    assert len({*pairs}) == 8


def test_sequential_a3c_is_left_out_with_a_reason() -> None:
    both = study(algorithms=["a3c", "a2c"])
    assert [(c.algorithm, c.mode) for c in both.runs] == [
        ("a3c", "parallel"),
        ("a2c", "sequential"),
        ("a2c", "parallel"),
    ]
    (said,) = both.left_out
    assert said.startswith("A3C sequential")
    with pytest.raises(UsageError, match="A3C is asynchronous"):
        study(algorithms=["a3c"], modes=["sequential"])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"algoritms": ["ppo"]}, "algoritms"),
        ({"algorithms": []}, "algorithms"),
        ({"algorithms": ["dqn"]}, "dqn"),
        ({"modes": "parallel"}, "modes"),
        ({"envs": ["coinrun", "procgen-coinrun-v0"]}, "procgen-coinrun-v0"),
        ({"seeds": [1, 2, 1]}, "1 is given twice"),
        ({"seeds": [-1]}, "-1"),
        ({"envs": ["a/b-v0", "a-b-v0"]}, "share their folders"),
        ({"duration": 0.5, "total_timesteps": 100}, "one budget"),
        ({"duration": -1.0}, "duration"),
        ({"duration": float("nan")}, "duration"),
        ({"cooldown": -5.0}, "cooldown"),
        ({"order": "random"}, "order"),
    ],
)
def test_an_invalid_study_is_rejected_with_the_key_or_value(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as error:
        study(**settings)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_algorithms_and_games_are_accepted_in_every_spelling() -> None:
    made = study(algorithms=["PPO"], envs=["coinrun", "procgen:procgen-maze-v0"])
    assert made.algorithms == ["ppo"]
    assert made.envs == ["procgen-coinrun-v0", "procgen-maze-v0"]
    assert made.duration == 1.0


# --- Settings -----------------------------------------------------------------------------------------------


def test_the_most_specific_setting_wins_and_other_runs_do_not_get_it() -> None:
    made = study(
        set={
            "ppo_parallel:training.gamma": 0.93,
            "ppo:training.gamma": 0.92,
            "training.gamma": 0.91,
            "parallel:training.n_steps": 5,
        },
        num_envs=12,
        num_workers=3,
    )
    found = {pair: configuration_settings(made, *pair) for pair in made.configurations}
    gammas = [found[pair]["training"]["gamma"] for pair in found]
    assert gammas == [0.92, 0.93, 0.91, 0.91]
    assert {pair: data["env"]["num_envs"] for pair, data in found.items()} == dict.fromkeys(found, 12)
    for (_, mode), data in found.items():
        assert (data["training"]["n_steps"] == 5) == (mode == "parallel")
        assert (data.get("parallel") or {}).get("num_workers") == (3 if mode == "parallel" else None)


def test_an_overlay_goes_over_the_default_file_of_each_mode(tmp_path: Path) -> None:
    overlay = tmp_path / "machine.yaml"
    overlay.write_text(
        "env:\n  num_envs: 64\nwhen:\n  ppo:\n    training:\n      n_steps: 7\n"
        "  ppo_parallel:\n    parallel:\n      num_workers: 4\n  impala:\n    env:\n      num_envs: 48\n"
    )
    made = study(algorithms=["ppo"], config={"ppo": str(overlay)})
    for mode, workers in (("sequential", None), ("parallel", 4)):
        data = configuration_settings(made, "ppo", mode)
        assert (data["env"]["num_envs"], data["training"]["n_steps"]) == (64, 7)
        assert (data.get("parallel") or {}).get("num_workers") == workers
        assert data["training"]["batch_size"] is not None  # from the default file
    overlay.write_text("when:\n  dqn:\n    training:\n      n_steps: 7\n")
    with pytest.raises(UsageError, match=r"when\.dqn"):
        configuration_settings(made, "ppo", "parallel")


def test_overlays_are_found_in_the_projects_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_with(tmp_path / "s", *PPO, "--config", "ppo=config/machine/ryzen7.yaml")
    assert all(config.env.num_envs == 64 for config in opened.configs.values())


def test_num_workers_sets_the_actors_of_impala() -> None:
    made = study(algorithms=["impala"], num_workers=3)
    assert configuration_settings(made, "impala", "parallel")["impala"]["num_actors"] == 3
    sequential = configuration_settings(made, "impala", "sequential")
    assert (sequential.get("impala") or {}).get("num_actors") is None


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--set", "training.seed=3"), "--seeds"),
        (("--set", "ppo:training.duration_hours=3"), "--duration"),
        (("--set", "logging.log_dir=here"), "--output-dir"),
        (("--set", "a2c:training.gamma=0.9"), "a2c"),
        (("--set", "training.gamma"), "KEY=VALUE"),
        (("--set", "training.gama=0.9"), "training.gama"),
        (("--set", "training.gamma=2"), "training.gamma"),
        (("--config", "nowhere.yaml"), "NAME=FILE"),
        (("--config", "parallel=nowhere.yaml"), "ALGORITHM_MODE=FILE"),
        (("--config", "ppo=nowhere.yaml"), "nowhere.yaml"),
        (("--config", f"ppo={PROJECT / 'config/ppo_parallel.yaml'}"), "ppo sequential"),
        (("--envs", "coinrunn"), "coinrunn"),
        (("--envs", "no_such_module:Env-v0"), "no_such_module"),
        (("--num-workers", "5"), "num_workers = 5"),
        (("--study", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_invalid_input_is_rejected_before_anything_is_written(
    tmp_path: Path, flags: tuple[str, ...], named: str
) -> None:
    with pytest.raises(UsageError) as error:
        open_with(tmp_path / "s", *PPO, *flags)
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_values_of_settings_are_parsed_as_yaml() -> None:
    assert parse_settings(["a.b=1e-3", "ppo:c.d=[1, 2]", "e.f=x=y"]) == {
        "a.b": 0.001,
        "ppo:c.d": [1, 2],
        "e.f": "x=y",
    }


# --- The folder ---------------------------------------------------------------------------------------------


def test_flags_override_the_study_file_and_its_paths_start_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("training: {gamma: 0.5, batch_size: 32}\n")
    text = "algorithms: [ppo]\nseeds: [1, 2]\nduration: 2\nconfig: {ppo: my.yaml}\nset: {env.num_envs: 8}\n"
    (tmp_path / "study.yml").write_text(text)
    file = ("--study", tmp_path / "study.yml")
    folder = open_with(
        tmp_path / "s", *file, "--seeds", 3, "--total-timesteps", "1e3", "--set", "training.n_steps=8"
    )
    assert folder.study.seeds == [3]
    assert (folder.study.duration, folder.study.total_timesteps) == (None, 1000)
    for config in folder.configs.values():
        assert config.training.gamma == 0.5
        assert (config.env.num_envs, config.training.n_steps) == (8, 8)


def test_a_study_file_may_give_times_and_counts_in_words(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "algorithms: [ppo, a2c]\nduration: 90s\nmax_hours: 1h30m\nuntil_decided: true\ncooldown: 1m\n"
    )
    for flags in ((), ("--hours",)):
        arguments = make_parser().parse_args(["--study", str(file), *flags])
        opened = open_study(tmp_path / "new", chosen_settings(tmp_path / "new", arguments)).study
        assert (opened.duration, opened.max_hours, opened.cooldown) == (0.025, 1.5, 60.0)
    flags = ("--study", file, "--total-timesteps", "250k", "--cooldown", "2m", "--max-hours", "45m")
    opened = open_with(tmp_path / "new", *flags).study
    assert (opened.duration, opened.total_timesteps) == (None, 250_000)
    assert (opened.max_hours, opened.cooldown) == (0.75, 120.0)


def test_the_example_study_is_valid(tmp_path: Path) -> None:
    folder = open_with(tmp_path / "s", "--study", PROJECT / "config" / "studies" / "example.yaml")
    assert len(folder.study.runs) == 7 * 2 * 3


def test_an_existing_study_opens_as_it_was_written(tmp_path: Path) -> None:
    root = tmp_path / "s"
    flags = (*PPO, "--seeds", 1, 2, "--set", "training.gamma=0.9", "--cooldown", 3)
    first = open_with(root, *flags)
    first.write()
    for again in (open_with(root), open_with(root, *flags), open_with(root, "--duration", 0.5)):
        assert again.exists
        assert again.study == first.study
        assert again.configs == first.configs
    assert {path.name for path in (root / "configs").iterdir()} == {
        "ppo_sequential.yaml",
        "ppo_parallel.yaml",
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--duration", 1), ["duration = 0.5 there, 1 now"]),
        (("--total-timesteps", 9), ["duration = 0.5 there, None now", "total_timesteps = None there, 9 now"]),
        (("--seeds", 1, 2, 3), ["seeds = 1 2 there, 1 2 3 now", "--extend"]),
        (("--seeds", 2), ["seeds = 1 2 there, 2 now"]),
        (("--algorithms", "a2c", "--envs", "maze"), ["algorithms = ppo there, a2c now", "envs = "]),
        (("--set", "training.gamma=0.8"), ["0.9", "0.8"]),
        (("--order", "by-config"), ["order"]),
    ],
)
def test_changed_settings_of_an_existing_study_are_rejected_by_name(
    tmp_path: Path, flags: tuple[object, ...], said: list[str]
) -> None:
    root = tmp_path / "s"
    open_with(root, *PPO, "--seeds", 1, 2, "--set", "training.gamma=0.9").write()
    before = (root / "study.yaml").read_bytes()
    with pytest.raises(UsageError) as error:
        open_with(root, *flags)
    assert all(text in str(error.value) for text in said), error.value
    assert "\n" not in str(error.value)
    assert (root / "study.yaml").read_bytes() == before


def test_cooldown_and_evaluation_episodes_may_change(tmp_path: Path) -> None:
    open_with(tmp_path / "s", *PPO).write()
    study = open_with(tmp_path / "s", "--cooldown", 9, "--evaluate-episodes", 7).study
    assert (study.cooldown, study.evaluate_episodes) == (9, 7)


def test_a_study_can_be_extended_but_not_made_smaller(tmp_path: Path) -> None:
    root = tmp_path / "s"
    open_with(root, *PPO, "--seeds", 1, 2).write()
    more = ("--seeds", 1, 2, 3, "--algorithms", "ppo", "a2c")
    grown = open_with(root, *more, extend=True)
    assert len(grown.study.runs) == 3 * 4
    grown.write()
    assert open_with(root).study == grown.study
    with pytest.raises(UsageError, match="seeds = 1 2 3 there, 1 now"):
        open_with(root, "--seeds", 1, extend=True)


def test_runs_keep_the_configuration_of_the_first_start(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("training: {gamma: 0.5}\n")
    flags = (*PPO, "--config", f"ppo={file}")
    open_with(tmp_path / "s", *flags).write()
    file.write_text("training: {gamma: 0.75}\n")
    config = next(iter(open_with(tmp_path / "s").configs.values()))
    assert config.training.gamma == 0.5
    with pytest.raises(UsageError, match=r"training\.gamma = 0\.5 there, 0\.75 now"):
        open_with(tmp_path / "s", *flags)


def test_a_folder_that_holds_no_study_is_rejected_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UsageError, match="not empty"):
        open_with(tmp_path, *PPO)
    with pytest.raises(UsageError, match="a file"):
        open_with(tmp_path / "thesis.txt", *PPO)
    with pytest.raises(UsageError, match="--algorithms"):
        open_with(tmp_path / "new", "--seeds", 1)


# --- States of runs -----------------------------------------------------------------------------------------


def record_for(run: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "status": status,
        "algorithm": run.algorithm,
        "training_mode": run.mode,
        "env": run.env,
        "seed": run.seed,
        "total_timesteps": 1000,
        "duration_hours": 0.25,
        "average_fps": 50.0,
        **more,
    }


def evaluation(**more: Any) -> dict[str, Any]:
    env = "procgen-coinrun-v0"
    facts = {"algorithm": "ppo", "env": env, "trained_env": env, "timesteps": 1000, "deterministic": False}
    return {**facts, "episodes_per_split": 100, "duration_seconds": 30.0, **more}


def put(folder: Path, record: dict[str, Any] | None, *evaluations: dict[str, Any]) -> Path:
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").touch()
    if record is not None:
        (folder / "benchmark_metrics.json").write_text(json.dumps(record))
    for number, each in enumerate(evaluations):
        (folder / "evaluation" / f"{number}.json").write_text(json.dumps(each))
    return folder


def test_the_state_of_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    made = study()
    run = made.runs[0]
    assert read_state(made, run, tmp_path / "none").text == "to do"
    folder = put(tmp_path / "run", None)
    assert read_state(made, run, folder).text == "unfinished"
    for status in ("interrupted", "failed"):
        state = read_state(made, run, put(folder, record_for(run, status)))
        assert (state.text, state.resumable, state.done) == (status, True, False)
    state = read_state(made, run, put(folder, record_for(run)))
    assert (state.text, state.resumable, state.done) == ("not evaluated", False, False)
    assert state.elapsed_seconds == 900
    state = read_state(made, run, put(folder, record_for(run), evaluation()))
    assert (state.text, state.done) == ("completed", True)
    (folder / "benchmark_metrics.json").write_text('{"status": "comp')
    assert read_state(made, run, folder).text == "unfinished"


@pytest.mark.parametrize(
    "other",
    [
        {"algorithm": "random"},
        {"episodes_per_split": 20},
        {"timesteps": 900},
        {"deterministic": True},
        {"env": "procgen-maze-v0"},
    ],
)
def test_an_evaluation_with_other_settings_does_not_count(tmp_path: Path, other: dict[str, Any]) -> None:
    made = study()
    folder = put(tmp_path, record_for(made.runs[0]), evaluation(**other))
    assert not read_state(made, made.runs[0], folder).done
    assert read_state(study(evaluate_episodes=0), made.runs[0], folder).done


def test_a_folder_with_another_run_is_rejected(tmp_path: Path) -> None:
    made = study()
    put(tmp_path, record_for(made.runs[0], seed=5))
    with pytest.raises(UsageError, match="another run"):
        read_state(made, made.runs[0], tmp_path)


def test_the_newest_complete_row_is_read(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "PPO_Sequential"
    log.mkdir(parents=True)
    (log / "metrics.jsonl").write_text('{"update": 1}\n{"update": 2}\n{"upda')
    assert last_row(tmp_path) == {"update": 2}
    assert last_row(log) == {}


# --- Time estimates -----------------------------------------------------------------------------------------


def test_the_time_of_a_timed_study_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    made = study(duration=0.5, cooldown=10.0, seeds=[1, 2])
    first, second = made.runs[:2]
    put(tmp_path / first.name, record_for(first), evaluation())
    put(tmp_path / second.name, record_for(second, "interrupted"))
    states = {run.name: read_state(made, run, tmp_path / run.name) for run in made.runs}
    one_evaluation = EVALUATION_START_SECONDS + 30
    expected = 7 * (1800 + START_SECONDS + one_evaluation) - 900 + 6 * 10
    assert TimeEstimate(made, states).total_remaining(made.runs, states) == pytest.approx(expected)


def test_the_time_of_a_timestep_budget_comes_from_similar_runs(tmp_path: Path) -> None:
    made = study(total_timesteps=1000, evaluate_episodes=0)
    fast, slow = made.runs[:2]
    states = {run.name: read_state(made, run, tmp_path / run.name) for run in made.runs}
    estimate = TimeEstimate(made, states)
    assert estimate.total_remaining(made.runs, states) is None
    assert estimate.training(fast, fps=20.0) == pytest.approx(50)
    put(tmp_path / fast.name, record_for(fast, average_fps=100.0))
    put(tmp_path / slow.name, record_for(slow, average_fps=50.0))
    states = {run.name: read_state(made, run, tmp_path / run.name) for run in made.runs}
    estimate = TimeEstimate(made, states)
    assert estimate.training(fast) == pytest.approx(10)
    assert estimate.training(slow) == pytest.approx(20)
    assert estimate.training(made.runs[2]) == pytest.approx(1000 / 75)


def test_study_yaml_can_be_given_as_a_study_file(tmp_path: Path) -> None:
    first = open_with(tmp_path / "a", *PPO, "--seeds", 4)
    first.write()
    assert yaml.safe_load((tmp_path / "a" / "study.yaml").read_text())["seeds"] == [4]
    assert open_with(tmp_path / "b", "--study", tmp_path / "a" / "study.yaml").study == first.study


@pytest.mark.parametrize(("timesteps", "noted"), [("1000", True), ("1M", False)])
def test_the_plan_says_if_a_run_has_fewer_timesteps_than_one_update(
    timesteps: str, noted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--algorithms", "ppo", "--modes", "sequential", "--total-timesteps", timesteps)
    folder = open_with(tmp_path / "new", *flags)
    print_study_plan(folder, folder.states(), retry_failed=False)
    said = " ".join(capsys.readouterr().out.split())
    note = "note PPO sequential: training.total_timesteps = 1000: one update takes 4,096 timesteps"
    assert (note in said) == noted


@pytest.mark.parametrize(
    ("flags", "cores", "note"),
    [
        ((), 32, ""),
        (
            (),
            48,
            "note parallel A2C, PPO: 32 workers on 48 cores; --num-envs in multiples of 48 uses all of them",
        ),
        (("--num-workers", 16), 32, ""),
        (("--set", "parallel:parallel.num_workers=16"), 32, ""),
        (("--num-workers", 16), 8, "note parallel A2C, PPO: 16 processes on 8 cores"),
    ],
)
def test_the_plan_says_if_workers_do_not_fit_the_cores(
    flags: tuple[object, ...],
    cores: int,
    note: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("config.config", "study.console"):
        monkeypatch.setattr(f"rlcb.{module}.usable_cores", lambda: cores)
    words = ("--algorithms", "ppo", "a2c", "--modes", "sequential", "parallel", "--duration", 0.5, *flags)
    folder = open_with(tmp_path / "new", *words)
    print_study_plan(folder, folder.states(), retry_failed=False)
    said = " ".join(capsys.readouterr().out.split())
    assert ("note parallel" in said) == bool(note)
    assert note in said
