"""The job scripts, with stand-ins for what schedulers bring: who queues a job again, with what settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import runs

pytestmark = pytest.mark.timeout(180)

CLUSTER = runs.PROJECT / "cluster"
QSTAT = """\
Job Id: 123.server
    Job_Name = rl-cluster
    Account_Name = lab
    Resource_List.nodect = 2
    Resource_List.nodes = 2:ppn=8
    Resource_List.place = free
    Resource_List.select = 2:ncpus=8:mem=
\t4gb
    Resource_List.walltime = {walltime}
"""


def put_program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def environment(programs: Path, **given: object) -> dict[str, str]:
    """What a job sees: the stand-ins come first, and no scheduler of this machine is heard of."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "PBS_"))}
    kept["PATH"] = f"{programs}:{os.environ['PATH']}"
    return {**kept, **{key: str(value) for key, value in given.items()}}


# --- SLURM ---


class Slurm:
    """A job of slurm.sbatch, whose tasks end with a given exit code."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output, self.programs = folder, folder / "run", folder / "bin"
        self.requeued = folder / "requeued"
        put_program(self.programs, "srun", 'exit "$CODE"')
        put_program(
            self.programs,
            "scontrol",
            'case "$1 $2" in\n"show hostnames") echo n1 ;;\nshow*) echo "JobState=$STATE" ;;\n'
            f'requeue*) echo "$2" >>{self.requeued} ;;\nesac',
        )

    def start(self, code: int, restarts: int, state: str = "RUNNING", **given: object) -> str:
        """Run the job once; returns what it printed."""
        place = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": self.folder}
        given = {
            **given,
            "CODE": code,
            "STATE": state,
            "OUTPUT": self.output,
            "SLURM_RESTART_COUNT": restarts,
        }
        ended = subprocess.run(
            ["bash", str(CLUSTER / "slurm.sbatch")],
            env=environment(self.programs, **place, **given),
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr

    @property
    def times_requeued(self) -> int:
        return len(self.requeued.read_text().split()) if self.requeued.exists() else 0


@pytest.mark.parametrize("code", [0, 2, 130])
def test_a_job_that_is_done_refused_or_ended_by_hand_is_not_queued_again(tmp_path: Path, code: int) -> None:
    slurm = Slurm(tmp_path)
    slurm.start(code, restarts=0)
    assert slurm.times_requeued == 0
    assert not slurm.output.exists()


@pytest.mark.parametrize("code", [138, 143])
def test_a_job_that_a_signal_stopped_is_queued_again_however_often(tmp_path: Path, code: int) -> None:
    slurm = Slurm(tmp_path)
    for restarts in range(6):
        slurm.output.mkdir(exist_ok=True)
        record = {"status": "interrupted", "total_timesteps": 1000 * restarts}
        (slurm.output / "benchmark_metrics.json").write_text(json.dumps(record, indent=2))
        slurm.start(code, restarts)
    assert slurm.times_requeued == 6


@pytest.mark.parametrize("code", [138, 143])
def test_a_job_that_is_stopped_without_progress_is_queued_again_three_times(
    tmp_path: Path, code: int
) -> None:
    """Its time limit is too short: it is stopped before it trains, every time."""
    slurm = Slurm(tmp_path)
    for restarts in range(3):
        assert "queued again, to resume" in slurm.start(code, restarts)
    assert "stopped 4 times in a row without progress: not queued again" in slurm.start(code, 3)
    assert slurm.times_requeued == 3
    slurm.start(code, 4, MAX_RESTARTS=9)
    assert slurm.times_requeued == 4


@pytest.mark.parametrize("code", [1, 137, 139])
def test_failures_alone_are_counted_and_a_killed_process_is_one(tmp_path: Path, code: int) -> None:
    slurm = Slurm(tmp_path)
    slurm.start(138, restarts=5)  # after five preemptions, which do not count
    for failure in (1, 2, 3):
        printed = slurm.start(code, restarts=5 + failure)
        assert f"failure {failure}, exit code {code}: queued again" in printed
    printed = slurm.start(code, restarts=9)
    assert f"failure 4, exit code {code}: not queued again (MAX_RESTARTS=3)" in printed
    assert slurm.times_requeued == 4
    slurm.start(code, restarts=9, MAX_RESTARTS=9)
    assert slurm.times_requeued == 5


@pytest.mark.parametrize("code", [1, 137, 138, 143])
def test_a_job_that_was_cancelled_stays_cancelled(tmp_path: Path, code: int) -> None:
    slurm = Slurm(tmp_path)
    slurm.start(code, restarts=0, state="CANCELLED")
    assert slurm.times_requeued == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_slurm_job_that_is_told_to_stop_before_its_tasks_begin_begins_none(
    tmp_path: Path, number: signal.Signals
) -> None:
    asked, begun = tmp_path / "asked", tmp_path / "begun"
    slurm = Slurm(tmp_path)
    put_program(slurm.programs, "srun", f"touch {begun}\nexec sleep 50")
    put_program(slurm.programs, "scontrol", f"touch {asked}\nsleep 0.5\necho JobState=COMPLETING")
    job = subprocess.Popen(
        ["bash", str(CLUSTER / "slurm.sbatch")],
        env=environment(slurm.programs, SLURM_JOB_ID=7, SLURM_JOB_NODELIST="n1", SLURM_SUBMIT_DIR=tmp_path),
        stdout=subprocess.DEVNULL,
    )
    runs.wait_until(asked.exists)
    job.send_signal(number)
    assert job.wait(timeout=20) == 128 + number
    assert not begun.exists()


# --- PBS ---


class Pbs:
    """A job of pbs.sh in a project whose run notes what it is started with and then does `run`."""

    def __init__(self, folder: Path, run: str, walltime: str | None = "04:00:00") -> None:
        self.folder, self.output, self.programs = folder, folder / "run", folder / "bin"
        self.started, self.submitted = folder / "started", folder / "submitted"
        (folder / "nodes").write_text("n1\nn1\nn2\nn2\n")
        told = "exit 1" if walltime is None else f"cat <<'END'\n{QSTAT.format(walltime=walltime)}END"
        put_program(self.programs, "qstat", told)
        put_program(self.programs, "qsub", f'printf "%s\\n" "$@" >{self.submitted}')
        (folder / "project").mkdir()
        note = f'shift\nprintf "%s\\n" "$PYTHON" "$REMOTE" "$@" >{self.started}.part\n'
        note += f"mv {self.started}.part {self.started}\n"
        put_program(folder / "project" / "cluster", "run_by_hand.sh", note + run)

    def start(self, **given: object) -> subprocess.Popen[str]:
        place = {"PBS_JOBID": "123.server", "PBS_JOBNAME": "rl-cluster", "PBS_O_QUEUE": "long"}
        place |= {"PBS_NODEFILE": str(self.folder / "nodes"), "PBS_O_WORKDIR": str(self.folder / "project")}
        return subprocess.Popen(
            ["bash", str(CLUSTER / "pbs.sh")],
            env=environment(self.programs, **place, **given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: int, **given: object) -> str:
        """Run the job to its end; returns what it printed on stderr."""
        job = self.start(**given)
        _, errors = job.communicate(timeout=60)
        assert job.returncode == code, errors
        return errors


def test_a_pbs_job_at_its_limit_is_submitted_again_with_all_that_it_was_given(tmp_path: Path) -> None:
    pbs = Pbs(tmp_path, 'exec sleep "$LONG"', walltime="00:00:08")
    given = {
        "OUTPUT": pbs.output, "PYTHON": "/opt/my python", "REMOTE": "rsh -x", "MARGIN": 2,
        "SCRIPT": "train.py", "FLAGS": "--algorithm a2c --set model.mlp_sizes=[8,8] --env *",
    }  # fmt: skip
    pbs.run(143, LONG=30, **given)
    settings = pbs.output / "pbs_settings"
    assert pbs.submitted.read_text().splitlines() == [
        *("-l", "select=2:ncpus=8:mem=4gb", "-l", "place=free", "-l", "walltime=00:00:08"),
        *("-A", "lab", "-q", "long", "-N", "rl-cluster", "-v", f"SETTINGS={settings}", "cluster/pbs.sh"),
    ]
    started = [
        *("/opt/my python", "rsh -x", "train.py", "--output-dir", str(pbs.output)),
        *("--resume", "auto", "--algorithm", "a2c", "--set", "model.mlp_sizes=[8,8]", "--env", "*"),
    ]
    assert pbs.started.read_text().splitlines() == started

    for path in (pbs.submitted, pbs.started):
        path.unlink()
    pbs.run(0, LONG=0, SETTINGS=settings)
    assert pbs.started.read_text().splitlines() == started
    assert not pbs.submitted.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_pbs_job_that_is_told_to_stop_leaves_it_to_pbs_whether_it_comes_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Else a deleted job would come back, and a preempted one twice."""
    pbs = Pbs(tmp_path, "exec sleep 30")
    job = pbs.start()
    deadline = time.monotonic() + 20
    while not pbs.started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(number)
    job.communicate(timeout=20)
    assert job.returncode == 143
    assert not pbs.submitted.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_pbs_job_that_is_told_to_stop_before_its_run_begins_begins_none(
    tmp_path: Path, number: signal.Signals
) -> None:
    asked = tmp_path / "asked"
    pbs = Pbs(tmp_path, "exec sleep 50")
    put_program(pbs.programs, "qstat", f"touch {asked}\nsleep 0.5")
    job = pbs.start(PBS_WALLTIME=3600)
    runs.wait_until(asked.exists)
    job.send_signal(number)
    job.communicate(timeout=20)
    assert job.returncode == 143
    assert not pbs.submitted.exists() and not pbs.started.exists()


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_a_pbs_job_that_ends_before_its_limit_is_not_submitted_again(tmp_path: Path, code: int) -> None:
    pbs = Pbs(tmp_path, f"exit {code}")
    pbs.run(code)
    assert not pbs.submitted.exists()


