"""Plan a study for the time there is: games, algorithms, modes, seeds and the duration of each run.

`plan_study` is a pure function of the time, the cores and the settings that the user gives; the result is the
settings of a study like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlcb.comparison.procgen_scores import published
from rlcb.comparison.statistics import detectable_difference
from rlcb.config.algorithms import WHY_NOT
from rlcb.config.games import procgen_game
from rlcb.errors import UsageError
from rlcb.study.state import EPISODE_SECONDS, EVALUATION_START_SECONDS, START_SECONDS
from rlcb.study.study import build_study
from rlcb.text import clock, counted


class Rung(NamedTuple):
    """A size of study. Its runs train for at least `seconds` on two cores."""

    algorithms: tuple[str, ...]
    modes: tuple[str, ...]
    games: int
    seeds: int
    seconds: float


# A3C comes last: it is A2C with gradients that do not wait, and with few workers it learns like A2C.
ALGORITHMS = ("ppo", "impala", "a2c", "a3c")
PARALLEL, BOTH = ("parallel",), ("parallel", "sequential")
# From small to large. More seeds come before more modes and games, which cost more time than they tell.
LADDER = (
    Rung(ALGORITHMS[:2], PARALLEL, 1, 3, 20),
    Rung(ALGORITHMS[:3], PARALLEL, 1, 3, 40),
    Rung(ALGORITHMS, PARALLEL, 1, 3, 90),
    Rung(ALGORITHMS, PARALLEL, 1, 5, 140),
    Rung(ALGORITHMS, BOTH, 1, 5, 300),
    Rung(ALGORITHMS, BOTH, 2, 5, 360),
    Rung(ALGORITHMS, BOTH, 3, 5, 600),
    Rung(ALGORITHMS, BOTH, 4, 8, 900),
)
FIRST_RUNG, FIRST_SECONDS = LADDER[1], 45.0
"""The first study (`--hours` without a number): about ten minutes on two cores."""
GAMES = ("starpilot", "coinrun", "fruitbot", "jumper")
"""Games on which published PPO learns within the first million timesteps, in the order of use."""
REFERENCE_CORES, MOST_SPEEDUP = 2, 4.0
LEAST_SECONDS = 20.0  # of training on any machine: a few updates
ROUNDS = 12
"""Seeds that a plan allows for if rounds add them (`until_decided`)."""
EVALUATION_EPISODES = 400
"""On each split. With 100 episodes of starpilot the evaluation of one policy has a standard error of 0.3. 400
on both splits cost 17 seconds of CPU time."""
NUMBERS = ("duration", "max_hours", "cooldown", "evaluate_episodes")
"""Settings of a study that a file may give in words, such as `duration: 30m`."""
NETWORK = {"model.architecture": "nature"}
"""The Nature CNN: it makes about seven times the timesteps of the IMPALA-CNN in the same time."""
EQUAL_MINIBATCHES = {"ppo:training.batch_size": 1024}
"""The configuration files of PPO differ between the modes."""


class Plan(NamedTuple):
    """A planned study."""

    settings: dict[str, Any]
    """The settings of the study, as in study.yaml."""
    runs: int
    training_seconds: float
    """Seconds of training of each run."""
    run_seconds: float
    """Seconds of a run: start, training, evaluation and pause."""

    @property
    def seconds(self) -> float:
        return self.runs * self.run_seconds


def plan_study(hours: float | None, cores: int, given: Mapping[str, Any]) -> Plan:
    """Return the largest study that fits into `hours` on a machine with `cores` cores.

    `given` holds the settings of a study that the user fixes; the plan chooses the others. Without `hours` it
    is the first study. A study that adds seeds in rounds gets time for ROUNDS of them, and `hours` or
    `max_hours` is the limit of both. Raises UsageError if not even the smallest study fits.
    """
    if given.get("total_timesteps") is not None:
        raise UsageError("--hours plans the duration of each run; leave out --total-timesteps")
    limit = {"max_hours": given.get("max_hours") or 1.0} if given.get("until_decided") else {}
    checked = build_study({"algorithms": list(ALGORITHMS), **given, **limit}, "study")
    given = {**given, **{key: getattr(checked, key) for key in NUMBERS if given.get(key) is not None}}
    fixed = given["duration"] * 3600 if given.get("duration") is not None else None
    if given.get("until_decided"):
        hours = hours or given.get("max_hours")
        given["max_hours"] = given.get("max_hours") or hours
    speedup = min(MOST_SPEEDUP, cores / REFERENCE_CORES)
    if hours is None:
        return _plan(FIRST_RUNG, fixed or max(LEAST_SECONDS, FIRST_SECONDS / speedup), given)
    if not 0 < hours < math.inf:
        raise UsageError(f"--hours {hours:g}: must be greater than 0")
    least = [_plan(rung, fixed or max(LEAST_SECONDS, rung.seconds / speedup), given) for rung in LADDER]
    fitting = [(rung, plan) for rung, plan in zip(LADDER, least) if plan.seconds <= hours * 3600]
    if not fitting:
        smallest = least[0]
        raise UsageError(
            f"--hours {hours:g}: too short for a comparison; the smallest has "
            f"{counted(smallest.runs, 'run')} of {clock(smallest.run_seconds)} each, in all "
            f"{smallest.seconds / 3600:.2f} hours"
        )
    rung, plan = fitting[-1]
    spare = 0 if fixed else math.floor((hours * 3600 - plan.seconds) / plan.runs)
    return _plan(rung, plan.training_seconds + spare, given)


def _plan(rung: Rung, seconds: float, given: Mapping[str, Any]) -> Plan:
    """Return the study of a rung whose runs train for `seconds`, with the user's settings."""
    settings = {
        "algorithms": list(rung.algorithms),
        "modes": list(rung.modes),
        "envs": list(GAMES[: rung.games]),
        "seeds": list(range(1, rung.seeds + 1)),
        "evaluate_episodes": EVALUATION_EPISODES,
        **given,
        "duration": seconds / 3600,
    }
    settings["set"] = {**_learning_settings(settings), **given.get("set", {})}
    groups = [(a, m) for a in settings["algorithms"] for m in settings["modes"] if (a, m) not in WHY_NOT]
    seeds = len(settings["seeds"])
    if settings.get("until_decided"):
        settings["seeds"], seeds = given.get("seeds", [1]), ROUNDS
    runs = max(1, len(groups)) * len(settings["envs"]) * seeds
    episodes = settings["evaluate_episodes"]
    evaluation = EVALUATION_START_SECONDS + 2 * episodes * EPISODE_SECONDS if episodes else 0.0
    pause = settings.get("cooldown", 0.0)
    return Plan(settings, runs, seconds, seconds + START_SECONDS + evaluation + pause)


