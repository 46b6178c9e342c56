"""Stable-Baselines3's PPO and A2C on Procgen's native batch, through a VecEnv of its own kind.

Its own VecMonitor counts episodes and its own VecNormalize scales rewards, as this project does; its own
VecTransposeImage, which it adds by itself, brings frames to channels first. There is a thread for each core.
"""

from __future__ import annotations

from typing import Any

from perf.peers.programs.protocol import Reporter, make_procgen, settings

GIVEN = settings()  # here, since the settings of the allocator have to be in force before torch is loaded

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gymnasium import spaces  # noqa: E402
from stable_baselines3 import A2C, PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN  # noqa: E402
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize  # noqa: E402

from perf.peers.programs.networks import impala  # noqa: E402

FOREVER = 10**9  # timesteps: the program is ended from outside
END_EPISODE = -1  # Procgen's action for that


class ProcgenVecEnv(VecEnv):
    """Procgen's batch behind Stable-Baselines3's interface.

    Procgen never shows the last frame of an episode and reports a time-out as a termination, so there is no
    terminal observation to hand over, and none is asked for.
    """

    def __init__(self, num_envs: int) -> None:
        self.procgen = make_procgen(num_envs)
        self.fresh = True
        super().__init__(num_envs, spaces.Box(0, 255, (64, 64, 3), np.uint8), spaces.Discrete(15))

    def reset(self) -> Any:
        if not self.fresh:
            self.procgen.act(np.full(self.num_envs, END_EPISODE, np.int32))
        return self.procgen.observe()[1]["rgb"]

    def step_async(self, actions: Any) -> None:
        self.fresh = False
        self.procgen.act(actions.astype(np.int32))

    def step_wait(self) -> Any:
        rewards, observations, first = self.procgen.observe()
        return observations["rgb"], rewards, first, [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        self.procgen.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Stable-Baselines3 asks for `render_mode`, which there is none of."""
        return [getattr(self, attr_name, None) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("the environments of a native batch have no attributes of their own")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("the environments of a native batch have no methods of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


class ImpalaExtractor(BaseFeaturesExtractor):
    """The IMPALA-CNN; Stable-Baselines3 hands over frames in [0, 1]."""

    def __init__(self, observation_space: spaces.Box, features_dim: int) -> None:
        super().__init__(observation_space, features_dim)
        self.network = impala(features_dim)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.network(observations)
        return features


class AfterEachUpdate(BaseCallback):
    """Says how far it is whenever a rollout begins, which is when the update before has ended."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self.reporter = reporter

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.reporter.progress(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def make_model(given: dict[str, Any]) -> PPO | A2C:
    env = VecMonitor(ProcgenVecEnv(given["num_envs"]))
    env = VecNormalize(env, norm_obs=False, gamma=given["gamma"], clip_reward=10.0)
    policy: dict[str, Any] = {
        "features_extractor_class": ImpalaExtractor if given["network"] == "impala" else NatureCNN,
        "features_extractor_kwargs": {"features_dim": given["hidden_size"]},
        "net_arch": [],  # policy and value head on the features, as here
    }
    shared = {key: given[key] for key in ("n_steps", "learning_rate", "gamma", "gae_lambda")}
    shared |= {key: given[key] for key in ("ent_coef", "vf_coef", "max_grad_norm")}
    shared |= {"policy_kwargs": policy, "seed": 1, "device": "cpu"}
    if given["algorithm"] == "a2c":
        return A2C("CnnPolicy", env, use_rms_prop=False, **shared)  # Adam, as here
    sizes = {key: given[key] for key in ("batch_size", "n_epochs")}
    return PPO("CnnPolicy", env, clip_range=given["clip_range"], **sizes, **shared)


def main() -> None:
    model = make_model(GIVEN)
    parameters = sum(each.numel() for each in model.policy.parameters())
    reporter = Reporter(parameters, torch.get_num_threads(), ("stable-baselines3", "gymnasium"))
    model.learn(FOREVER, callback=AfterEachUpdate(reporter))


if __name__ == "__main__":
    main()
