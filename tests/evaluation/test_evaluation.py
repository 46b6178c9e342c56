"""The evaluator: which episodes count, which levels it plays, what it writes, how it rejects bad input."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import imageio.v3 as iio
import numpy as np
import pytest
import torch

from rlcb import seeding
from rlcb.cli import evaluate as evaluate_cli
from rlcb.cli import prepared_run
from rlcb.cli import train as train_cli
from rlcb.config.games import MAX_LEVEL
from rlcb.config.yaml_file import build_config, dump_config
from rlcb.envs.levels import env_config, evaluated_env, splits_of
from rlcb.envs.procgen import RESET_ACTION, ProcgenVectorEnv
from rlcb.envs.vector_env import make_vector_env
from rlcb.errors import RunError, UsageError
from rlcb.evaluation import video
from rlcb.evaluation.episodes import PlayedEpisode, episode_quotas, play, random_policy
from rlcb.evaluation.evaluation import STREAMS, Evaluation, Plan, evaluate, generalisation_gap, summarise
from rlcb.training.checkpoint import last_checkpoint
from tests import fault_env, runs
from tests.episode_env import BY_SEED, ENDLESS, LIMIT, LIMITED, length_of

COINRUN_LEVELS = range(3, 8)


class Result(NamedTuple):
    code: int
    out: str
    err: str


def train(folder: Path, *flags: str) -> Path:
    """Train for one small update and return the final checkpoint."""
    arguments = [
        "--total-timesteps",
        "1",
        "--set",
        "training.n_epochs=1",
        "--set",
        "logging.tensorboard=false",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_run, "prepare_process", lambda *_: 1)  # torch is loaded already
        assert (
            train_cli.main("ppo", "sequential", False, [*arguments, "--output-dir", str(folder), *flags]) == 0
        )
    return folder / "checkpoints" / "ppo_sequential_final.pt"


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ("--env", "CartPole-v1", "--num-envs", "4", "--n-steps", "16", "--batch-size", "32")
    return train(tmp_path_factory.mktemp("cartpole"), *flags)


@pytest.fixture(scope="module")
def coinrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ("--env", "coinrun", "--num-envs", "4", "--n-steps", "8", "--batch-size", "16")
    levels = ("--start-level", str(COINRUN_LEVELS.start), "--num-levels", str(len(COINRUN_LEVELS)))
    network = ("--set", "model.architecture=nature", "--set", "model.hidden_size=16")
    return train(tmp_path_factory.mktemp("coinrun"), *flags, *levels, *network)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., Result]]:
    """Run `evaluate` in this process; with `output` its results go to tmp_path/result.json."""
    monkeypatch.setattr(evaluate_cli, "prepare_process", lambda *_: 1)
    threads = torch.get_num_threads()

    def run(*arguments: object, output: bool = True) -> Result:
        flags = ["--output", tmp_path / "result.json"] if output else []
        capsys.readouterr()
        code = evaluate_cli.main([str(each) for each in (*arguments, *flags)])
        return Result(code, *capsys.readouterr())

    yield run
    torch.set_num_threads(threads)


def read_strict(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)


def altered(checkpoint: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Return a copy of a checkpoint with `change` applied to its content."""
    content = torch.load(checkpoint, weights_only=True)
    change(content)
    path = folder / "altered.pt"
    torch.save(content, path)
    return path


