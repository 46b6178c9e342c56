"""Sample Factory's APPO on Procgen's native batches, which it sees as environments of several agents.

As it is meant to run, a worker process for each core has two batches and steps one while the other waits for
its actions (double buffering), and a learner of one thread learns meanwhile. In its serial mode all of that
happens in turn in one process, with torch's default of a thread for each core. Frames go in as
they are, only divided by 255, and there is no recurrence, as here; returns are scaled by its own running
statistics.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import gymnasium
import numpy as np
import torch
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import make_runner

from perf.peers.programs.protocol import Reporter, make_procgen, most_workers, settings
from rlcb import cpu

ENV = "procgen_coinrun"
SPLITS = 2


class ProcgenAgents(gymnasium.Env[Any, Any]):
    """A native batch as an environment of several agents, none of which ever leaves."""

    is_multiagent = True

    def __init__(self, num_agents: int, seed: int) -> None:
        self.num_agents = num_agents
        self.procgen = make_procgen(num_agents, num_threads=0, seed=seed)
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(15)
        self.render_mode = None

    def observe(self) -> tuple[Any, Any, Any]:
        rewards, observations, first = self.procgen.observe()
        return list(observations["rgb"].transpose(0, 3, 1, 2)), rewards, first

    def reset(self, **_: Any) -> tuple[Any, Any]:
        return self.observe()[0], [{} for _ in range(self.num_agents)]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.procgen.act(np.asarray(actions, np.int32).reshape(self.num_agents))
        frames, rewards, first = self.observe()
        return frames, rewards, first, np.zeros_like(first), [{} for _ in range(self.num_agents)]


def make_env(_name: str, config: Any, place: Any = None, *_: Any, **__: Any) -> ProcgenAgents:
    """`place` says which batch of all it is; it is None of the one that is only asked for its spaces."""
    return ProcgenAgents(config.num_agents_per_batch, 0 if place is None else place.env_id)


def flags(given: dict[str, Any], folder: str) -> dict[str, Any]:
    """Sample Factory's flags for a case."""
    serial = given["serial"]
    workers, splits = 1, 1
    if not serial:
        workers, splits = most_workers(given["num_envs"] // SPLITS, cpu.usable_cores()), SPLITS
    processes = {
        "serial_mode": serial,
        "async_rl": not serial,
        "num_workers": workers,
        "num_envs_per_worker": splits,
        "worker_num_splits": splits,
        "num_agents_per_batch": given["num_envs"] // workers // splits,
    }
    network = {
        "encoder_conv_architecture": {"impala": "resnet_impala", "nature": "convnet_atari"}[given["network"]],
        "encoder_conv_mlp_layers": given["hidden_size"],
        "nonlinearity": "relu",
        "use_rnn": False,
        "normalize_input": False,
        "obs_scale": 255.0,
    }
    learning = {
        "rollout": given["n_steps"],
        "batch_size": given["batch_size"],
        "num_batches_per_epoch": given["num_envs"] * given["n_steps"] // given["batch_size"],
        "num_epochs": given["n_epochs"],
        "learning_rate": given["learning_rate"],
        "gamma": given["gamma"],
        "gae_lambda": given["gae_lambda"],
        "ppo_clip_ratio": given["clip_range"],
        "exploration_loss_coeff": given["ent_coef"],
        "value_loss_coeff": given["vf_coef"],
        "max_grad_norm": given["max_grad_norm"],
        "adam_eps": 1e-5,
        "reward_clip": 10.0,
        "normalize_returns": True,
        "shuffle_minibatches": True,
    }
    run = {"env": ENV, "device": "cpu", "seed": 1, "train_dir": folder, "experiment": "run"}
    return {**processes, **network, **learning, **run}


class AfterEachUpdate(AlgoObserver):
    """Says how far the learner is whenever it has learned from another dataset."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.seen = 0

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        timesteps = sum(runner.env_steps.values())
        if timesteps > self.seen:
            self.seen = timesteps
            self.reporter.progress(timesteps)


def configure(given: dict[str, Any], folder: str) -> Any:
    arguments = [f"--{key}={value}" for key, value in flags(given, folder).items()]
    parser, _ = parse_sf_args(argv=arguments)
    parser.add_argument("--num_agents_per_batch", type=int)
    return parse_full_cfg(parser, arguments)


def main() -> None:
    given = settings()
    register_env(ENV, make_env)
    with tempfile.TemporaryDirectory() as folder:
        config = configure(given, folder)
        space = gymnasium.spaces.Dict(obs=gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8))
        model = create_actor_critic(config, space, gymnasium.spaces.Discrete(15))
        parameters = sum(each.numel() for each in model.parameters())
        config, runner = make_runner(config)
        if runner.init() != ExperimentStatus.SUCCESS:
            sys.exit("Sample Factory could not be set up")
        threads = torch.get_num_threads() if given["serial"] else 1
        reporter = Reporter(parameters, threads, ("sample-factory", "gymnasium"))
        runner.register_observer(AfterEachUpdate(reporter))
        runner.run()


if __name__ == "__main__":
    main()
