"""Run folders and logs of studies: missing and restarted runs, shared machines and other load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcb.comparison.fairness import differences
from rlcb.comparison.folders import find_runs, read_log
from rlcb.comparison.groups import group_runs
from rlcb.comparison.runs import load_run
from rlcb.errors import UsageError
from rlcb.study.folder import missing_runs
from tests.comparison_run_folders import line, write_run

MEMORY_ERROR = "MemoryError: no memory for 64 environments"


def begin_study(root: Path, **changes: Any) -> None:
    matrix = {"algorithms": ["ppo"], "modes": ["sequential"], "envs": ["coinrun"], "seeds": [1, 2, 3]}
    (root / "configs").mkdir(parents=True)
    (root / "configs/ppo_sequential.yaml").write_text("algorithm: ppo\n")
    (root / "study.yaml").write_text(yaml.safe_dump({**matrix, **changes}))


def add_run(root: Path, name: str, times: tuple[str, str] | None = None, **changes: Any) -> Path:
    """A run of a study; `times` are those of a day at which it began and ended."""
    record = {}
    if times is not None:
        record = dict(zip(("start_time", "end_time"), (f"2026-01-01T{each}:00+00:00" for each in times)))
    return write_run(root / name, line(1, 2, 10, 1), record=record, **changes)


def write_log(root: Path, *lines: dict[str, Any] | str) -> None:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    (root / "study_log.jsonl").write_text("\n".join(texts) + "\n")


def said(root: Path, names: str) -> dict[str, str]:
    """What was not equal between these runs, by aspect."""
    found: dict[str, str] = {}
    for each in differences(group_runs([(0, load_run(root / name)) for name in names])):
        found[each.aspect] = "; ".join(filter(None, [found.get(each.aspect), each.text]))
    return found


class TestMissingRuns:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A study with a run, one that died before it had a configuration, and one that has not begun."""
        root = tmp_path / "study"
        begin_study(root)
        add_run(root, "ppo_sequential_coinrun_seed1")
        (root / "ppo_sequential_coinrun_seed2").mkdir()
        (root / "ppo_sequential_coinrun_seed2/training.log").write_text(f"Traceback ...\n{MEMORY_ERROR}\n")
        (root / "comparison.csv").write_text("row\n")
        return root

    def expected(self, root: Path) -> list[tuple[Path, str]]:
        return [
            (
                root / "ppo_sequential_coinrun_seed2",
                f"the run ended before it wrote its configuration: {MEMORY_ERROR}",
            ),
            (root / "ppo_sequential_coinrun_seed3", "the run has not started"),
        ]

    def test_missing_runs_of_a_study_folder_are_named(self, root: Path) -> None:
        found = find_runs([str(root.parent)], missing_runs)
        assert found.runs == [(0, root / "ppo_sequential_coinrun_seed1")]
        assert [each[:2] for each in found.left_out] == self.expected(root)
        assert [each[2:6] for each in found.left_out] == [
            ("ppo", "sequential", "procgen-coinrun-v0", seed) for seed in (2, 3)
        ]

    def test_missing_runs_are_named_for_paths_that_a_shell_expanded(self, root: Path) -> None:
        found = find_runs([str(path) for path in sorted(root.iterdir())], missing_runs)
        assert [path for _, path in found.runs] == [root / "ppo_sequential_coinrun_seed1"]
        assert [each[:2] for each in found.left_out] == self.expected(root)

    def test_single_run_folders_have_no_missing_runs(self, root: Path) -> None:
        assert find_runs([str(root / "ppo_sequential_coinrun_seed1")], missing_runs).left_out == []

    def test_missing_runs_are_named_in_the_error_without_any_run(self, tmp_path: Path) -> None:
        begin_study(tmp_path / "study", seeds=[7])
        with pytest.raises(UsageError, match=r"no run in .*_seed7: the run has not started"):
            find_runs([str(tmp_path / "study")], missing_runs)

    def test_unreadable_study_is_reported(self, root: Path) -> None:
        (root / "study.yaml").write_text("algorithms: [dqn]\n")
        ((path, reason, *unknown),) = find_runs([str(root)], missing_runs).left_out
        assert (
            set(unknown) == {None}
            and path == root / "study.yaml"
            and reason.startswith("cannot list the study's missing runs: ")
        )