def with_env(**settings: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["config"]["env"].update(settings)


# --- Which episodes count ----------------------------------------------------------------------------------


def test_quotas_are_equal_shares_and_the_first_environments_take_the_rest() -> None:
    assert episode_quotas(10, 4).tolist() == [3, 3, 2, 2]
    assert episode_quotas(3, 3).tolist() == [1, 1, 1]


def test_every_environment_plays_its_quota_however_short_its_episodes_are() -> None:
    result = evaluate(None, 10, random=True, env_id=BY_SEED, num_envs=4, seed=1)["splits"]["full"]
    seeds = seeding.environment_seeds(seeding.evaluation_seed(1, 0, STREAMS["full"]), 4)
    lengths = [length_of(seed) for seed in seeds]
    expected = [length for length, quota in zip(lengths, (3, 3, 2, 2)) for _ in range(quota)]
    assert result["lengths"] == expected
    assert result["episodes"] == 10
    assert result["mean_reward"] == pytest.approx(sum(expected) / 10)
    ends = sorted((length * number, length) for length in lengths for number in range(1, 11))
    first_ten = [length for _, length in ends[:10]]
    assert sum(first_ten) / 10 < 0.8 * result["mean_reward"], (
        "counting the first ten to end gives a different mean"
    )


def test_there_are_at_most_as_many_environments_as_episodes() -> None:
    result = evaluate(None, 3, random=True, env_id=BY_SEED, num_envs=16)
    assert result["num_envs"] == 3
    assert len(result["splits"]["full"]["rewards"]) == 3


def test_the_policy_is_called_only_for_open_episodes_and_changed_observations() -> None:
    env = make_vector_env(env_config({"id": BY_SEED}), [np.random.SeedSequence(5)], 2)
    lengths = [length_of(seed) for seed in seeding.environment_seeds(np.random.SeedSequence(5), 2)]
    asked = []

    def policy(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        asked.append(len(observations))
        return np.zeros(len(observations), np.int64)

    play(env, policy, np.array([1, 0]), noise=None)
    assert asked == [1] * lengths[0]
    still = make_vector_env(env_config({"id": ENDLESS}), [np.random.SeedSequence(5)], 2, max_episode_steps=9)
    still.step = frozen(still.step)  # type: ignore[method-assign]
    asked.clear()
    play(still, policy, np.array([1, 1]), noise=None)
    assert asked == [2]
    env.close()
    still.close()


def frozen(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `step` so that it always returns the same observation."""

    def wrapped(actions: np.ndarray) -> Any:
        observations, *rest = step(actions)
        return np.zeros_like(observations), *rest

    return wrapped


def test_the_step_cap_ends_endless_episodes_and_marks_them(command: Any, tmp_path: Path) -> None:
    flags = ("--random", "--env", ENDLESS, "--num-episodes", 5, "--num-envs", 2, "--max-episode-steps", 12)
    result = command(*flags)
    assert result.code == 0
    assert "5 episodes were ended after 12 steps (--max-episode-steps)" in result.out
    split = read_strict(tmp_path / "result.json")["splits"]["full"]
    assert split["capped_episodes"] == 5
    assert split["capped"] == [True] * 5
    assert split["lengths"] == [12] * 5


@pytest.mark.parametrize(
    ("cap", "length", "capped"), [(LIMIT - 2, LIMIT - 2, 3), (LIMIT, LIMIT, 0), (99, LIMIT, 0)]
)
def test_an_environments_own_time_limit_does_not_count_as_capped(cap: int, length: int, capped: int) -> None:
    result = evaluate(None, 3, random=True, env_id=LIMITED, max_episode_steps=cap)["splits"]["full"]
    assert result["lengths"] == [length] * 3
    assert result["capped_episodes"] == capped


def test_procgen_episodes_are_capped_and_marked(coinrun: Path) -> None:
    result = evaluate(coinrun, 3, "train", max_episode_steps=5)["splits"]["train"]
    assert result["lengths"] == [5] * 3
    assert result["capped_episodes"] == 3


def test_an_error_of_an_environment_is_reported_with_its_step() -> None:
    config = env_config({"id": fault_env.ID, "kwargs": {"fault": "nan", "at": 4}})
    env = make_vector_env(config, [np.random.SeedSequence(0)], 2)
    noise = [np.random.default_rng(i) for i in range(2)]
    with pytest.raises(RunError, match="environment 0 returned reward nan at step 3"):
        play(env, random_policy(2), np.array([1, 1]), noise)
    env.close()


# --- Levels ------------------------------------------------------------------------------------------------


def test_train_and_test_levels_never_overlap(coinrun: Path) -> None:
    evaluation = Evaluation(Plan(coinrun, episodes=16))
    seen: dict[str, set[int]] = {}
    for split in evaluation.splits:
        env = evaluation.make_env(split, 8, STREAMS[split.name])
        assert isinstance(env, ProcgenVectorEnv)
        seen[split.name] = set()
        for _ in range(40):
            env.step(np.full(8, RESET_ACTION))
            seen[split.name] |= set(env.level_seeds().tolist())
        env.close()
    assert seen["train"] == set(COINRUN_LEVELS)
    assert min(seen["test"]) >= COINRUN_LEVELS.stop
    assert max(seen["test"]) > 2**30, "test levels come from all other levels"
    assert len(seen["test"]) == 320


def test_the_level_of_every_episode_is_recorded(coinrun: Path, tmp_path: Path) -> None:
    one_level = altered(coinrun, tmp_path, with_env(start_level=9, num_levels=1))
    result = evaluate(one_level, 4, num_envs=2, max_episode_steps=3)
    assert result["splits"]["train"]["level_of_episode"] == [9] * 4
    assert result["splits"]["train"]["levels"] == {
        "first": 9,
        "last": 9,
        "count": 1,
        "description": "levels 9 to 9",
    }
    assert result["splits"]["test"]["levels"]["first"] == 10
    assert result["splits"]["test"]["levels"]["last"] == MAX_LEVEL - 1
    assert all(level >= 10 for level in result["splits"]["test"]["level_of_episode"])


def test_a_run_on_limited_levels_is_evaluated_on_both_splits_with_the_gap(
    coinrun: Path, command: Any, tmp_path: Path
) -> None:
    result = command("--checkpoint", coinrun, "--num-episodes", 2, "--max-episode-steps", 5)
    assert result.code == 0
    assert "levels 3 to 7 (trained on)" in result.out
    assert f"levels 8 to {MAX_LEVEL - 1} (unseen" in result.out
    assert "(3, 64, 64)" in result.out
    assert "Generalisation gap" in result.out
    content = read_strict(tmp_path / "result.json")
    assert list(content["splits"]) == ["train", "test"]
    means = [content["splits"][name]["mean_reward"] for name in ("train", "test")]
    assert content["generalisation_gap"]["mean"] == pytest.approx(means[0] - means[1])


def test_the_training_levels_decide_the_splits() -> None:
    limited = env_config({"id": "coinrun", "num_levels": 10, "start_level": 5})
    assert [split.name for split in splits_of(limited, limited, None)] == ["train", "test"]
    assert [split.name for split in splits_of(limited, limited, "test")] == ["test"]
    (test,) = splits_of(limited, limited, "test")
    assert (test.first, test.env.start_level, test.env.num_levels) == (15, 15, MAX_LEVEL - 15)
    everything = env_config({"id": "coinrun", "num_levels": 0, "start_level": 5})
    (full,) = splits_of(everything, everything, None)
    assert (full.name, full.first, full.last) == ("full", 5, MAX_LEVEL - 1)
    assert [split.name for split in splits_of(everything, everything, "train")] == ["train"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_levels": 0}, "all levels"),
        ({"distribution_mode": "exploration"}, "one level"),
        ({"procgen": {"use_sequential_levels": True}}, "use_sequential_levels"),
        ({"num_levels": 7, "start_level": MAX_LEVEL - 7}, "the last one"),
    ],
)
def test_a_test_split_is_rejected_where_no_level_is_unseen(settings: dict[str, Any], reason: str) -> None:
    env = env_config({"id": "coinrun", **settings})
    assert [split.name for split in splits_of(env, env, None)] == ["full"]
    for requested in ("test", "both"):
        with pytest.raises(UsageError, match=reason):
            splits_of(env, env, requested)


def test_another_game_keeps_the_level_numbers_and_is_noted_in_the_plan(coinrun: Path, command: Any) -> None:
    flags = ("--env", "maze", "--num-episodes", 1, "--max-episode-steps", 3)
    result = command("--checkpoint", coinrun, *flags)
    assert result.code == 0
    assert "procgen-maze-v0" in result.out
    assert "another environment than the checkpoint's, procgen-coinrun-v0" in result.out
    assert "levels 3 to 7" in result.out
    assert evaluated_env(env_config({"id": "CartPole-v1"}), "maze").num_levels == 0


# --- Results ------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_episodes_and_different_seeds_different_ones(
    cartpole: Path, coinrun: Path
) -> None:
    keys = ("rewards", "lengths", "level_of_episode")

    def episodes(checkpoint: Path, seed: int, **options: Any) -> list[Any]:
        result = evaluate(checkpoint, 12, seed=seed, num_envs=8, **options)
        return [[split[key] for key in keys] for split in result["splits"].values()]

    for checkpoint, options in ((cartpole, {}), (coinrun, {"max_episode_steps": 20})):
        first = episodes(checkpoint, 3, **options)
        assert episodes(checkpoint, 3, **options) == first
        assert episodes(checkpoint, 4, **options) != first


def test_deterministic_takes_the_most_probable_action_and_sampling_does_not(cartpole: Path) -> None:
    sampled, greedy = (Evaluation(Plan(cartpole, deterministic=each)).policy for each in (False, True))
    observations = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    low, high = np.zeros(500), np.full(500, 1 - 1e-9)
    assert np.array_equal(greedy(observations, low), greedy(observations, high))
    assert set(sampled(observations, low)) == {0}
    assert set(sampled(observations, high)) == {1}


def test_the_random_policy_is_uniform() -> None:
    actions = random_policy(15)(np.zeros((15_000, 1)), np.random.default_rng(0).random(15_000))
    counts = np.bincount(actions, minlength=15)
    assert len(counts) == 15
    assert ((counts - 1000) ** 2 / 1000).sum() < 36.1, "chi-squared with 14 degrees of freedom, p = 0.001"


def test_the_summary_has_mean_deviation_extremes_and_confidence_interval() -> None:
    summary = summarise(
        [PlayedEpisode(reward, 10 * int(reward), False, None) for reward in (1.0, 2.0, 3.0, 4.0)]
    )
    std = math.sqrt(5 / 3)
    assert summary["mean_reward"] == 2.5
    assert summary["std_reward"] == pytest.approx(std)
    assert (summary["min_reward"], summary["max_reward"]) == (1.0, 4.0)
    assert (summary["mean_length"], summary["std_length"]) == (25.0, pytest.approx(10 * std))
    half = 3.182446305284263 * std / 2  # Student's t, 3 degrees of freedom, 0.975 quantile (table)
    assert summary["ci95_mean_reward"] == pytest.approx([2.5 - half, 2.5 + half])


def test_one_episode_has_no_standard_deviation(command: Any, tmp_path: Path) -> None:
    result = command("--random", "--env", BY_SEED, "--num-episodes", 1)
    assert result.code == 0
    assert "± n/a" in result.out
    split = read_strict(tmp_path / "result.json")["splits"]["full"]
    assert split["std_reward"] is None
    assert split["ci95_mean_reward"] is None


def test_the_generalisation_gap_has_a_standard_error() -> None:
    train = summarise([PlayedEpisode(reward, 1, False, 0) for reward in (4.0, 6.0, 8.0)])
    test = summarise([PlayedEpisode(reward, 1, False, 9) for reward in (1.0, 3.0)])
    gap = generalisation_gap({"train": train, "test": test})
    assert gap == {"mean": 4.0, "standard_error": pytest.approx(math.sqrt(4 / 3 + 2 / 2))}
    assert generalisation_gap({"full": train}) is None


def test_the_results_name_the_policy(cartpole: Path, command: Any, tmp_path: Path) -> None:
    result = command("--checkpoint", cartpole, "--algorithm", "ppo", "--num-episodes", 4, "--deterministic")
    assert result.code == 0
    content = read_strict(tmp_path / "result.json")
    assert content["algorithm"] == "ppo"
    assert content["checkpoint"] == str(cartpole)
    assert content["timesteps"] == 64
    assert content["deterministic"] is True
    assert content["env"] == content["trained_env"] == "CartPole-v1"
    assert content["hardware"]["threads"] == 1
    assert content["software"]["torch"]
    assert len(content["splits"]["full"]["rewards"]) == 4


def test_evaluating_changes_no_file_of_the_run(
    cartpole: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cartpole.parent.parent

    def files() -> dict[str, str]:
        paths = [path for path in root.rglob("*") if path.is_file() and path.parent.name != "evaluation"]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    before = files()
    monkeypatch.setattr(evaluate_cli.time, "strftime", lambda _: "19990101-000000")
    for _ in range(2):
        assert command("--checkpoint", cartpole, "--num-episodes", 2, output=False).code == 0
    assert files() == before
    names = sorted(path.name for path in (root / "evaluation").iterdir())
    stem = "ppo_sequential_final_full_19990101-000000"
    assert names == [f"{stem}.json", f"{stem}_2.json"]


def test_evaluations_that_end_in_the_same_second_write_separate_files(tmp_path: Path) -> None:
    results = [
        {"checkpoint": None, "env": "gym:X/Y", "algorithm": "random", "splits": {"full": {}}, "n": n}
        for n in range(12)
    ]
    with ThreadPoolExecutor(12) as pool:
        paths = list(pool.map(lambda result: evaluate_cli.save_result(result, tmp_path), results))
    assert sorted(read_strict(path)["n"] for path in paths) == list(range(12))
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_results_go_to_the_runs_folder_or_beside_the_checkpoint() -> None:
    assert evaluate_cli.results_folder(Path("/runs/a/checkpoints/x.pt")) == Path("/runs/a/evaluation")
    assert evaluate_cli.results_folder(Path("/models/x.pt")) == Path("/models/evaluation")
    assert evaluate_cli.results_folder(None) == Path("evaluation")


# --- Bad input ---------------------------------------------------------------------------------------------


def refuses(result: Result, code: int, *words: str) -> None:
    assert result.code == code
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert "EVALUATION" not in result.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ("--checkpoint",)),
        (("--checkpoint", "{cartpole}", "--algorithm", "impala"), ("checkpoint of ppo", "impala")),
        (("--checkpoint", "{cartpole}", "--num-episodes", "0"), ("--num-episodes",)),
        (("--checkpoint", "{cartpole}", "--seed", "-1"), ("--seed -1",)),
        (("--checkpoint", "{cartpole}", "--split", "test"), ("CartPole-v1", "levels")),
        (
            ("--checkpoint", "{cartpole}", "--env", "coinrun"),
            ("(4,)", "2 actions", "(3, 64, 64)", "15 actions"),
        ),
        (("--checkpoint", "{cartpole}", "--env", "nonsense"), ("nonsense", "coinrun", "starpilot")),
        (("--checkpoint", "{cartpole}", "--device", "cuda"), ("--device",)),
        (("--checkpoint", "{cartpole}", "--video", "film.avi"), ("film.avi", ".mp4", ".gif")),
        (("--checkpoint", "{cartpole}", "--random", "--deterministic"), ("--deterministic", "--random")),
        (("{cartpole}", "--checkpoint", "{tmp}/x.pt"), ("RUN", "--checkpoint is {tmp}/x.pt", "one of them")),
        (("{tmp}",), ("no checkpoint in {tmp}/checkpoints", "the folder of one run")),
        (("--random",), ("--env",)),
        (("--random", "--env", "coinrun", "--split", "train"), ("--split train", "checkpoint")),
        (("--checkpoint", "{tmp}/missing.pt"), ("missing.pt",)),
    ],
)
def test_wrong_flags_give_a_one_line_error_and_code_2(
    flags: tuple[str, ...], words: tuple[str, ...], cartpole: Path, command: Any, tmp_path: Path
) -> None:
    result = command(*(flag.format(cartpole=cartpole, tmp=tmp_path) for flag in flags))
    refuses(result, 2, *(word.format(tmp=tmp_path) for word in words))
    assert list(tmp_path.iterdir()) == [], "no file is written"


def test_a_run_may_be_named_by_its_folder_its_checkpoint_or_both(cartpole: Path, command: Any) -> None:
    run = cartpole.parent.parent
    for flags in ((run,), (cartpole,), (run, "--checkpoint", cartpole), ("--checkpoint", cartpole, cartpole)):
        result = command(*flags, "--num-episodes", "1")
        assert result.code == 0, result.err
        assert str(cartpole) in result.out


def test_the_folder_of_an_unfinished_run_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("ppo_sequential_step_900.pt", "ppo_sequential_step_1000.pt", "ppo_sequential_best.pt"):
        (folder / name).touch()
    assert last_checkpoint(tmp_path) == folder / "ppo_sequential_step_1000.pt"
    (folder / "ppo_sequential_final.pt").touch()
    assert last_checkpoint(tmp_path) == folder / "ppo_sequential_final.pt"
    (folder / "a2c_sequential_final.pt").touch()
    with pytest.raises(UsageError, match="holds 2 final checkpoints; give one of these files"):
        last_checkpoint(tmp_path)
    config = build_config({"logging": {"checkpoint_dir": str(tmp_path / "elsewhere")}}, "test")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "ppo_sequential_final.pt").touch()
    assert last_checkpoint(tmp_path) == tmp_path / "elsewhere" / "ppo_sequential_final.pt"


def test_files_that_are_not_checkpoints_are_rejected(cartpole: Path, command: Any, tmp_path: Path) -> None:
    content = cartpole.read_bytes()
    for data in (content[: len(content) // 2], b"not a checkpoint", b""):
        (tmp_path / "broken.pt").write_bytes(data)
        refuses(command("--checkpoint", tmp_path / "broken.pt"), 2, "broken.pt")


def test_weights_that_are_not_finite_or_of_another_network_are_rejected(
    cartpole: Path, command: Any, tmp_path: Path
) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["learner"]["model"]["policy.bias"][0] = math.nan

    def widen(content: dict[str, Any]) -> None:
        content["config"]["model"]["mlp_sizes"] = [8, 8]

    refuses(command("--checkpoint", altered(cartpole, tmp_path, spoil)), 2, "not finite")
    refuses(command("--checkpoint", altered(cartpole, tmp_path, widen)), 2, "do not fit the network")


def test_a_folder_that_cannot_be_written_is_reported_before_the_first_episode(
    cartpole: Path, command: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    flags = ("--checkpoint", cartpole, "--output", tmp_path / "file" / "x.json")
    refuses(command(*flags, output=False), 1, "cannot write", str(tmp_path / "file"))


def test_the_scripts_run_as_commands(cartpole: Path, tmp_path: Path) -> None:
    flags = ("--checkpoint", cartpole, "--num-episodes", "2", "--output", tmp_path / "r.json")
    result = runs.run("evaluate.py", *flags, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert "Mean reward" in result.stdout
    result = runs.run("evaluate_universal.py", "--checkpoint", tmp_path / "none.pt")
    assert result.returncode == 2
    assert result.stderr == f"evaluate_universal.py: error: no checkpoint at {tmp_path / 'none.pt'}\n"


# --- Video -------------------------------------------------------------------------------------------------


def mp4_frames(path: Path) -> np.ndarray:
    import imageio_ffmpeg

    frames = imageio_ffmpeg.read_frames(str(path))
    width, height = next(frames)["size"]
    return np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames])


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_video_shows_every_step_in_high_resolution(
    suffix: str, coinrun: Path, command: Any, tmp_path: Path
) -> None:
    path = tmp_path / "films" / f"film{suffix}"
    flags = ("--num-episodes", 1, "--split", "test", "--max-episode-steps", 8, "--video-episodes", 2)
    result = command("--checkpoint", coinrun, *flags, "--video", path)
    assert result.code == 0, result.err
    frames = mp4_frames(path) if suffix == ".mp4" else iio.imread(path)
    assert frames.shape == (16, 512, 512, 3)
    assert frames[0].std() > 10, "the game is visible"
    assert np.abs(frames[0].astype(int) - frames[-1]).mean() > 2, "the frames differ"
    assert list(path.parent.iterdir()) == [path]


def test_gymnasium_environments_are_recorded_as_they_render_themselves(command: Any, tmp_path: Path) -> None:
    flags = ("--random", "--env", ENDLESS, "--num-episodes", 1, "--max-episode-steps", 10)
    result = command(*flags, "--video", tmp_path / "film.mp4", "--video-episodes", 1)
    assert result.code == 0, result.err
    frames = mp4_frames(tmp_path / "film.mp4")
    assert frames.shape == (10, 60, 80, 3)
    assert np.allclose(frames.mean((1, 2, 3)), 10 * np.arange(10), atol=4)


def test_an_environment_that_cannot_render_is_rejected_before_the_first_episode(
    cartpole: Path, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    result = command("--checkpoint", cartpole, "--video", tmp_path / "film.mp4")
    refuses(result, 2, "cannot render CartPole-v1", "pygame")
    assert list(tmp_path.iterdir()) == []


def test_a_window_is_rejected_without_a_display(
    cartpole: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    refuses(command("--checkpoint", cartpole, "--render"), 2, "no display", "--video")


def test_a_window_shows_frames_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.setattr(video, "require_display", lambda: None)
    plt.switch_backend("agg")
    window = video.ViewerWindow("test", fps=1000)
    monkeypatch.setattr(window._figure, "show", lambda: None)
    frame = np.full((8, 8, 3), 200, np.uint8)
    window.show(frame)
    window.show(frame)
    plt.close(window._figure)
    with pytest.raises(video.WindowClosed):
        window.show(frame)


def test_an_incomplete_video_is_deleted(tmp_path: Path) -> None:
    recording = video.VideoFile(tmp_path / "film.mp4", fps=15)
    for _ in range(3):
        recording.show(np.zeros((32, 32, 3), np.uint8))
    recording.close(complete=False)
    assert list(tmp_path.iterdir()) == []
