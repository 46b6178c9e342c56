"""A real SLURM of two nodes on this machine, in a scratch folder, taken down again at the end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.cluster_runs import free_port, own_address, require_real

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged")
NODES = ("rlcb-n1", "rlcb-n2")
HOSTS = Path("/etc/hosts")
MUNGE = Path("/run/munge/munge.socket.2")

CONFIGURATION = """\
ClusterName=rlcb
SlurmctldHost={host}({address})
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdParameters=config_overrides
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/controller.pid
SlurmdLogFile={folder}/%n.log
SlurmctldLogFile={folder}/controller.log
{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    if os.geteuid() != 0:
        return "a SLURM of one's own needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"SLURM needs {', '.join(absent)} (slurmctld, slurmd, slurm-client, munge)" if absent else None


class Slurm:
    """Two nodes of two CPUs each, whatever this machine has. Commands are given the configuration through the
    environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def call(self, *words: object, **environment: object) -> str:
        """Run one of SLURM's commands and return what it prints."""
        surroundings = {**self.environment, **{key: str(value) for key, value in environment.items()}}
        command = [str(word) for word in words]
        result = subprocess.run(
            command, env=surroundings, capture_output=True, text=True, timeout=30, check=False
        )
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout

    def job_state(self, job: str) -> tuple[str, int]:
        """JobState, and how often the job was queued again."""
        text = self.call("scontrol", "show", "job", job)
        state, restarts = re.search(r"JobState=(\S+)", text), re.search(r"Restarts=(\d+)", text)
        assert state and restarts, text
        return state.group(1), int(restarts.group(1))

    def wait_for_state(self, job: str, wanted: tuple[str, int], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while (state := self.job_state(job)) != wanted:
            if time.monotonic() > deadline:
                logs = "".join(path.read_text()[-3000:] for path in self.folder.glob("job-*.out"))
                raise AssertionError(f"job {job} is {state}, not {wanted}, after {timeout} s\n{logs}")
            time.sleep(0.5)

    def start_now(self, job: str, timeout: float = 60) -> None:
        """Have a job that is queued again start without most of the pause that SLURM makes before it.

        Nodes refuse what is issued to a job in the very second in which they were told to end it.
        """
        time.sleep(3)
        deadline = time.monotonic() + timeout
        while self.job_state(job)[0] == "PENDING" and time.monotonic() < deadline:
            self.call("scontrol", "update", f"JobId={job}", "StartTime=now")
            time.sleep(2)

    def wait_for_nodes(self, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while self.call("sinfo", "-h", "-N", "-o", "%t").split() != ["idle"] * len(NODES):
            if time.monotonic() > deadline:
                logs = "".join(path.read_text()[-1500:] for path in self.folder.glob("*.log"))
                raise AssertionError(f"the nodes are not idle after {timeout} s\n{logs}")
            time.sleep(0.5)


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[Slurm]:
    """A running SLURM; every daemon that this starts is ended, and /etc/hosts is as it was."""
    require_real(missing())
    address, host = own_address(), socket.gethostname().split(".")[0]
    line = f"{address} {' '.join(NODES)} # {os.getpid()}"
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr={address} Port={free_port()} CPUs=2 RealMemory=1000"
        for name in NODES
    ]
    (folder / "state").mkdir(parents=True)
    text = CONFIGURATION.format(
        host=host, address=address, controller_port=free_port(), folder=folder,
        nodes="\n".join(nodes), names=",".join(NODES),
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    slurm = Slurm(folder)
    munge = start_munge()
    try:
        HOSTS.write_text(f"{HOSTS.read_text().rstrip()}\n{line}\n")
        slurm.call("slurmctld", "-c")
        for name in NODES:
            slurm.call("slurmd", "-N", name)
        slurm.wait_for_nodes()
        yield slurm
    finally:
        HOSTS.write_text(HOSTS.read_text().replace(f"{line}\n", ""))
        for name in ("controller", *NODES):
            end_daemon(folder / f"{name}.pid")
        if munge is not None:
            munge.terminate()
            munge.wait(10)


def start_munge() -> subprocess.Popen[bytes] | None:
    """Start the daemon that SLURM's programs trust each other through, unless it is running."""
    if any(process.name() == "munged" for process in psutil.process_iter()):
        return None
    MUNGE.parent.mkdir(parents=True, exist_ok=True)
    shutil.chown(MUNGE.parent, "munge", "munge")
    process = subprocess.Popen(
        ["runuser", "-u", "munge", "--", "munged", "--force", "--foreground"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 15
    while not MUNGE.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return process


def end_daemon(pid_file: Path) -> None:
    with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
        process = psutil.Process(int(pid_file.read_text()))
        process.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(10)
            return
        process.kill()
