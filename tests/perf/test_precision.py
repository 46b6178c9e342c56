"""How far one policy is from another in the words of perf/precision.py, and the policy in int8."""

from __future__ import annotations

import math

import pytest
import torch

from perf.int8_policy import Int8Policy
from perf.precision import distances, divergence_table, make


def test_distances_are_those_of_the_probabilities() -> None:
    acting, learning = torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([[0.25, 0.75], [0.2, 0.8]])
    divergence, cut = distances(acting.log() + 3.0, learning.log())  # logits have no zero
    assert divergence == pytest.approx((0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 2, rel=1e-6)
    assert cut == pytest.approx((1 - 0.25 - 0.5) / 2, rel=1e-6)  # ratios 0.5 and 1.5, the second cut at 1


def test_the_table_has_medians_and_the_largest() -> None:
    found = {
        name: [(1e-3, 0.01), (3e-3, 0.03), (2e-2, 0.02)] for name in ("bfloat16", "int8, ranges every update")
    }
    found["int8, ranges every 20th update"] = [(5e-4, 0.005)]
    lines = divergence_table(found).splitlines()
    assert lines[2] == "| bfloat16 | 0.003 | 0.02 | 2.00% |"
    assert lines[3] == "| int8, ranges every 20th update | 0.0005 | 0.0005 | 0.50% |"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_policy_in_int8_is_near_the_network_that_it_follows_and_follows_it() -> None:
    trainer = make("nature", "float32")
    policy = Int8Policy(trainer.model, ranges_every=2)
    observations = torch.from_numpy(trainer.collector.observations)
    torch.manual_seed(1)

    def distance() -> float:
        with torch.inference_mode():
            return float((trainer.model(observations)[0] - policy(observations)[0]).abs().max())

    policy.refresh(observations)
    assert 0 < (near := distance()) < 0.01
    with torch.inference_mode():
        for parameter in trainer.model.body.parameters():
            parameter += 0.2 * parameter.abs().mean() * torch.randn_like(parameter)
    far = distance()
    policy.refresh(observations)  # the weights, not the ranges
    assert near < far / 2 and distance() < far / 2
