"""The search spaces: they contain the default, every draw is a valid configuration, scales and fixed keys."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
from rlcb.config.config import Config, flat_settings
from rlcb.config.yaml_file import build_config, read_config_file, set_value
from rlcb.paths import default_config_path
from rlcb.tuning.space import (
    COMMON,
    Choice,
    Interval,
    Minibatches,
    default_parameters,
    default_settings,
    search_space,
    settings_of,
)
from tests import guide_blocks as guide
from tests import runs

PAIRS = [(name, mode) for name, each in ALGORITHMS.items() for mode in ONE_MACHINE if mode in each.modes]


def config(algorithm: str, mode: str, **changes: Any) -> Config:
    data = read_config_file(default_config_path(algorithm, mode))
    for key, value in changes.items():
        set_value(data, key.replace("__", "."), value, "test")
    return build_config(data, "test")


def with_settings(algorithm: str, mode: str, settings: dict[str, Any]) -> Config:
    return config(algorithm, mode, **{key.replace(".", "__"): value for key, value in settings.items()})


@pytest.mark.parametrize(("algorithm", "mode"), PAIRS)
def test_the_first_trial_has_the_settings_of_the_configuration(algorithm: str, mode: str) -> None:
    base = config(algorithm, mode)
    space = search_space(base, ())
    settings = default_settings(space, base)
    assert with_settings(algorithm, mode, settings) == base
    for dimension in space:  # Optuna accepts its parameters
        value = default_parameters(space, base)[dimension.name]
        if isinstance(dimension, Interval):
            low, high = dimension.bounds()
            assert low <= value <= high
        else:
            assert value in dimension.values


@pytest.mark.parametrize(("algorithm", "mode"), PAIRS)
def test_every_draw_is_a_valid_configuration_with_the_drawn_settings(algorithm: str, mode: str) -> None:
    base = config(algorithm, mode)
    space = search_space(base, ())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    drawn = []
    for _ in range(30):
        trial = study.ask()
        parameters = {each.name: each.suggest(trial) for each in space}
        settings = settings_of(space, parameters, base)
        flat = flat_settings(with_settings(algorithm, mode, settings))
        assert {key: flat[key] for key in settings} == settings
        drawn.append(settings)
    for key in drawn[0]:
        assert len({each[key] for each in drawn}) > 1, f"{key} never changes"


def test_the_guide_lists_every_search_space() -> None:
    (rows,) = guide.tables(runs.PROJECT / "docs/tuning.md", "What is searched")
    listed: dict[str, dict[str, str]] = {name: {} for name in ALGORITHMS}
    for key, algorithms, text in rows:
        for name, algorithm in ALGORITHMS.items():
            if algorithms == "all" or algorithm.label in algorithms:
                listed[name][guide.code(key)] = text.replace("minibatches in", "in")
    for algorithm, mode in PAIRS:
        space = search_space(config(algorithm, mode), ())
        assert list(listed[algorithm]) == [each.key for each in space], algorithm
        for dimension in space:
            text = listed[algorithm][dimension.key]
            if (algorithm, dimension.key) == ("impala", "training.max_grad_norm"):
                assert dimension.text() == "0.05 to 40, log"
                text, _, exception = text.partition(" (")
                assert exception == "IMPALA: to 40)"
            else:
                assert text.partition(" (")[0] == dimension.text(), (algorithm, dimension.key)


def test_every_algorithm_searches_the_common_settings_in_equal_ranges() -> None:
    for algorithm, mode in PAIRS:
        space = {each.key: each for each in search_space(config(algorithm, mode), ())}
        for dimension in COMMON:
            found = space[dimension.key]
            if dimension.key != "training.max_grad_norm":  # extended to IMPALA's own value
                assert found == dimension, (algorithm, dimension.key)


def test_ranges_grow_to_contain_the_settings_that_a_user_starts_from() -> None:
    base = config("a2c", "sequential", training__learning_rate=0.02, training__n_steps=5)
    space = {each.key: each for each in search_space(base, ())}
    rate, steps = space["training.learning_rate"], space["training.n_steps"]
    assert isinstance(rate, Interval) and rate.high == 0.02 and rate.low == 1e-4
    assert isinstance(steps, Choice) and steps.values == (5, 8, 16, 32, 64)


def test_a_setting_of_zero_stays_that_of_the_first_trial_on_a_scale_without_zero() -> None:
    base = config("a2c", "sequential", training__ent_coef=0.0, training__gamma=1.0)
    space = search_space(base, ())
    settings = default_settings(space, base)
    assert settings["training.ent_coef"] == 0.0 and settings["training.gamma"] == 1.0
    parameters = default_parameters(space, base)
    assert parameters["training.ent_coef"] == 1e-4
    assert parameters["1 - training.gamma"] == pytest.approx(0.0005)


def test_a_fixed_setting_is_not_searched() -> None:
    base = config("impala", "parallel")
    keys = [
        each.key for each in search_space(base, ("training.gamma", "impala.vtrace_clip_pg_rho_threshold"))
    ]
    assert "training.gamma" not in keys
    assert "impala.vtrace_clip_rho_threshold" not in keys  # it sets the fixed one as well
    assert "training.learning_rate" in keys


def test_the_discount_is_searched_by_its_distance_to_one() -> None:
    gamma = Interval("training.gamma", 0.95, 0.9995, "log of 1 - value")
    assert gamma.bounds() == pytest.approx((0.0005, 0.05))
    assert gamma.settings(0.012345, config("ppo", "sequential")) == {"training.gamma": 0.9877}


def test_the_minibatch_follows_from_the_rollout_of_the_trial() -> None:
    base = config("ppo", "sequential", env__num_envs=8, training__batch_size=256)
    space = search_space(base, ())
    parameters = default_parameters(space, base)
    assert parameters["minibatches in a rollout"] == 128 * 8 // 256
    settings = settings_of(space, {**parameters, "training.n_steps": 64, Minibatches().name: 2}, base)
    assert settings["training.n_steps"] == 64
    assert settings["training.batch_size"] == 64 * 8 // 2
