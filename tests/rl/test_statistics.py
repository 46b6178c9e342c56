"""Statistics against NumPy; metrics files after crashes, resumption and without TensorBoard."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcb.errors import RunError
from rlcb.files import strict_json, write_atomically, write_json
from rlcb.rl.statistics import Episode, EpisodeStatistics, SampleMeans, explained_variance
from rlcb.training.metrics_writer import ROW_KEYS, MetricsWriter, read_rows, write_columns


def row_of(update: int, **metrics: Any) -> dict[str, Any]:
    """A row with every key, each with a number of its own."""
    row: dict[str, Any] = {key: index + update / 100 for index, key in enumerate(ROW_KEYS)}
    return {**row, "timesteps": 64 * update, "update": update, **metrics}


def write_rows(folder: Path, *rows: dict[str, Any], resume_update: int | None = None) -> Path:
    writer = MetricsWriter(folder, tensorboard=False, resume_update=resume_update)
    for row in rows:
        writer.write(row)
    writer.close()
    return writer.path


def random_episodes(count: int, seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [Episode(k, 0, float(rng.normal(3, 5)), int(rng.integers(1, 500))) for k in range(count)]


# --- Means and variances ---


def test_sample_means_give_every_sample_the_same_weight() -> None:
    samples = np.random.default_rng(0).normal(size=30)
    whole, first, second = SampleMeans(), SampleMeans(), SampleMeans()
    first.add({"loss": samples[:7].mean()}, 7)
    first.add({"loss": samples[7:19].mean()}, 12)
    second.add({"loss": samples[19:].mean()}, 11)
    whole.merge(first)
    whole.merge(second)
    assert whole.count == 30
    assert whole["loss"] == pytest.approx(samples.mean())
    assert whole.result() == {"loss": pytest.approx(samples.mean())}


@pytest.mark.parametrize(
    ("predictions", "expected"),
    [([1.0, 2.0, 6.0], 1.0), ([4.0, 5.0, 9.0], 1.0), ([3.0, 3.0, 3.0], 0.0), ([-1.0, -2.0, -6.0], -3.0)],
    ids=["exact", "off by a constant", "constant", "opposite"],
)
def test_explained_variance_has_the_known_values(predictions: list[float], expected: float) -> None:
    targets = np.array([1.0, 2.0, 6.0], np.float32)
    assert explained_variance(np.array(predictions, np.float32), targets) == pytest.approx(expected)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e7])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_explained_variance_of_targets_without_spread_is_none(constant: float, size: int) -> None:
    predictions = np.random.default_rng(0).normal(size=size).astype(np.float32)
    assert explained_variance(predictions, np.full(size, constant, np.float32)) is None


# --- Episodes ---


@pytest.mark.parametrize("count", [1, 7, 99, 100, 101, 350])
def test_episode_statistics_equal_numpys_over_the_first_and_last_hundred(count: int) -> None:
    episodes = random_episodes(count)
    statistics = EpisodeStatistics()
    for start in range(0, count, 13):  # they come in pieces
        statistics.add(episodes[start : start + 13])
    rewards = np.array([each.reward for each in episodes])
    lengths = np.array([each.length for each in episodes])
    last = slice(-100, None)
    running = [rewards[k - 100 : k].mean() for k in range(100, count + 1)]
    performance = statistics.performance()
    assert performance == {
        "initial_reward": pytest.approx(rewards[:100].mean()),
        "final_reward": pytest.approx(rewards[last].mean()),
        "best_reward": pytest.approx(max(running) if running else rewards.mean()),
        "average_reward_last_100_episodes": pytest.approx(rewards[last].mean()),
        "std_reward_last_100_episodes": pytest.approx(rewards[last].std()),
        "mean_length_last_100_episodes": pytest.approx(lengths[last].mean()),
    }
    assert statistics.row() == {
        "rollout/ep_reward_mean": performance["final_reward"],
        "rollout/ep_reward_std": performance["std_reward_last_100_episodes"],
        "rollout/ep_length_mean": performance["mean_length_last_100_episodes"],
        "rollout/episodes": count,
    }


def test_without_an_episode_every_metric_is_null() -> None:
    statistics = EpisodeStatistics()
    assert statistics.add([]) is False
    assert statistics.row() == {
        "rollout/ep_reward_mean": None,
        "rollout/ep_reward_std": None,
        "rollout/ep_length_mean": None,
        "rollout/episodes": 0,
    }
    performance = statistics.performance()
    assert set(performance.values()) == {None}
    statistics.add(random_episodes(1))
    assert performance.keys() == statistics.performance().keys()


def test_the_best_mean_rises_only_with_a_full_window_that_beats_it() -> None:
    def episodes(count: int, reward: float) -> list[Episode]:
        return [Episode(0, 0, reward, 10)] * count

    statistics = EpisodeStatistics()
    assert not statistics.add(episodes(99, 5.0))  # a lucky start of fewer than 100 is no best
    assert statistics.add(episodes(1, 5.0))
    assert not statistics.add(episodes(50, 5.0))  # as good is not better
    assert not statistics.add(episodes(100, 1.0))
    assert not statistics.add(episodes(50, 8.0))  # half of the window: 4.5
    assert statistics.performance()["best_reward"] == 5.0
    assert statistics.add(episodes(10, 8.0))  # .6 * 8 + .4 * 1
    assert statistics.performance()["best_reward"] == pytest.approx(5.2)


def test_a_best_window_inside_one_batch_of_episodes_is_found() -> None:
    statistics = EpisodeStatistics()
    rewards = [0.0] * 100 + [10.0] * 100 + [0.0] * 100
    assert statistics.add([Episode(0, 0, reward, 1) for reward in rewards])
    assert statistics.performance()["best_reward"] == 10
    assert statistics.performance()["final_reward"] == 0


@pytest.mark.parametrize("count", [0, 30, 170])
def test_episode_statistics_that_load_a_state_continue_like_the_saved_ones(count: int) -> None:
    episodes = random_episodes(count + 120)
    steady, resumed = EpisodeStatistics(), EpisodeStatistics()
    steady.add(episodes[:count])
    resumed.load(json.loads(json.dumps(steady.state())))
    assert steady.add(episodes[count:]) == resumed.add(episodes[count:])
    assert steady.performance() == resumed.performance()
    assert steady.row() == resumed.row()


# --- Strict JSON ---


def test_numbers_that_are_not_finite_become_null_in_json(tmp_path: Path) -> None:
    value = {
        "nan": math.nan,
        "inf": [math.inf, (-math.inf, 1)],
        "numpy": {
            "float": np.float32(0.5),
            "nan": np.float32(np.nan),
            "int": np.int64(3),
            "bool": np.bool_(True),
        },
        3: None,
    }
    write_json(tmp_path / "file.json", value)

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} in strict JSON")

    read = json.loads((tmp_path / "file.json").read_text(), parse_constant=refuse)
    assert read == {
        "nan": None,
        "inf": [None, [None, 1]],
        "numpy": {"float": 0.5, "nan": None, "int": 3, "bool": True},
        "3": None,
    }
    assert strict_json({"a": 1.5, "b": True, "c": "NaN"}) == {"a": 1.5, "b": True, "c": "NaN"}


# --- Writing aside and renaming ---


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"the old content, which is longer")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    write_atomically(path, memoryview(b"newer"))
    assert path.read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_only_the_old_file_stays_when_writing_fails(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_no_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def open_on_full_disk(path: Path, *arguments: Any) -> Any:
        real_open(path, *arguments).close()  # the name appears, as it would
        return real_open(Path("/dev/full"), *arguments)

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(Path, "open", open_on_full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new" * 10_000)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


# --- metrics.jsonl ---


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [row_of(1), row_of(2, **{"train/explained_variance": None})]
    path = write_rows(tmp_path / "logs" / "PPO", *rows)
    assert path == tmp_path / "logs" / "PPO" / "metrics.jsonl"
    assert read_rows(path) == rows
    assert all(list(json.loads(line)) == list(ROW_KEYS) for line in path.read_text().splitlines())


def test_a_row_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write(row_of(1))
    assert read_rows(writer.path) == [row_of(1)]
    writer.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_row_that_cannot_be_written_ends_the_run_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), writer._file.fileno())
    with pytest.raises(RunError, match="No space left") as caught:
        writer.write(row_of(1))
    assert str(writer.path) in str(caught.value) and "\n" not in str(caught.value)
    writer.close()  # what was not written is not forgotten in silence
    assert "may lack its last rows: No space left on device" in caplog.text


@pytest.mark.parametrize("key", ROW_KEYS)
def test_a_row_that_lacks_a_key_is_refused_and_not_written(key: str, tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    row = row_of(1)
    del row[key]
    with pytest.raises(KeyError, match=key):
        writer.write(row)
    writer.close()
    assert read_rows(writer.path) == []


def test_every_documented_metric_is_in_a_row() -> None:
    promised = (
        "timesteps update time/elapsed_seconds time/fps time/fps_average rollout/ep_reward_mean "
        "rollout/ep_reward_std rollout/ep_length_mean rollout/episodes train/policy_loss train/value_loss "
        "train/entropy train/approx_kl train/clip_fraction train/explained_variance train/learning_rate "
        "train/grad_norm system/memory_gb system/cpu_percent"
    )
    assert set(promised.split()) <= set(ROW_KEYS)
    assert any(key.startswith("profile/") and key.endswith("_seconds") for key in ROW_KEYS)


def test_metrics_that_are_not_finite_become_null_and_additional_ones_are_kept(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path, row_of(1, **{"train/value_loss": math.nan, "time/fps": math.inf, "extra/figure": 7})
    )
    (row,) = read_rows(path)
    assert row["train/value_loss"] is None and row["time/fps"] is None
    assert row["extra/figure"] == 7


def test_resuming_drops_the_rows_after_the_checkpoint_and_appends(tmp_path: Path) -> None:
    write_rows(tmp_path, *(row_of(k) for k in range(1, 6)))
    path = write_rows(tmp_path, row_of(4, **{"time/fps": 1.0}), resume_update=3)
    assert [row["update"] for row in read_rows(path)] == [1, 2, 3, 4]
    assert read_rows(path)[:3] == [row_of(k) for k in (1, 2, 3)]
    assert read_rows(path)[3]["time/fps"] == 1.0


def test_resuming_in_a_folder_without_rows_starts_a_new_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "new", row_of(3), resume_update=2)
    assert [row["update"] for row in read_rows(path)] == [3]


def test_a_new_run_does_not_continue_an_old_file(tmp_path: Path) -> None:
    write_rows(tmp_path, row_of(1), row_of(2))
    assert read_rows(write_rows(tmp_path, row_of(1))) == [row_of(1)]


@pytest.mark.parametrize("cut", [1, 20, -1, -2])
def test_an_incomplete_last_line_is_left_out_and_a_resumed_run_writes_it_again(
    cut: int, tmp_path: Path
) -> None:
    path = write_rows(tmp_path, row_of(1), row_of(2))
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    last = whole[first_line:].rstrip(b"\n")
    path.write_bytes(whole[:first_line] + last[:cut])
    assert read_rows(path) == [row_of(1)]
    write_rows(tmp_path, row_of(2), resume_update=1)
    assert path.read_bytes() == whole


def test_a_line_without_a_newline_is_not_joined_with_the_next(tmp_path: Path) -> None:
    path = write_rows(tmp_path, row_of(1), row_of(2))
    whole = path.read_bytes()
    path.write_bytes(whole.rstrip(b"\n"))
    assert read_rows(path) == [row_of(1), row_of(2)]
    write_rows(tmp_path, row_of(3), resume_update=2)
    assert read_rows(path) == [row_of(1), row_of(2), row_of(3)]


@pytest.mark.parametrize("damage", ['{"update": 1', "[1, 2]", "", "null"])
def test_damage_before_the_last_line_is_an_error_that_names_the_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = json.dumps(row_of(1))
    path.write_text(f"{good}\n{damage}\n{good}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_rows(path)


def test_columns_hold_the_series_of_every_key(tmp_path: Path) -> None:
    path = write_rows(tmp_path, row_of(1), row_of(2, **{"late/figure": 5, "time/fps": math.nan}))
    write_columns(path, tmp_path / "metrics.json")
    columns = json.loads((tmp_path / "metrics.json").read_text())
    assert set(columns) == {*ROW_KEYS, "late/figure"}
    assert columns["update"] == [1, 2]
    assert columns["time/fps"] == [row_of(1)["time/fps"], None]
    assert columns["late/figure"] == [None, 5]


# --- TensorBoard ---


def test_without_tensorboard_there_is_a_warning_and_metrics_jsonl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # importing it raises ImportError
    with caplog.at_level(logging.WARNING):
        writer = MetricsWriter(tmp_path, tensorboard=True)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "TensorBoard" in warning.getMessage() and "metrics.jsonl" in warning.getMessage()
    writer.write(row_of(1))
    writer.close()
    assert read_rows(writer.path) == [row_of(1)]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_tensorboard_can_be_switched_off_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path, row_of(1))
    assert not caplog.records
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_tensorboard_shows_rewards_losses_fps_and_memory_over_timesteps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = MetricsWriter(tmp_path, tensorboard=True)
    rows = [row_of(1, **{"rollout/ep_reward_mean": None}), row_of(2), row_of(3)]
    for row in rows:
        writer.write(row)
    writer.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(ROW_KEYS) - {"timesteps"}
    for key in (
        "rollout/ep_reward_mean",
        "train/policy_loss",
        "train/value_loss",
        "train/entropy",
        "time/fps",
        "system/memory_gb",
    ):
        expected = [(row["timesteps"], row[key]) for row in rows if row[key] is not None]
        shown = [(event.step, event.value) for event in events.Scalars(key)]
        assert [step for step, _ in shown] == [step for step, _ in expected], key
        assert [value for _, value in shown] == pytest.approx([value for _, value in expected]), key


def test_a_resumed_run_is_one_curve_in_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for resume_update, updates in ((None, (1, 2, 3, 4)), (2, (3, 4, 5))):
        writer = MetricsWriter(tmp_path, tensorboard=True, resume_update=resume_update)
        for update in updates:
            writer.write(row_of(update, **{"time/fps": 100.0 * update + (resume_update or 0)}))
        writer.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    shown = [(event.step // 64, event.value) for event in events.Scalars("time/fps")]
    assert shown == [(1, 100.0), (2, 200.0), (3, 302.0), (4, 402.0), (5, 502.0)]