class TestLog:
    def test_busy_machine_before_a_run(self, tmp_path: Path) -> None:
        add_run(tmp_path, "a")
        write_log(tmp_path, {"event": "start", "run": "a", "load": {"cpu_percent": 35.0}})
        assert "a (35 % of the cores before the start)" in said(tmp_path, "a")["load"]

    def test_damaged_line_does_not_hide_the_others(self, tmp_path: Path) -> None:
        add_run(tmp_path, "a", seed=1)
        add_run(tmp_path, "b", seed=2)
        quiet, busy = (
            {"event": "start", "run": name, "load": {"cpu_percent": n}} for name, n in (("a", 1), ("b", 35))
        )
        write_log(tmp_path, quiet, '{"event": "sta', "[1]", '"text"', busy)
        assert said(tmp_path, "ab")["load"] == (
            "the machine was busy with other work during b (35 % of the cores before the start)"
        )

    def test_run_restarted_after_completion(self, tmp_path: Path) -> None:
        for seed, name in enumerate("abc"):
            add_run(tmp_path, name, seed=seed)
        write_log(
            tmp_path,
            *({"event": "start", "run": name, "resumed": False} for name in "abc"),
            {"event": "end", "run": "a", "status": "completed"},
            {"event": "end", "run": "b", "status": "interrupted"},
            {"event": "end", "run": "c", "status": "failed"},
            {"event": "start", "run": "a", "resumed": False},
            {"event": "start", "run": "b", "resumed": True},
            {"event": "start", "run": "c", "resumed": False},
            *({"event": "end", "run": name, "status": "completed"} for name in "abc"),
        )
        text = "restarted after completion, so their first results are gone: a"
        assert said(tmp_path, "abc") == {"runs marked": text}

    def test_last_machine_and_no_log(self, tmp_path: Path) -> None:
        write_log(
            tmp_path,
            {"event": "start", "run": "a", "host": "node1"},
            {"event": "start", "run": "a", "host": "node2"},
            {"event": "evaluated", "run": "a", "host": "node3"},
        )
        assert read_log(tmp_path / "study_log.jsonl")["a"].host == "node2"
        assert read_log(tmp_path / "nothing.jsonl") == {}


class TestOverlap:
    def test_every_pair_is_found(self, tmp_path: Path) -> None:
        times = {
            "a": ("00:00", "03:00"),
            "b": ("00:10", "00:20"),
            "c": ("01:00", "02:00"),
            "d": ("02:30", "04:00"),
        }
        for seed, (name, span) in enumerate(times.items()):
            add_run(tmp_path, name, span, seed=seed)
        assert said(tmp_path, "abc")["load"] == (
            "runs overlapped in time, and slowed each other if they shared a machine: a and b; a and c"
        )
        assert said(tmp_path, "bcd") == {}
        add_run(tmp_path, "e", ("00:00", "04:00"), seed=9)
        # a with b, c, d and e, and e with b, c, d as well.
        assert said(tmp_path, "abcde")["load"].endswith(" and 4 more pairs")

    @pytest.mark.parametrize(("hosts", "overlapped"), [(("n1", "n1"), True), (("n1", "n2"), False)])
    def test_overlap_counts_on_one_machine_only(
        self, tmp_path: Path, hosts: tuple[str, str], overlapped: bool
    ) -> None:
        for seed, name in enumerate("ab"):
            add_run(tmp_path, name, ("00:00", "01:00"), seed=seed)
        write_log(tmp_path, *({"event": "start", "run": n, "host": h} for n, h in zip("ab", hosts)))
        text = "runs overlapped in time on one machine, and slowed each other: a and b"
        assert said(tmp_path, "ab") == ({"load": text} if overlapped else {})

    def test_overlap_does_not_count_on_different_cpu_models(self, tmp_path: Path) -> None:
        for seed, name in enumerate("ab"):
            write_run(
                tmp_path / name,
                line(1, 2, 10, 1),
                seed=seed,
                record={
                    "start_time": "2026-01-01T00:00:00+00:00",
                    "end_time": "2026-01-01T01:00:00+00:00",
                    "hardware.cpu_model": f"CPU {name}",
                },
            )
        assert "load" not in said(tmp_path, "ab")
