"""Prepare this process for a run: its threads, its allocator and the kernels."""

from __future__ import annotations

import argparse

from rlcb.config.config import Config
from rlcb.cpu import prepare_process
from rlcb.kernels.build import build_ahead
from rlcb.training.run_folder import RunFolder
from rlcb.training.run_spec import RunSpec


def prepare_run(arguments: argparse.Namespace, config: Config, folder: RunFolder, resume: bool) -> RunSpec:
    """Prepare this process for the run of these flags, and return the run. Call it before torch is loaded.

    Unless `hardware.num_threads` says otherwise, the process of a sequential run has a thread for each core;
    in the other modes there is a process for each core.
    """
    default_threads = None if config.mode == "sequential" else 1
    hardware = config.hardware
    num_threads = prepare_process(hardware.num_threads, hardware.tune_allocator, default_threads)
    build_ahead(config)
    return RunSpec(config, folder, num_threads, resume, arguments.overwrite, arguments.trace_folder)
