"""A study as a SLURM job array: one task for each run, then one job that compares."""

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
from rlcb.study.state import Estimate, State
from rlcb.study.study import PlannedRun

SCRIPT = PROJECT / "cluster" / "slurm_array.sbatch"
SPARE_SHARE, SPARE_SECONDS = 1.25, 600  # of time asked for: other nodes may be slower
COMPARE_MINUTES = 30
SUBMIT_SECONDS = 120


def array_of(numbers: Sequence[int]) -> str:
    """Numbers as SLURM writes them: 1,2,3,5 is `1-3,5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def minutes_of(seconds: float) -> int:
    """The time to ask for, in minutes."""
    return int((seconds * SPARE_SHARE + SPARE_SECONDS) // 60) + 1


def sbatch_options(options: Sequence[str]) -> list[str]:
    """`partition=cpu` as sbatch takes it: `--partition=cpu`."""
    return [f"--{option.lstrip('-')}" for option in options]


def array_command(
    folder: StudyFolder,
    todo: Sequence[PlannedRun],
    states: Mapping[str, State],
    options: Sequence[str],
    retry_failed: bool,
) -> list[str]:
    """The sbatch command of the array. Without a known time it asks for what the partition gives."""
    root, estimate = folder.root.absolute(), Estimate(folder.study, states)
    seconds = [estimate.left(cell, states[cell.name]) for cell in todo]
    known = [each for each in seconds if each is not None]
    command = ["sbatch", "--parsable", f"--array={array_of([cell.number for cell in todo])}"]
    command += [f"--job-name=study-{root.name}", f"--chdir={PROJECT}"]
    command.append(f"--output={root / 'slurm'}/%A_%a.out")
    if len(known) == len(seconds):
        command.append(f"--time={minutes_of(max(known))}")
    command += [*sbatch_options(options), str(SCRIPT), str(root)]
    return [*command, "--retry-failed"] if retry_failed else command


def compare_command(folder: StudyFolder, array_job: str, options: Sequence[str]) -> list[str]:
    """The sbatch command of the job that compares once all tasks have ended, in whatever way."""
    root = folder.root.absolute()
    work = rlcb_command("benchmark", "--output-dir", root, "--compare-only")
    return [
        *("sbatch", "--parsable", f"--dependency=afterany:{array_job}"),
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
    """Submit a job; returns its number. Raises RunError with what sbatch said."""
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
    job = done.stdout.strip().partition(";")[0]  # behind it the cluster's name, if there are several
    if done.returncode != 0 or not job:
        said = (done.stderr.strip() or "it gave no job number").splitlines()
        raise RunError(f"sbatch refused the job: {said[-1]}")
    folder.log("submitted", job=job, command=shlex.join(command))
    return job


def submit_study(
    folder: StudyFolder,
    todo: Sequence[PlannedRun],
    states: Mapping[str, State],
    options: Sequence[str],
    retry_failed: bool,
) -> int:
    """Submit what is left of a study; returns the exit code."""
    job = submit(folder, array_command(folder, todo, states, options, retry_failed))
    print(f"Job array {job}: {len(todo)} runs, logs in {folder.root / 'slurm'}")
    after = submit(folder, compare_command(folder, job, options))
    print(f"Job {after} compares them at the end: {folder.root / 'comparison.html'}")
    print(f"To look: squeue --job {job},{after}")
    print(f"         python run_benchmark.py --output-dir {folder.root} --dry-run")
    sys.stdout.flush()
    return 0
