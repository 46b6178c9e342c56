"""The PPO loop that people write first: single environments through Shimmy, float frames, channels first.

Nothing in it is wrong, and nothing in it is made to be fast: gymnasium's SyncVectorEnv with its own wrappers
for episodes and rewards, one tensor of float32 observations, whole minibatches.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics, TransformReward
from torch import Tensor, nn
from torch.distributions import Categorical

from perf.peers.programs.networks import NETWORKS
from perf.peers.programs.protocol import Reporter, make_procgen, settings

PROCGEN_THREADS = 0  # as Procgen registers single environments with Gym: each is stepped by who calls it


class Agent(nn.Module):
    """A body and two heads."""

    def __init__(self, network: str, hidden_size: int) -> None:
        super().__init__()
        self.body = NETWORKS[network](hidden_size)
        self.policy = nn.Linear(hidden_size, 15)
        self.value = nn.Linear(hidden_size, 1)

    def forward(self, frames: Tensor) -> tuple[Categorical, Tensor]:  # (B, 3, 64, 64) in [0, 255]
        features = self.body(frames / 255)
        return Categorical(logits=self.policy(features)), self.value(features).squeeze(-1)


def make_env(index: int) -> Any:
    """One Procgen environment as an old Gym one, behind Shimmy; `index` is its seed."""
    import gym3
    from shimmy import GymV21CompatibilityV0

    procgen = make_procgen(1, PROCGEN_THREADS, index)
    return GymV21CompatibilityV0(env=gym3.ToGymEnv(gym3.ExtractDictObWrapper(procgen, key="rgb")))


def make_envs(num_envs: int, gamma: float) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    envs: Any = SyncVectorEnv(
        [partial(make_env, index) for index in range(num_envs)], autoreset_mode=AutoresetMode.SAME_STEP
    )
    envs = NormalizeReward(RecordEpisodeStatistics(envs), gamma)
    return TransformReward(envs, lambda reward: np.clip(reward, -10, 10))


def to_frames(observations: Any) -> Tensor:
    """(N, 64, 64, 3) uint8 -> (N, 3, 64, 64) float32, contiguous."""
    return torch.as_tensor(observations, dtype=torch.float32).permute(0, 3, 1, 2).contiguous()


class Rollout:
    """Observations, actions and rewards of a rollout: tensors (T, N, ...)."""

    def __init__(self, n_steps: int, num_envs: int) -> None:
        self.frames = torch.zeros(n_steps, num_envs, 3, 64, 64)
        self.actions = torch.zeros(n_steps, num_envs, dtype=torch.int64)
        self.log_probs, self.values, self.rewards, self.ended = torch.zeros(4, n_steps, num_envs)
        self.advantages, self.returns = torch.zeros(2, n_steps, num_envs)

    def collect(self, agent: Agent, envs: Any, frames: Tensor) -> Tensor:
        for t in range(len(self.frames)):
            with torch.no_grad():
                policy, self.values[t] = agent(frames)
                actions = policy.sample()
            self.frames[t], self.actions[t], self.log_probs[t] = frames, actions, policy.log_prob(actions)
            observations, rewards, terminated, truncated, _ = envs.step(actions.numpy())
            self.rewards[t] = torch.as_tensor(rewards, dtype=torch.float32)
            self.ended[t] = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            frames = to_frames(observations)
        return frames

    def compute_advantages(self, last_values: Tensor, gamma: float, gae_lambda: float) -> None:
        advantage = torch.zeros_like(last_values)
        for t in reversed(range(len(self.frames))):
            following = last_values if t + 1 == len(self.frames) else self.values[t + 1]
            delta = self.rewards[t] + gamma * following * (1 - self.ended[t]) - self.values[t]
            advantage = delta + gamma * gae_lambda * (1 - self.ended[t]) * advantage
            self.advantages[t] = advantage
        self.returns = self.advantages + self.values


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, given: dict[str, Any]) -> None:
    names = ("frames", "actions", "log_probs", "advantages", "returns")
    data = {name: getattr(rollout, name).flatten(0, 1) for name in names}
    for _ in range(given["n_epochs"]):
        for chosen in torch.randperm(len(data["actions"])).split(given["batch_size"]):
            batch = {name: values[chosen] for name, values in data.items()}
            policy, values = agent(batch["frames"])
            ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
            advantages = batch["advantages"]
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            clipped = ratio.clamp(1 - given["clip_range"], 1 + given["clip_range"])
            policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
            value_loss = 0.5 * (values - batch["returns"]).square().mean()
            loss = policy_loss + given["vf_coef"] * value_loss - given["ent_coef"] * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), given["max_grad_norm"])
            optimizer.step()


def main() -> None:
    given = settings()
    envs = make_envs(given["num_envs"], given["gamma"])
    agent = Agent(given["network"], given["hidden_size"])
    optimizer = torch.optim.Adam(agent.parameters(), given["learning_rate"], eps=1e-5)
    rollout = Rollout(given["n_steps"], given["num_envs"])
    parameters = sum(each.numel() for each in agent.parameters())
    reporter = Reporter(parameters, torch.get_num_threads(), ("gymnasium", "shimmy"))
    frames, timesteps = to_frames(envs.reset()[0]), 0
    while True:
        frames = rollout.collect(agent, envs, frames)
        with torch.no_grad():
            last_values = agent(frames)[1]
        rollout.compute_advantages(last_values, given["gamma"], given["gae_lambda"])
        update(agent, optimizer, rollout, given)
        timesteps += rollout.actions.numel()
        reporter.progress(timesteps)


if __name__ == "__main__":
    main()