@pytest.mark.parametrize(
    ("walltime", "given", "limit"),
    [
        ("04:00:00", {}, "14280"),
        ("1:02:03:04", {}, str(86_400 + 2 * 3600 + 3 * 60 + 4 - 120)),
        ("7200", {"MARGIN": 600}, "6600"),
        ("04:00:00", {"PBS_WALLTIME": 3600}, "3480"),
        ("00:02:00", {}, "60"),  # too short for the margin
        (None, {}, "infinity"),
    ],
)
def test_the_limit_of_a_pbs_job_is_what_pbs_says(
    tmp_path: Path, walltime: str | None, given: dict[str, object], limit: str
) -> None:
    pbs = Pbs(tmp_path, "exit 0", walltime)
    put_program(pbs.programs, "timeout", f'echo "$3" >{tmp_path}/limit')
    errors = pbs.run(0, **given)
    assert (tmp_path / "limit").read_text().strip() == limit
    assert ("does not stop before it" in errors) == (limit == "infinity")


# --- By hand ---


def test_nodes_that_wait_for_one_that_was_refused_are_ended(tmp_path: Path) -> None:
    python = put_program(tmp_path / "bin", "python", "exit 2")
    remote = put_program(tmp_path / "bin", "remote", "exec sleep 50")
    (tmp_path / "hosts").write_text("n1\nn2\n")
    ended = subprocess.run(
        ["bash", str(CLUSTER / "run_by_hand.sh"), str(tmp_path / "hosts"), "train_ppo_distributed.py"],
        env=environment(tmp_path / "bin", PYTHON=python, REMOTE=remote),
        capture_output=True,  # read until the last process that was started has ended
        timeout=20,
        check=False,
    )
    assert ended.returncode == 2
