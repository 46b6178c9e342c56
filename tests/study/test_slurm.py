"""A study as a SLURM job array: the submitted jobs and the commands of the array's tasks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcb.cli.benchmark import main
from rlcb.errors import UsageError
from rlcb.paths import PROJECT
from rlcb.study.folder import open_study
from rlcb.study.slurm import array_ranges, step_command, time_limit_minutes
from tests.study.test_study import evaluation, put, record_for, study

SCRIPT = PROJECT / "cluster" / "slurm_array.sbatch"
STUDY = ("--algorithms", "ppo", "a2c", "--duration", "0.5", "--evaluate-episodes", "100")


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake sbatch on PATH that records its arguments, one line per job, and numbers jobs from 71."""
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = tmp_path / "calls"
    (programs / "sbatch").write_text(
        f"#!{sys.executable}\nimport json, os, sys\nfrom pathlib import Path\n"
        f"calls = Path({str(calls)!r})\n"
        "number = 71 + (len(calls.read_text().splitlines()) if calls.exists() else 0)\n"
        "with calls.open('a') as file:\n"
        "    file.write(json.dumps([os.environ['PYTHON'], *sys.argv[1:]]) + '\\n')\n"
        "print(f'{number};cluster')\n"
    )
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return calls


def calls_in(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("numbers", "text"), [([1], "1"), ([1, 2, 3, 5], "1-3,5"), ([7, 2, 9, 8], "2,7-9"), ([1, 3], "1,3")]
)
def test_array_numbers_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert array_ranges(numbers) == text


def test_the_time_limit_includes_a_margin() -> None:
    assert time_limit_minutes(3600) * 60 > 3600 * 1.25 + 599


