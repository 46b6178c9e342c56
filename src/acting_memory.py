"""Whether a run has the memory to keep its passes of acting until it has learned from them."""

from __future__ import annotations

from src.config import LEARN_AS_THEY_ACTED, Config
from src.cpu_utils import usable_memory

PASSES_SHARE = 0.25  # of the memory: what kept passes may take where nothing is said


def keeps_acting_passes(config: Config, sample_bytes: int) -> bool:
    """Whether they are kept, if what is kept of a sample takes so many bytes; 0 where there is nothing."""
    if config.algorithm not in LEARN_AS_THEY_ACTED or not sample_bytes:
        return False
    if config.hardware.keep_acting_passes is not None:
        return config.hardware.keep_acting_passes
    samples = config.training.n_steps * config.envs_per_node
    return samples * sample_bytes <= PASSES_SHARE * usable_memory()
