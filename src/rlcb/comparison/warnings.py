"""Warnings about results that mislead: they stand beside the findings in every output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult
from rlcb.comparison.format import listed
from rlcb.comparison.metrics import REWARD, TIME_AXES
from rlcb.comparison.reference import without_reference
from rlcb.comparison.rounds import CAUTION
from rlcb.comparison.runs import Run, as_number, dig
from rlcb.comparison.statistics import ENOUGH, Sample, difference_p, rising
from rlcb.config.games import procgen_game
from rlcb.rl.statistics import WINDOW
from rlcb.text import counted

SIGNIFICANCE = 0.05
LEAST_EPISODES = 10  # with fewer training episodes their spread is unknown, and nothing is tested
COLLAPSED = 0.1
"""Share of log(number of actions): a policy below it has collapsed. With 15 actions, a policy that takes one
action 96 % of the time and the others equally often has this entropy."""
MOST = 0.5  # share of evaluation episodes that end at the step limit, or of timesteps in unfinished episodes
LAST = 1 / 3  # part of a run in which the timesteps of finished episodes are counted
PROCGEN_ACTIONS = 15
HOW_TO_EVALUATE = (
    "run_benchmark.py --output-dir STUDY --evaluate-episodes 100 evaluates the runs of a study, "
    "evaluate_universal.py RUN a single one"
)


class Caution(NamedTuple):
    """One warning. `game` and `group` are empty if it concerns all of them."""

    kind: str
    """lost, disagree, entropy, step_limit, few_episodes, unfinished_episodes, not_evaluated, one_seed,
    few_seeds, rounds or no_reference."""
    game: str
    group: str
    text: str

    def __str__(self) -> str:
        about = ", ".join(filter(None, [self.group, self.game]))
        text = f"{about}: {self.text}" if about else self.text
        return f"{text[0].upper()}{text[1:]}." if not about else f"{text}."


OF_TRAINING = ("disagree", "few_episodes", "unfinished_episodes")  # do not concern evaluations


def cautions(comparison: Comparison) -> list[Caution]:
    """Return all warnings: lost seeds first, then others about groups, then those about all of them."""
    found = [each for game in comparison.games for each in _lost(game)]
    shown = {result.group.env for result in comparison.results}
    for group in comparison.lost:
        if group.env not in shown:
            found.append(Caution("lost", group.env, group.label, _lost_text(0, len(group.lost), "")))
    tests = sum(_compared(run) is not None for result in comparison.results for run in result.group.runs)
    for game in comparison.games:
        for result in game.groups:
            about = (game.game, result.group.label)
            found += [Caution("disagree", *about, text) for text in _disagreement(result.group.runs, tests)]
            found += [Caution("entropy", *about, text) for text in _entropy(result.group.runs)]
            found += [Caution("step_limit", *about, text) for text in _step_limit(result.group.runs)]
            found += [Caution("few_episodes", *about, text) for text in _few_episodes(game, result)]
            found += [Caution("unfinished_episodes", *about, text) for text in _unfinished(result.group.runs)]
    return [*found, *_about_all(comparison)]


def warning_texts(comparison: Comparison) -> list[str]:
    """Return the warnings as sentences."""
    return [str(each) for each in cautions(comparison)]


def _lost(game: GameResult) -> Iterator[Caution]:
    for result in game.groups:
        used = sum(run.completed for run in result.group.runs)
        if used < result.group.planned:
            states = [f"seed {run.seed} {run.status}" for run in result.group.runs if not run.completed]
            states += [f"seed {run.seed}: {run.reason}" for run in result.group.lost]
            text = _lost_text(used, result.group.planned, f" ({'; '.join(states)})")
            yield Caution("lost", game.game, result.group.label, text)
    for group in game.lost:
        reasons = "; ".join(dict.fromkeys(run.reason for run in group.lost))
        yield Caution("lost", game.game, group.label, _lost_text(0, len(group.lost), f" ({reasons})"))


def _lost_text(left: int, planned: int, why: str) -> str:
    return (
        f"{left} of {counted(planned, 'seed')} completed{why}. Lost seeds bias every result of this group: "
        "runs seldom fail by chance alone"
    )


def _training(run: Run) -> Sample | None:
    """Return the last 100 training episodes of a run as a sample; None for fewer than LEAST_EPISODES."""
    shown = np.flatnonzero(np.isfinite(run.series[REWARD]))
    if not shown.size:
        return None
    mean, std, episodes = (
        float(run.series[key][shown[-1]]) for key in (REWARD, "rollout/ep_reward_std", "rollout/episodes")
    )
    if not math.isfinite(std) or not episodes >= LEAST_EPISODES:
        return None
    return Sample(mean, std, min(WINDOW, int(episodes)))


def _evaluation(run: Run) -> Sample | None:
    """Return the evaluation on the levels of the training as a sample; None without one."""
    for split in ("train", "full"):
        mean, std, n = (
            as_number(dig(run.evaluation, f"splits.{split}.{key}"))
            for key in ("mean_reward", "std_reward", "episodes")
        )
        if math.isfinite(mean + std) and n > 1:
            return Sample(mean, std, int(n))
    return None


def _compared(run: Run) -> tuple[Sample, Sample] | None:
    """Return training and evaluation of a run if both exist, at the same timestep."""
    training, evaluated = _training(run), _evaluation(run)
    at = as_number(dig(run.evaluation, "timesteps"))
    if training is None or evaluated is None or at < run.number("total_timesteps"):
        return None
    if dig(run.evaluation, "deterministic"):  # training samples its actions
        return None
    return training, evaluated


def _disagreement(runs: Sequence[Run], tests: int) -> Iterator[str]:
    """Find runs whose training return and evaluation differ significantly, adjusted for `tests` runs."""
    found = []
    for run in runs:
        both = _compared(run)
        if both is not None and difference_p(*both) < SIGNIFICANCE / tests:
            (first, second), ends = both, [each.interval for each in both]
            texts = [
                f"{each.mean:.2f} [{low:.2f}, {high:.2f}]" for each, (low, high) in zip((first, second), ends)
            ]
            found.append(f"{texts[0]} and {texts[1]} with seed {run.seed}")
    if found:
        yield (
            f"training return and evaluation on the same levels disagree: {listed(found)}. Trust the "
            "evaluation: it plays whole episodes with the final policy"
        )


def _actions(run: Run) -> float:
    """Return the number of actions; without a record of it, what the highest entropy implies."""
    recorded = as_number(dig(run.evaluation, "num_actions"))
    if math.isfinite(recorded):
        return recorded
    if procgen_game(run.env) is not None:
        return PROCGEN_ACTIONS
    known = run.series["train/entropy"][np.isfinite(run.series["train/entropy"])]
    return math.exp(min(float(known.max()), 20.0)) if known.size else math.nan


def final_entropy(run: Run) -> float:
    """Return the mean entropy of the last twentieth of the updates, in nats; NaN if it was not recorded."""
    entropy = run.series["train/entropy"]
    last = entropy[-max(1, len(entropy) // 20) :]
    last = last[np.isfinite(last)]
    return float(last.mean()) if last.size else math.nan


def _entropy(runs: Sequence[Run]) -> Iterator[str]:
    found = []
    for run in runs:
        entropy, most = final_entropy(run), math.log(_actions(run))
        if entropy < COLLAPSED * most:
            found.append(
                f"{entropy:.2f} nats with seed {run.seed}, {entropy / most:.0%} of the highest possible"
            )
    if found:
        yield (
            f"the entropy of the policy collapsed ({listed(found)}): it takes nearly always the same action "
            "in a state and explores no more. A higher training.ent_coef helps"
        )


def _limited(run: Run) -> tuple[int, int, int] | None:
    """Return (episodes at the step limit, all episodes, the limit) of an evaluation in which most episodes
    ran to the limit and gained nothing by it; None for other evaluations.

    The limit is the largest length. Where surviving is rewarded, as in CartPole, the limit is success: then
    the episodes at the limit have positive returns, not below the others and the training.
    """
    splits = dig(run.evaluation, "splits")
    played = [each for each in splits.values() if isinstance(each, dict)] if isinstance(splits, dict) else []
    lengths = np.array([n for each in played for n in each.get("lengths") or []], np.float64)
    rewards = np.array([r for each in played for r in each.get("rewards") or []], np.float64)
    if lengths.size < LEAST_EPISODES or lengths.shape != rewards.shape:
        return None
    at = lengths == lengths.max()
    if at.mean() <= MOST:
        return None
    training, reached = _training(run), float(rewards[at].mean())
    others = [float(rewards[~at].mean())] if not at.all() else []
    others += [training.interval[0]] if training is not None else []
    if reached > 0 and all(reached >= each for each in others):
        return None
    return int(at.sum()), at.size, int(lengths.max())


def _step_limit(runs: Sequence[Run]) -> Iterator[str]:
    found = []
    for run in runs:
        limited = _limited(run)
        if limited is not None:
            found.append(f"{limited[0]} of {limited[1]} at {limited[2]:,} steps with seed {run.seed}")
    if found:
        yield f"most evaluation episodes ran to the step limit ({listed(found)}): the policy seems stuck"


def _few_episodes(game: GameResult, result: GroupResult) -> Iterator[str]:
    """Find runs that had finished fewer than 100 episodes where returns are compared."""
    few = []
    for run in result.group.runs:
        counts = []
        for time_axis in TIME_AXES:
            x, episodes = rising(run.series[time_axis.column], run.series["rollout/episodes"])
            window = game.windows[time_axis.key]
            if window is not None and x.size and window.end >= x[0]:
                counts.append((float(np.interp(window.end, x, episodes)), time_axis.title))
        if counts and min(counts)[0] < WINDOW:
            few.append(f"{min(counts)[0]:.0f} at {min(counts)[1]} with seed {run.seed}")
    if few:
        yield (
            f"few episodes had finished ({listed(few)}): the training return is the mean of fewer than "
            f"{WINDOW}, and short episodes finish first"
        )


def finished_share(run: Run) -> float:
    """Return the share of the last third's timesteps that belongs to episodes that finished in it; NaN if
    there are no rows.

    Each row's new episodes are taken to have the mean length of the last 100.
    """
    x, episodes = rising(run.series["timesteps"], run.series["rollout/episodes"])
    at, known = rising(run.series["timesteps"], run.series["rollout/ep_length_mean"])
    if x.size < 2 or not at.size:
        return math.nan
    lengths = np.interp(x, at, known)
    first = int(np.searchsorted(x, (1 - LAST) * x[-1], side="right")) - 1
    first = min(max(first, 0), x.size - 2)
    steps = np.diff(episodes[first:]) * lengths[first + 1 :]
    return float(steps.sum() / (x[-1] - x[first]))


def _unfinished(runs: Sequence[Run]) -> Iterator[str]:
    found = []
    for run in runs:
        share = finished_share(run)
        if share < 1 - MOST:
            found.append(f"{share:.0%} of its timesteps with seed {run.seed}")
    if found:
        yield (
            f"finished episodes make up a small part of the last third of training ({listed(found)}): "
            "longer episodes were still running, and the training return leaves them out"
        )


def _about_all(comparison: Comparison) -> Iterator[Caution]:
    unknown = [game.game for game in comparison.games if game.evaluated is None]
    if unknown:
        text = f"no run was evaluated on {listed(unknown)}, so findings rest on training returns"
        yield Caution("not_evaluated", "", "", f"{text}; {HOW_TO_EVALUATE}")
    for game in comparison.games:
        if game.evaluated is None:
            continue
        without = [r.group.label for r in game.groups if r.estimates[game.evaluated] is None]
        if without:
            text = f"no evaluation of {listed(without)}; {HOW_TO_EVALUATE}"
            yield Caution("not_evaluated", game.game, "", text)
    sizes = [len(result.group.runs) for result in comparison.results]
    if min(sizes) < 2:
        text = "a group with one seed has no interval, and a difference from it can be chance"
        yield Caution("one_seed", "", "", text)
    if any(2 <= size < ENOUGH for size in sizes):
        text = (
            f"with fewer than {ENOUGH} seeds, bootstrap intervals are too narrow; claims rest on Welch's "
            f"test, adjusted by Holm's method, at p < {SIGNIFICANCE}"
        )
        yield Caution("few_seeds", "", "", text)
    if comparison.options.decisions:
        yield Caution("rounds", "", "", CAUTION)
    absent = without_reference(comparison) if comparison.options.reference else []
    if absent:
        text = f"no published figures exist for {', '.join(absent)} (Procgen, easy mode only)"
        yield Caution("no_reference", "", "", text)
