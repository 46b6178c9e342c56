"""Two hosts, each a network namespace, joined by a shaped link: it is measured, used by scripts, and cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cluster_runs, runs
from tests.cluster_runs import IMPALA, PPO, TINY, Nodes, fault, two_hosts

pytestmark = pytest.mark.timeout(300)

TIMEOUT = 15


@pytest.mark.parametrize(
    ("script", "prefix", "processes"),
    [
        (PPO, "ppo_distributed_", ("--num-workers", 1)),
        (
            IMPALA,
            "impala_distributed_",
            ("--batch-size", 32, "--num-actors", 1, "--set", "impala.num_learners=1"),
        ),
    ],
)
def test_a_pulled_cable_ends_both_nodes_in_time_and_leaves_the_last_checkpoint_whole(
    tmp_path: Path, script: str, prefix: str, processes: tuple[object, ...]
) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    flags = (*TINY, *processes, *fault(delay=0.002), "--set", f"cluster.timeout_seconds={TIMEOUT}")
    flags += (
        "--batch-size",
        32,
        "--set",
        "logging.checkpoint_interval=5",
        "--set",
        "logging.snapshot_seconds=0",
    )
    with two_hosts() as (names, address), Nodes(address, names) as nodes:
        nodes.start(script, *flags, "--output-dir", folder)
        runs.wait_for_rows(folder, 12)
        cluster_runs.cut(names)
        (code, _, errors), (other_code, _, other_errors) = nodes.wait(60)
    assert (code, other_code) == (1, 1), errors + other_errors
    assert "rank 1 on " in errors.splitlines()[-1], errors
    assert "rank 0 on " in other_errors.splitlines()[-1], other_errors
    assert runs.record(folder)["status"] == "failed"
    newest = max(folder.glob("checkpoints/*_step_*.pt"), key=lambda path: int(path.stem.split("_")[-1]))
    counters = runs.checkpoint(folder, newest.stem.removeprefix(prefix))["counters"]
    assert counters["timesteps"] == runs.rows(folder)[-1]["timesteps"] > 0
    cluster_runs.assert_nothing_left(folder)
    assert runs.left_in_shared_memory(before) == set()


def test_the_check_measures_the_link_and_every_rank() -> None:
    with two_hosts(rate="100mbit") as (names, address), Nodes(address, names) as nodes:
        for node, name in enumerate(names):
            words = (sys.executable, "-m", "rlcb.cli.check_cluster", "--megabytes", 4, *nodes.place)
            inside = ["ip", "netns", "exec", name, *map(str, words), "--node-rank", str(node)]
            nodes.processes.append(cluster_runs.start(inside))
        (code, output, errors), (other_code, *_) = nodes.wait(60)
    assert (code, other_code) == (0, 0), errors
    first, second = (
        line.split() for line in output.splitlines() if line.startswith("rank ") and " on " in line
    )
    assert first[:3] == ["rank", "0", "on"]
    assert second[4] == cluster_runs.LINK_B
    trip, bandwidth, offset = float(second[-5]), float(second[-3]), float(second[-2])
    assert 0 < trip < 100_000  # microseconds
    assert 0.5 < bandwidth < 60  # MB/s: 12.5 and what the shaper lets through at first, or less when busy
    assert abs(offset) < 100  # milliseconds, of one and the same clock
    assert "all-reduce over 2 ranks: " in output


def run_job(command: list[str], given: dict[str, object]) -> tuple[int, str]:
    """Run a job script; its exit code and all that it printed."""
    job = cluster_runs.start(command, **given)
    try:
        output, errors = job.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)  # which the script passes on
        raise AssertionError("".join(job.communicate(timeout=30))) from None
    return job.returncode, output + errors


@pytest.mark.slow
def test_the_pbs_script_stops_before_its_limit_submits_itself_and_goes_on(tmp_path: Path) -> None:
    """With the variables and the node file that PBS gives, and stand-ins for its commands: there is no PBS
    here."""
    folder, submitted, nodefile = tmp_path / "run", tmp_path / "submitted", tmp_path / "nodes"
    nodefile.write_text("10.98.7.1\n10.98.7.1\n10.98.7.2\n10.98.7.2\n")
    qsub, qstat, remote = (tmp_path / name for name in ("qsub", "qstat", "remote"))
    qsub.write_text(f'#!/bin/sh\necho "$@" > {submitted}\n')
    qstat.write_text('#!/bin/sh\necho "    Resource_List.walltime = 00:00:35"\n')
    flags = " ".join(map(str, (*TINY, *fault(delay=0.002), "--num-workers", 1)))
    place = {
        "PBS_JOBID": "123.server", "PBS_NODEFILE": nodefile, "PBS_O_WORKDIR": runs.PROJECT,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip
    given = {"OUTPUT": folder, "PYTHON": sys.executable, "REMOTE": remote, "MARGIN": 10, "FLAGS": flags}
    with two_hosts() as (names, _):
        command = ["ip", "netns", "exec", names[0], "bash", str(runs.PROJECT / "cluster" / "pbs.sh")]
        inside = f'ip netns exec {names[1]} sh -c "$*"'  # as ssh does on the host that it is given
        remote.write_text(f'#!/bin/sh\n[ "$1" = 10.98.7.2 ] || exit 3\nshift\nexec {inside}\n')
        for path in (qsub, qstat, remote):
            path.chmod(0o755)
        code, output = run_job(command, {**place, **given})  # 25 seconds
        assert code == 143, output
        first = runs.record(folder)
        assert first["status"] == "interrupted"
        settings = folder / "pbs_settings"
        assert submitted.read_text() == f"-l walltime=00:00:35 -v SETTINGS={settings} cluster/pbs.sh\n"
        cluster_runs.assert_nothing_left(folder)
        submitted.unlink()
        budget = first["total_timesteps"] + 320
        flags = f"{flags} --total-timesteps {budget}"
        code, output = run_job(
            command, {**place, "SETTINGS": settings, "FLAGS": flags, "PBS_WALLTIME": 14_400}
        )
    assert code == 0, output
    assert not submitted.exists()
    assert runs.record(folder)["total_timesteps"] == budget
    assert [row["update"] for row in runs.rows(folder)] == list(range(1, budget // 32 + 1))
    cluster_runs.assert_nothing_left(folder)
