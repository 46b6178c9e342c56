"""What a process may use of the machine: quotas, affinity, threads, allocator."""

from __future__ import annotations

import os
import platform
import queue
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from rlcb import cpu

PROJECT = Path(__file__).resolve().parent.parent
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a facility of Linux")


def in_new_process(code: str, **environment: str) -> str:
    """What Python code prints in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# --- Quotas of control groups ---


def quota(root: Path, own: str, files: dict[str, str]) -> float | None:
    """The quota read from made-up files."""
    write_groups(root, own, files)
    return cpu._cgroup_cpu_quota(root / "cgroup", root / "own")


def write_groups(root: Path, own: str, files: dict[str, str]) -> None:
    """Made-up files: `own` is /proc/self/cgroup, `files` lie under /sys/fs/cgroup."""
    for name, content in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "own").write_text(own)


V1 = "12:pids:/job\n5:cpuset:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/job\n", {"job/cpu.max": "400000 100000\n"}, 4.0),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "200000 100000\n"}, 0.5),
        ("0::/a\n", {"other/cpu.max": "100000 100000\n"}, None),
        ("0::/\n", {}, None),
        ("0::/gone/from/here\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/../..\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        (V1, {"cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 2.5),
        (V1, {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 2.0),
        (
            V1,
            {
                "cpu/cpu.cfs_quota_us": "800000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "cpu/job/cpu.cfs_quota_us": "300000\n",
                "cpu/job/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            "4:cpuset:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        ("", {"cpu.max": "100000 100000\n"}, None),
    ],
    ids=[
        "v2",
        "v2 max",
        "v2 own group",
        "v2 limit of the parent",
        "v2 parent below own",
        "v2 own below parent",
        "v2 only others limited",
        "v2 no files",
        "v2 path of another namespace",
        "v2 path above the root",
        "v2 unreadable",
        "v1",
        "v1 unlimited",
        "v1 limit of the parent",
        "v1 smallest of both",
        "v1 other controller",
        "no group",
    ],
)
def test_cpu_quota_is_the_smallest_on_the_way_to_the_root(
    own: str, files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    assert quota(tmp_path, own, files) == expected


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu._cgroup_cpu_quota(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/job\n", {"job/memory.max": "1000000\n"}, 1_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "3000000\n"}, 3_000_000),
        ("3:memory:/job\n", {"memory/job/memory.limit_in_bytes": "2000000\n"}, 2_000_000),
        ("3:memory:/job\n", {"memory/job/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, None),
        ("0::/job\n", {"job/memory.max": "max\n"}, None),
        ("0::/job\n", {}, None),
    ],
    ids=["v2", "v2 limit of the parent", "v1", "v1 unlimited", "v2 max", "v2 no files"],
)
def test_usable_memory_is_the_machines_or_what_a_control_group_allows(
    own: str, files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    write_groups(tmp_path, own, files)
    usable = cpu.usable_memory(tmp_path / "cgroup", tmp_path / "own")
    assert usable == (expected or psutil.virtual_memory().total)


@pytest.mark.parametrize(
    ("limit", "cores"), [(None, 64), (0.2, 1), (1.0, 1), (1.5, 2), (3.0, 3), (100.0, 64)]
)
def test_usable_cores_are_cut_by_the_quota_but_never_below_one(
    limit: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "allowed_cpus", lambda: set(range(10_000, 10_064)))  # no hyper-threads known
    monkeypatch.setattr(cpu, "_cgroup_cpu_quota", lambda: limit)
    assert cpu.usable_cores() == cores


@needs_linux
def test_usable_cores_respect_the_affinity_of_the_process() -> None:
    code = (
        "import os; from rlcb.cpu import usable_cores; before = usable_cores();"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(before, usable_cores())"
    )
    before, after = map(int, in_new_process(code).split())
    assert after == 1
    assert 1 <= before <= len(os.sched_getaffinity(0))


# --- Threads ---


@pytest.mark.parametrize(
    ("requested", "variable", "expected"),
    [
        (3, None, 3),
        (3, "5", 3),
        (None, "5", 5),
        (None, None, 7),
        (None, "", 7),
        (None, "0", 7),
        (None, "-2", 7),
        (None, "many", 7),
    ],
)
def test_threads_are_those_requested_else_omp_num_threads_else_the_cores(
    requested: int | None, variable: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert cpu.choose_threads(requested) == expected


def test_thread_settings_reach_torch_and_numpys_libraries() -> None:
    code = (
        "from rlcb import cpu; cpu.set_thread_environment(3); cpu.set_torch_threads(3);"
        "import os, torch;"
        "print(torch.get_num_threads(), *(os.environ[name] for name in cpu.THREAD_VARIABLES))"
    )
    assert in_new_process(code, OMP_NUM_THREADS="1").split() == ["3"] * 4


def test_importing_it_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, rlcb.cpu; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    assert in_new_process(code) == "[]"


# --- Memory ---


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt's parameters are glibc's")
def test_glibc_keeps_freed_memory_once_the_allocator_is_tuned() -> None:
    """Blocks of 90 MB, which glibc by default maps one by one and gives back, are reused: no page faults."""
    measure = (
        "import ctypes, resource; from rlcb.cpu import tune_allocator\n"
        "{setting}\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        "libc.malloc.argtypes = [ctypes.c_size_t]; libc.free.argtypes = [ctypes.c_void_p]\n"
        "def cycle():\n"
        "    block = libc.malloc(90 << 20); ctypes.memset(block, 1, 90 << 20); libc.free(block)\n"
        "cycle(); before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(5): cycle()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    as_it_comes = int(in_new_process(measure.format(setting="")))
    tuned = int(in_new_process(measure.format(setting="assert tune_allocator() is True")))
    assert as_it_comes >= 50
    assert tuned < as_it_comes / 10


def test_tuning_does_nothing_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cpu.tune_allocator() is False


@needs_linux
def test_threads_are_calmed_by_name_and_a_refusal_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    done, number = threading.Event(), queue.Queue[int]()

    def work() -> None:
        Path("/proc/thread-self/comm").write_text("calm_me")
        number.put(threading.get_native_id())
        done.wait(30)

    threading.Thread(target=work, daemon=True).start()
    try:
        thread = number.get(timeout=30)
        with monkeypatch.context() as patch:
            patch.setattr(os, "sched_setscheduler", refuse)
            assert cpu.calm_threads("calm_me") == 0
        assert os.sched_getscheduler(thread) == os.SCHED_OTHER
        assert cpu.calm_threads("calm_me") == 1
        assert os.sched_getscheduler(thread) == os.SCHED_BATCH
        assert os.sched_getscheduler(threading.main_thread().native_id or 0) == os.SCHED_OTHER
    finally:
        done.set()


def refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_the_suggested_microbatch_is_a_power_of_two_that_never_grows_with_the_activation() -> None:
    sizes = [0, 1, 100, 2048, *(2**k + offset for k in range(12, 26) for offset in (-1, 0, 1)), 10**12]
    suggestions = [cpu.suggested_microbatch(size) for size in sorted(sizes)]
    assert suggestions == sorted(suggestions, reverse=True)
    assert suggestions[0] == 256 and suggestions[-1] == 32
    assert all(each & (each - 1) == 0 and type(each) is int for each in suggestions)
    assert len(set(suggestions)) > 2


# --- The description ---


def test_the_machine_is_described_in_plain_values() -> None:
    machine = cpu.describe_machine()
    assert isinstance(machine["cpu_model"], str) and machine["cpu_model"]
    assert 1 <= machine["usable_cores"] <= machine["logical_cpus"]
    assert machine["ram_gb"] > 0.1
    plain = (str, int, float, type(None))
    assert all(isinstance(value, plain) for value in machine.values())


def test_bfloat16_is_there_exactly_if_the_system_lists_it() -> None:
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    assert cpu.has_bfloat16() == any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))
