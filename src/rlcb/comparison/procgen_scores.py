"""Published facts about Procgen: score ranges that put the games on one scale, and results of PPO.

Source: Cobbe et al. 2020, "Leveraging Procedural Generation to Benchmark Reinforcement Learning", and the
code and results published with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlcb.config.games import procgen_game

NORMALISATION = "openai/train-procgen, train_procgen/constants.py"
"""The source of the ranges. Some later papers use (3, 10) for easy jumper and leaper."""

# game: ((easy min, easy max), (hard min, hard max)), in raw return of an episode.
RANGES = {
    "bigfish": ((1, 40), (0, 40)),
    "bossfight": ((0.5, 13), (0.5, 13)),
    "caveflyer": ((3.5, 12), (2, 13.4)),
    "chaser": ((0.5, 13), (0.5, 14.2)),
    "climber": ((2, 12.6), (1, 12.6)),
    "coinrun": ((5, 10), (5, 10)),
    "dodgeball": ((1.5, 19), (1.5, 19)),
    "fruitbot": ((-1.5, 32.4), (-0.5, 27.2)),
    "heist": ((3.5, 10), (2, 10)),
    "jumper": ((1, 10), (1, 10)),
    "leaper": ((1.5, 10), (1.5, 10)),
    "maze": ((5, 10), (4, 10)),
    "miner": ((1.5, 13), (1.5, 20)),
    "ninja": ((3.5, 10), (2, 10)),
    "plunder": ((4.5, 30), (3, 30)),
    "starpilot": ((2.5, 64), (1.5, 35)),
}


def score_range(env_id: str, distribution_mode: str | None) -> tuple[float, float] | None:
    """Return the returns that are normalised to 0 and 1 in a game; None if no range was published."""
    game = procgen_game(env_id)
    if game is None or distribution_mode not in ("easy", "hard"):
        return None
    return RANGES[game][0 if distribution_mode == "easy" else 1]


def normalise(returns: Any, limits: tuple[float, float]) -> NDArray[np.float64]:
    """Normalise returns elementwise: (return - min) / (max - min), without clipping."""
    low, high = limits
    scores: NDArray[np.float64] = (np.asarray(returns, np.float64) - low) / (high - low)
    return scores


REFERENCE_CITATION = (
    "Cobbe, Hesse, Hilton, Schulman 2020, Leveraging Procedural Generation to Benchmark Reinforcement "
    "Learning (arXiv:1912.01588); results of its code, openai/train-procgen"
)
REFERENCE_NOTE = (
    "PPO, easy mode, 200 training levels, mean of 3 runs ± sample standard deviation; each figure averages "
    "the logged 100-episode means of the last five updates before the step (twenty from 5M)"
)
REFERENCE_MODE = "easy"
REFERENCE_RUNS = 3
# The settings of the published runs, by dotted key of the configuration.
REFERENCE_SETTINGS: dict[str, Any] = {
    "algorithm": "ppo",
    "env.distribution_mode": "easy",
    "env.num_levels": 200,
    "env.start_level": 0,
    "env.num_envs": 64,
    "env.procgen.center_agent": True,
    "env.procgen.use_backgrounds": True,
    "env.procgen.use_monochrome_assets": False,
    "env.procgen.restrict_themes": False,
    "env.procgen.use_generated_assets": False,
    "env.procgen.paint_vel_info": False,
    "env.procgen.use_sequential_levels": False,
    "model.architecture": "impala",
    "model.impala_channels": [16, 32, 32],
    "model.hidden_size": 256,
    "model.precision": "float32",
    "training.n_steps": 256,
    "training.n_epochs": 3,
    "training.batch_size": 2048,
    "training.learning_rate": 5e-4,
    "training.lr_schedule": "constant",
    "training.optimizer": "adam",
    "training.optimizer_eps": 1e-5,
    "training.max_grad_norm": 0.5,
    "training.gamma": 0.999,
    "training.gae_lambda": 0.95,
    "training.vf_coef": 0.5,
    "training.ent_coef": 0.01,
    "training.clip_range": 0.2,
    "training.clip_value_loss": True,
    "training.normalize_advantages": True,
    "training.normalize_rewards": True,
    "training.reward_clip": 10.0,
    "training.target_kl": None,
}

_STEPS = (100_000, 250_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 25_000_000)
# Mean ± sample standard deviation at each of _STEPS, on the 200 training levels ...
_TRAIN = """\
bigfish    0.93±0.04  1.03±0.01  1.34±0.17  1.97±0.14  3.15±0.38  5.42±0.75  8.02±1.21 12.18±0.00
bossfight  0.11±0.11  0.24±0.19  0.32±0.10  0.67±0.10  2.50±0.38  4.99±0.11  6.88±0.42  8.13±0.67
caveflyer  2.84±0.64  3.83±0.12  3.83±0.33  4.06±0.34  4.28±0.18  4.63±0.28  5.55±0.41  7.26±0.80
chaser     0.67±0.04  0.71±0.02  0.97±0.04  1.06±0.06  1.31±0.15  2.03±0.26  2.96±0.67  6.87±0.49
climber    2.40±0.20  2.61±0.31  2.81±0.13  3.02±0.15  4.50±0.44  6.36±0.55  7.59±0.25  8.59±0.05
coinrun    4.73±0.42  5.95±0.20  6.39±0.10  7.90±0.31  8.33±0.29  8.78±0.31  9.16±0.18  9.53±0.06
dodgeball  0.97±0.09  1.37±0.06  1.52±0.13  1.71±0.11  2.01±0.13  2.58±0.13  3.25±0.06  5.07±0.68
fruitbot  -2.46±0.28 -1.06±0.19  0.56±0.19  4.87±1.52 16.94±0.96 23.63±0.66 26.53±1.28 29.60±0.89
heist      4.38±0.58  3.37±0.30  3.23±0.41  3.45±0.32  3.76±0.06  4.38±0.17  5.86±0.29  7.98±0.44
jumper     3.47±0.46  4.95±0.62  6.20±0.31  6.95±0.27  7.29±0.05  8.02±0.08  8.23±0.27  8.58±0.01
leaper     2.63±0.28  2.82±0.12  3.17±0.31  3.35±0.32  3.21±0.16  3.82±0.57  4.45±0.12  6.29±1.56
maze       5.04±0.08  4.93±0.77  5.13±0.48  5.53±0.24  5.50±0.48  7.06±0.12  8.87±0.17  9.38±0.10
miner      1.13±0.12  1.16±0.09  2.08±0.12  2.53±0.22  2.95±0.21  5.59±0.86  9.74±0.63 12.80±0.06
ninja      3.51±0.25  3.75±0.06  4.17±0.09  4.94±0.16  4.32±0.65  5.39±0.20  6.39±0.35  7.64±0.19
plunder    4.38±0.15  4.27±0.02  4.08±0.38  3.88±0.37  4.61±0.32  5.03±0.34  5.46±0.27  5.31±0.34
starpilot  2.15±0.32  3.01±0.30  4.40±0.29  7.23±0.19 10.82±1.47 19.03±3.75 21.70±0.90 30.15±2.80
"""
# ... and on all levels.
_TEST = """\
bigfish    0.85±0.06  0.87±0.04  1.05±0.08  1.51±0.18  1.98±0.17  2.76±0.42  3.33±0.44  4.71±0.72
bossfight  0.11±0.10  0.23±0.11  0.36±0.09  0.63±0.11  1.84±0.42  3.99±0.22  6.08±0.27  7.46±0.63
caveflyer  2.94±0.21  3.73±0.04  3.81±0.38  4.01±0.09  3.65±0.48  4.06±0.27  4.68±0.70  5.19±0.54
chaser     0.68±0.01  0.72±0.02  0.96±0.03  1.00±0.05  1.18±0.16  1.86±0.29  2.75±0.56  6.18±0.14
climber    2.11±0.19  2.28±0.15  2.48±0.18  2.71±0.17  3.84±0.57  4.72±0.45  4.90±0.17  5.95±0.28
coinrun    4.62±0.17  5.63±0.16  6.23±0.20  7.41±0.36  7.71±0.32  8.06±0.29  8.41±0.29  8.66±0.15
dodgeball  0.93±0.15  1.40±0.05  1.52±0.06  1.25±0.03  1.16±0.09  1.03±0.04  1.25±0.11  1.97±0.30
fruitbot  -2.70±0.04 -1.18±0.24 -0.14±0.43  4.06±1.63 15.65±1.47 21.60±0.65 24.24±0.79 26.59±1.08
heist      4.06±0.37  3.17±0.24  2.97±0.37  2.91±0.12  2.52±0.40  2.54±0.30  2.37±0.17  2.64±0.16
jumper     3.24±0.38  4.67±0.10  5.78±0.25  5.87±0.25  5.31±0.23  5.68±0.05  5.79±0.02  5.73±0.07
leaper     2.63±0.20  2.75±0.08  2.88±0.07  2.87±0.26  2.73±0.35  3.29±0.74  4.29±0.18  5.90±1.46
maze       5.04±0.45  4.55±0.36  5.02±0.37  5.27±0.54  5.34±0.42  5.03±0.22  5.18±0.14  5.53±0.07
miner      1.19±0.05  1.08±0.11  2.09±0.12  2.33±0.15  2.66±0.44  4.69±0.93  7.14±0.28  9.45±0.09
ninja      3.29±0.19  3.69±0.18  4.05±0.20  4.62±0.45  4.32±0.33  4.80±0.46  5.13±0.26  5.72±0.39
plunder    4.29±0.16  4.11±0.11  4.10±0.40  3.77±0.34  4.55±0.30  4.56±0.26  4.73±0.54  4.59±0.63
starpilot  2.08±0.27  2.86±0.14  3.76±0.52  6.44±0.36  9.88±1.23 16.55±3.88 18.91±1.92 23.51±2.85
"""


class Published(NamedTuple):
    """The published learning curve of a game, each (8,); returns are raw."""

    timesteps: NDArray[np.float64]
    train_mean: NDArray[np.float64]
    train_std: NDArray[np.float64]
    test_mean: NDArray[np.float64]
    test_std: NDArray[np.float64]


def _parse(table: str, game: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    cells = next(line.split()[1:] for line in table.splitlines() if line.split()[0] == game)
    pairs = np.array([cell.split("±") for cell in cells], np.float64)  # (8, 2)
    return pairs[:, 0], pairs[:, 1]


def published(env_id: str, distribution_mode: str | None) -> Published | None:
    """Return the published results of PPO in a game; None for other environments or modes."""
    game = procgen_game(env_id)
    if game is None or distribution_mode != REFERENCE_MODE:
        return None
    return Published(np.array(_STEPS, np.float64), *_parse(_TRAIN, game), *_parse(_TEST, game))
