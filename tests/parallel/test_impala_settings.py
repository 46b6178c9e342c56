"""Settings of actors and learners: what is refused, and how much memory they ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlcb.cli.train import main
from rlcb.config.config import Config
from rlcb.envs.spaces import Spaces
from rlcb.errors import UsageError
from rlcb.parallel.impala_learner import store_size
from tests import runs
from tests.impala_runs import SCRIPT, STEP, of_env
from tests.impala_team import config

WRONG = {
    "a batch that is no whole unrolls": (
        ("--batch-size", 12),
        ("training.batch_size = 12", "multiple of an unroll", "= 8"),
    ),
    "workers": (("--num-workers", 2), ("--num-workers 2", "--num-actors")),
    "workers as a setting": (
        ("--set", "parallel.num_workers=2"),
        ("parallel.num_workers = 2", "impala.num_actors"),
    ),
    "normalised advantages": (
        ("--set", "training.normalize_advantages=true"),
        ("training.normalize_advantages = true", "set it to false"),
    ),
    "environments that cannot be shared out": (
        ("--num-envs", 5),
        ("env.num_envs = 5", "multiple of impala.num_actors = 2"),
    ),
    "no actor": (("--set", "impala.num_actors=0"), ("impala.num_actors = 0", "greater than or equal to 1")),
    "negative lag": (
        ("--set", "impala.max_policy_lag=-1"),
        ("impala.max_policy_lag = -1", "greater than or equal to 0"),
    ),
    "epochs": (("--n-epochs", 2), ("training.n_epochs = 2", "must be 1")),
    "a threshold of nothing": (
        ("--set", "impala.vtrace_clip_rho_threshold=0"),
        ("impala.vtrace_clip_rho_threshold = 0", "greater than 0"),
    ),
    "a setting of PPO": (("--set", "training.clip_range=0.1"), ("training.clip_range = 0.1", "only PPO")),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[object, ...],
    words: tuple[str, ...],
) -> None:
    folder = tmp_path / "run"
    arguments = [*map(str, (*STEP, *flags)), "--output-dir", str(folder)]
    assert main("impala", "parallel", False, arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert not folder.exists()


def test_actors_and_their_environments_can_be_given_as_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shown by what is refused: 2 actors of 3 environments are not 4 environments."""
    flags = (*STEP[:2], "--num-actors", 2, "--num-envs-per-actor", 3, "--num-envs", 4)
    arguments = [*map(str, flags), "--output-dir", str(tmp_path / "run")]
    assert main("impala", "parallel", False, arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "contradicts --num-envs 4" in error


def test_more_slots_than_a_queue_holds_are_a_usage_error_that_says_how_many() -> None:
    spaces = Spaces((3,), "float32", 2)
    assert store_size(config(4, 255), spaces).slots == 1024
    with pytest.raises(UsageError, match=r"impala\.max_policy_lag = 256 needs 1028 slots.*1024"):
        store_size(config(4, 256), spaces)


@pytest.mark.parametrize(
    ("change", "slots"),
    [((2, 0), 2), ((2, 4), 10), ((3, 1, 2, 5), 10)],
    ids=["one batch", "five batches", "a batch of five unrolls"],
)
def test_there_are_as_many_batches_of_slots_as_the_lag_needs(change: tuple[int, ...], slots: int) -> None:
    size: Callable[..., Config] = config
    assert store_size(size(*change), Spaces((3,), "float32", 2)).slots == slots


@pytest.mark.timeout(180)
def test_an_environment_that_an_actor_cannot_make_is_a_usage_error_and_leaves_nothing(tmp_path: Path) -> None:
    result = runs.call(
        SCRIPT, "--env", "tests.fault_env:Fault-v0", *STEP[2:], *of_env(fault="make", process="actor-1"),
        "--total-timesteps", 100, "--output-dir", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 2
    assert "no such world" in result.stderr.splitlines()[-1]
    assert "replaced" not in result.stderr
    assert not (tmp_path / "run").exists()
