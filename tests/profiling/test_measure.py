"""What a profile says of the network that it measured."""

from __future__ import annotations

import pytest

from rlcb.config.config import Config
from rlcb.profiling.measure import network_of


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_the_facts_of_the_network_are_those_of_the_process_that_measured(kernels: str) -> None:
    facts = {
        "startup": {},
        "observation_shape": [64, 64, 3],
        "num_actions": 15,
        "parameters": 1000,
        "forward_flops": 1e6,
        "forward_backward_flops": 3e6,
        "activation_bytes": 5000,
        "kernels": kernels,
    }
    network = network_of(Config(), facts)
    assert network.model_dump(exclude={"model", "name"}) == {
        **{name: value for name, value in facts.items() if name != "startup"},
        "observation_shape": (64, 64, 3),
    }