def _learning_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the plan adds to the configuration files: none if the user gives files or
    other environments, and none that the user gives."""
    if settings.get("config") or not all(map(procgen_game, settings["envs"])):
        return {}
    user = {key.rpartition(":")[2] for key in settings.get("set", {})}
    added = NETWORK | (EQUAL_MINIBATCHES if "ppo" in settings["algorithms"] else {})
    return {key: value for key, value in added.items() if key.rpartition(":")[2] not in user}


class Spread(NamedTuple):
    """A standard deviation across seeds of the return on unseen levels, and where it comes from."""

    std: float
    source: str


MEASURED = {"starpilot": Spread(0.31, "seven minutes of seven groups here, docs/results.md")}
PUBLISHED_STEPS = (100_000, 1_000_000)
PUBLISHED_SOURCE = "published PPO at 0.1M to 1M timesteps"


def typical_spread(env: str) -> Spread | None:
    """Return the standard deviation across seeds that is known for a game; None for other environments.

    Published ones are the root mean square over the published timesteps up to a million, easy mode.
    """
    game = procgen_game(env)
    if game in MEASURED:
        return MEASURED[game]
    known = published(env, "easy")
    if known is None:
        return None
    used = (known.timesteps >= PUBLISHED_STEPS[0]) & (known.timesteps <= PUBLISHED_STEPS[1])
    return Spread(float((known.test_std[used] ** 2).mean() ** 0.5), PUBLISHED_SOURCE)


def describe_power(groups: int, seeds: int, envs: Sequence[str]) -> str:
    """Return in words which difference between two groups a study will be able to detect."""
    if seeds < 2:
        return "nothing: a test needs at least two seeds"
    pairs_of_groups = groups * (groups - 1) // 2
    difference = detectable_difference(math.sqrt(2 / seeds), 2 * seeds - 2, pairs_of_groups)
    pairs = "two groups" if groups == 2 else f"the best of {groups} groups and another"
    parts = [
        f"with {seeds} seeds, a difference of {difference:.1f} standard deviations across seeds between "
        f"{pairs} (four times out of five)"
    ]
    for env in envs:
        spread = typical_spread(env)
        if spread is not None:
            parts.append(
                f"{procgen_game(env)}: about {difference * spread.std:.1f} in return (standard deviation "
                f"{spread.std:.2f}: {spread.source})"
            )
    return "; ".join(parts)
