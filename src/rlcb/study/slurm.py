"""Submit a study to SLURM: job arrays with one task per run, then a job that compares the runs.

All runs of a job array take as many nodes, so each number of nodes has an array of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rlcb.errors import RunError, UsageError
from rlcb.paths import PROJECT, rlcb_command
from rlcb.study.folder import StudyFolder
from rlcb.study.state import RunState, TimeEstimate
from rlcb.study.study import PlannedRun
from rlcb.text import counted

SCRIPT = PROJECT / "cluster" / "slurm_array.sbatch"
TIME_FACTOR, EXTRA_SECONDS = 1.25, 600  # margin of the time limit, because other nodes may be slower
COMPARE_MINUTES = 30
SUBMIT_SECONDS = 120


def array_ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges in the notation of SLURM: 1, 2, 3, 5 -> `1-3,5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def time_limit_minutes(seconds: float) -> int:
    """Return the time limit of a job, in minutes: its estimated time plus a margin."""
    return int((seconds * TIME_FACTOR + EXTRA_SECONDS) // 60) + 1


def sbatch_options(options: Sequence[str]) -> list[str]:
    """Return options as flags of sbatch: `partition=cpu` -> `--partition=cpu`."""
    return [f"--{option.lstrip('-')}" for option in options]


def array_command(
    folder: StudyFolder,
    todo: Sequence[PlannedRun],
    states: Mapping[str, RunState],
    options: Sequence[str],
    retry_failed: bool,
) -> list[str]:
    """Return the sbatch command of the job array for runs with equal numbers of nodes.

    While the time is unknown it sets no time limit, so the partition's default applies.
    """
    root, estimate = folder.root.absolute(), TimeEstimate(folder.study, states)
    seconds = [estimate.remaining(run, states[run.name]) for run in todo]
    known = [each for each in seconds if each is not None]
    command = ["sbatch", "--parsable", f"--array={array_ranges([run.number for run in todo])}"]
    command += [f"--job-name=study-{root.name}", f"--chdir={PROJECT}"]
    nodes = todo[0].nodes or 1
    command += [f"--nodes={nodes}", f"--ntasks={nodes}"] if nodes > 1 else []
    command.append(f"--output={root / 'slurm'}/%A_%a.out")
    if len(known) == len(seconds):
        command.append(f"--time={time_limit_minutes(max(known))}")
    command += [*sbatch_options(options), str(SCRIPT), str(root)]
    return [*command, "--retry-failed"] if retry_failed else command


def arrays(todo: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
    """Return the runs of each job array: those with equal numbers of nodes, smaller numbers first."""
    numbers = sorted({run.nodes or 1 for run in todo})
    return [[run for run in todo if (run.nodes or 1) == number] for number in numbers]


def step_command(nodes: int | None) -> list[str]:
    """Return the words before the training command that start it on each of the job's nodes; none for a run
    on one machine (`nodes` None) and outside a job for one node.

    Raises UsageError if this is no job of `nodes` nodes.
    """
    allocated = os.environ.get("SLURM_JOB_NUM_NODES")
    if nodes is None or (nodes == 1 and allocated is None):
        return []
    if allocated is None:
        raise UsageError(f"a run on {nodes} nodes is a SLURM job: use --launcher slurm")
    if int(allocated) != nodes:
        raise UsageError(f"the run needs {nodes} nodes, and this SLURM job has {allocated}")
    # SLURM gives a step's task one core unless it is told more.
    cores = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE", "1")
    each = ["--ntasks-per-node=1", f"--cpus-per-task={cores}"]
    return ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", *each, "--kill-on-bad-exit=0"]


def compare_command(folder: StudyFolder, array_jobs: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the sbatch command of the job that compares the runs after all tasks have ended or failed."""
    root = folder.root.absolute()
    work = rlcb_command("benchmark", "--output-dir", root, "--compare-only")
    return [
        *("sbatch", "--parsable", f"--dependency=afterany:{':'.join(array_jobs)}"),
        *(f"--job-name=compare-{root.name}", f"--chdir={PROJECT}", f"--output={root / 'slurm'}/%j.out"),
        *("--ntasks=1", f"--time={COMPARE_MINUTES}", *sbatch_options(options)),
        f"--wrap={shlex.join(work)}",
    ]


def print_commands(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        print(f"PYTHON={shlex.quote(sys.executable)} {shlex.join(command)}")
    sys.stdout.flush()


def require_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise UsageError(
            "--launcher slurm: sbatch was not found; run this on a login node of a SLURM cluster, "
            "or use --launcher local"
        )


def submit(folder: StudyFolder, command: Sequence[str]) -> str:
    """Submit a job; return its number. Raises RunError with the message of sbatch."""
    (folder.root / "slurm").mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            list(command),
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=SUBMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"sbatch: {error}") from error
    job = done.stdout.strip().partition(";")[0]  # the name of the cluster may follow
    if done.returncode != 0 or not job:
        message = (done.stderr.strip() or "it printed no job number").splitlines()
        raise RunError(f"sbatch refused the job: {message[-1]}")
    folder.log("submitted", job=job, command=shlex.join(command))
    return job


def submit_study(
    folder: StudyFolder,
    todo: Sequence[PlannedRun],
    states: Mapping[str, RunState],
    options: Sequence[str],
    retry_failed: bool,
) -> int:
    """Submit the runs in `todo` and the comparison after them; return the exit code."""
    jobs = []
    for runs in arrays(todo):
        jobs.append(submit(folder, array_command(folder, runs, states, options, retry_failed)))
        nodes = f" on {counted(runs[0].nodes, 'node')} each" if runs[0].nodes else ""
        print(f"Job array {jobs[-1]}: {counted(len(runs), 'run')}{nodes}, logs in {folder.root / 'slurm'}")
    after = submit(folder, compare_command(folder, jobs, options))
    print(f"Job {after} compares the runs at the end: {folder.root / 'comparison.html'}")
    print(f"To see the progress: squeue --job {','.join([*jobs, after])}")
    print(f"                     python run_benchmark.py --output-dir {folder.root} --dry-run")
    sys.stdout.flush()
    return 0