def test_a_study_is_submitted_as_a_job_array_followed_by_a_comparison_job(
    tmp_path: Path, sbatch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "my study"
    options = ("--launcher", "slurm", "--slurm-option", "partition=cpu", "--slurm-option", "account=my group")
    assert main([*STUDY, "--output-dir", str(root), *options]) == 0
    array, after = calls_in(sbatch)
    assert array[0] == sys.executable
    assert "--array=1-4" in array
    assert array[-2:] == [str(SCRIPT), str(root)]
    for call in (array, after):
        assert {"--partition=cpu", "--account=my group", f"--chdir={PROJECT}"} <= {*call}
    assert "--dependency=afterany:71" in after
    assert after[-1].startswith("--wrap=") and "--compare-only" in after[-1] and f"'{root}'" in after[-1]
    assert (root / "study.yaml").exists() and (root / "slurm").is_dir()
    assert "Job array 71" in capsys.readouterr().out


def test_only_the_remaining_runs_are_submitted(tmp_path: Path, sbatch: Path) -> None:
    root = tmp_path / "s"
    runs = study(algorithms=["ppo", "a2c"]).runs
    arguments = [*STUDY, "--output-dir", str(root), "--launcher", "slurm"]
    assert main(arguments) == 0
    put(root / runs[0].name, record_for(runs[0]), evaluation())
    put(root / runs[1].name, record_for(runs[1], "failed"))
    assert main(arguments) == 0
    assert main([*arguments, "--retry-failed"]) == 0
    arrays = [next(each for each in call if "--array" in each) for call in calls_in(sbatch)[::2]]
    assert arrays == ["--array=1-4", "--array=3-4", "--array=2-4"]
    assert calls_in(sbatch)[4][-1] == "--retry-failed"


def test_a_dry_run_prints_the_command_and_needs_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main([*STUDY, "--output-dir", str(tmp_path / "s"), "--launcher", "slurm", "--dry-run"]) == 0
    assert "sbatch --parsable --array=1-4" in capsys.readouterr().out
    assert not (tmp_path / "s").exists()


def test_missing_sbatch_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main([*STUDY, "--output-dir", str(tmp_path / "s"), "--launcher", "slurm"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert "sbatch was not found" in line
    assert not (tmp_path / "s").exists()


def test_the_error_message_of_sbatch_is_shown(
    tmp_path: Path, sbatch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = sbatch.with_name("bin") / "sbatch"
    program.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    assert main([*STUDY, "--output-dir", str(tmp_path / "s"), "--launcher", "slurm"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "invalid partition specified: gpu" in line


def task(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        cwd=folder,
        env={**plain, "PYTHON": "echo", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_task_runs_the_run_with_its_number() -> None:
    done = task(PROJECT, "my study", "--retry-failed", SLURM_ARRAY_TASK_ID="3")
    assert done.stdout.strip() == "run_benchmark.py --output-dir my study --cell 3 --retry-failed"
    assert done.returncode == 0


def test_the_job_script_prints_its_usage(tmp_path: Path) -> None:
    for done in (task(PROJECT, "my_study"), task(PROJECT, SLURM_ARRAY_TASK_ID="3")):
        assert done.returncode == 2
        assert "usage: sbatch --array" in done.stderr
    done = task(tmp_path, "my_study", SLURM_ARRAY_TASK_ID="3")
    assert done.returncode == 2
    assert "project's folder" in done.stderr


@pytest.mark.parametrize(("run", "said"), [("0", "1 to 4"), ("5", "1 to 4")])
def test_a_run_number_outside_the_study_is_rejected(
    tmp_path: Path, sbatch: Path, capsys: pytest.CaptureFixture[str], run: str, said: str
) -> None:
    root = str(tmp_path / "s")
    assert main([*STUDY, "--output-dir", root, "--cell", run]) == 2
    assert "holds no study" in capsys.readouterr().err
    assert main([*STUDY, "--output-dir", root, "--launcher", "slurm"]) == 0
    capsys.readouterr()
    assert main(["--output-dir", root, "--cell", run]) == 2
    assert said in capsys.readouterr().err


NODES = (*STUDY, "--modes", "distributed", "--nodes", "1", "2", "--seeds", "7")


def test_runs_on_more_nodes_have_a_job_array_of_their_own(
    tmp_path: Path, sbatch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "s"
    assert main([*NODES, "--output-dir", str(root), "--launcher", "slurm"]) == 0
    one, two, after = calls_in(sbatch)
    assert "--array=1,3" in one and "--nodes=1" not in one
    assert {"--array=2,4", "--nodes=2", "--ntasks=2"} <= {*two}
    assert "--dependency=afterany:71:72" in after
    printed = capsys.readouterr().out
    assert "ppo_distributed_2nodes_coinrun_seed7" in (root / "study.yaml").read_text()
    assert "Job array 72: 2 runs on 2 nodes each" in printed
    assert "as many environments on any number (strong scaling)" in " ".join(printed.split())


def test_a_run_on_several_nodes_starts_with_srun_within_a_job_of_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    assert step_command(None) == step_command(1) == []
    with pytest.raises(UsageError, match="--launcher slurm"):
        step_command(2)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    assert step_command(None) == []
    assert {"srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=8"} <= {*step_command(2)}
    with pytest.raises(UsageError, match="needs 4 nodes, and this SLURM job has 2"):
        step_command(4)


def test_one_machine_refuses_runs_on_several_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NODES, "--output-dir", str(tmp_path / "s")]) == 2
    assert "--nodes 2: this machine is one node" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--modes", "distributed"), "needs the numbers of machines"),
        (("--modes", "parallel", "--nodes", "2"), "nodes: only distributed runs have it"),
        (("--modes", "parallel", "--scaling", "weak"), "scaling: only distributed runs have it"),
        (("--modes", "distributed", "--nodes", "0"), "nodes"),
        (("--modes", "distributed", "--nodes", "2", "2"), "nodes"),
        (("--modes", "distributed", "--nodes", "2", "--set", "cluster.num_nodes=4"), "use --nodes"),
        (
            ("--modes", "distributed", "--nodes", "2", "--until-decided", "--max-hours", "9"),
            "runs on one machine",
        ),
    ],
)
def test_contradictory_nodes_are_refused(
    flags: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*STUDY, *flags, "--output-dir", str(tmp_path / "s"), "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_weak_scaling_multiplies_environments_and_minibatches(tmp_path: Path) -> None:
    sizes = {}
    for scaling in ("strong", "weak"):
        settings = {"env.num_envs": 12, "ppo:training.batch_size": 256}
        given = {"algorithms": ["ppo", "a2c"], "modes": ["distributed"], "nodes": [1, 3], "set": settings}
        folder = open_study(tmp_path / scaling, {**given, "scaling": scaling})
        configs = [folder.configs[run.name] for run in folder.study.runs]
        sizes[scaling] = [(c.cluster.num_nodes, c.env.num_envs, c.training.batch_size) for c in configs]
        flags = folder.training_flags(folder.study.runs[1], folder.state(folder.study.runs[1]))
        assert "--set=cluster.num_nodes=3" in flags
        assert ("--set=training.batch_size=768" in flags) == (scaling == "weak")
    assert sizes["strong"] == [(1, 12, 256), (3, 12, 256), (1, 12, None), (3, 12, None)]
    assert sizes["weak"] == [(1, 12, 256), (3, 36, 768), (1, 12, None), (3, 36, None)]
