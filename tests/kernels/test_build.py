"""Building the kernels: compilers that are missing or fail, kernels that crash or are wrong, the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcb.config.config import Config
from rlcb.kernels import build
from rlcb.kernels.build import (
    KernelsUnavailable,
    compiled_and_checked,
    find_compiler,
    library_path,
    verdict_path,
)
from rlcb.kernels.library import Library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for kernels."""
    monkeypatch.setenv("RLCB_KERNELS", str(tmp_path / "cache"))
    return tmp_path / "cache"


def use_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make the build use a shell script as its compiler."""
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\necho called >>'{folder}/calls'\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def patched(change: str) -> str:
    """Return a compiler that changes the source by a command of sed, and optimises little, to be fast."""
    return (
        f'for source; do :; done; copy="$(dirname "$0")/patched.cpp"; sed "{change}" "$source" >"$copy"\n'
        'cmp -s "$copy" "$source" && { echo "error: nothing was changed" >&2; exit 1; }\n'
        'flags=""; for each; do [ "$each" = "$source" ] || flags="$flags $each"; done\n'
        'exec c++ $flags -O1 "$copy"'
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("s/o\\[1\\] = b + a/o[1] = b - a/", "convolution 3x3 16 -> 16, 32 x 32, padding 1: relative error"),
        ("s/largest = smaller/if (channels == 16) __builtin_trap(); largest = smaller/", "exit code -"),
        ("d", "undefined symbol: rlcb_lanes"),  # an empty file
    ],
)
def test_kernels_that_are_wrong_or_crash_are_never_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, reason: str
) -> None:
    use_compiler(tmp_path, monkeypatch, patched(change))
    for _ in range(2):  # the second time from the cache
        with pytest.raises(KernelsUnavailable, match="the check of the kernels failed: ") as failure:
            compiled_and_checked()
        assert reason in str(failure.value)
        assert "\n" not in str(failure.value)
    assert (tmp_path / "calls").read_text() == "called\n"


def test_kernels_that_failed_are_checked_again_by_another_version_and_by_the_command(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        checks.append(command)
        raise subprocess.TimeoutExpired(command, 1)

    checks: list[list[str]] = []
    library = library_path()
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(build.subprocess, "run", busy)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(KernelsUnavailable, match=r"took more than .* \(python -m rlcb.kernels.build"):
            compiled_and_checked()
    assert len(checks) == 1
    assert build.main() == 1
    assert len(checks) == 2
    monkeypatch.setattr(build, "verdict_path", lambda library: library.with_suffix(".later.checked"))
    with pytest.raises(KernelsUnavailable, match="took more than"):
        compiled_and_checked()
    assert len(checks) == 3


def test_a_compiler_that_fails_is_the_reason_and_is_tried_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(tmp_path, monkeypatch, "echo 'x.cpp:1: error: no such instruction' >&2; exit 1")
    for _ in range(2):
        with pytest.raises(KernelsUnavailable, match=r"cannot compile the kernels: x\.cpp:1: error"):
            compiled_and_checked()
    assert (tmp_path / "calls").read_text() == "called\n" * 2
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLCB_KERNELS", str(tmp_path / "file" / "cache"))
    with pytest.raises(KernelsUnavailable, match="cache: Not a directory"):
        compiled_and_checked()


def test_the_system_s_compiler_comes_first_then_the_package_ziglang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: object())
    assert find_compiler() == [sys.executable, "-m", "ziglang", "c++"]
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KernelsUnavailable, match=r"no C\+\+ compiler"):
        find_compiler()
    (tmp_path / "g++").touch(0o755)
    assert find_compiler() == ["g++"]


def test_each_type_of_processor_has_a_library_of_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = library_path()
    monkeypatch.setattr(build, "processor", lambda: "another")
    assert library_path() != here
    assert library_path().parent == here.parent == cache


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_processes_that_start_together_compile_and_check_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(tmp_path, monkeypatch, 'exec c++ "$@"')
    code = "from rlcb.kernels.build import compiled_and_checked; print(compiled_and_checked())"
    environment = {**os.environ, "PYTHONPATH": str(build.PACKAGES)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    library = library_path()
    assert {process.communicate(timeout=100)[0].strip() for process in both} == {str(library)}
    assert compiled_and_checked() == library
    assert Library(library).lanes in (4, 8, 16)
    assert (tmp_path / "calls").read_text() == "called\n"
    names = {path.name for path in cache.iterdir()}
    assert names == {path.name for path in (library, library.with_suffix(".lock"), verdict_path(library))}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"hardware": {"kernels": "torch"}}, False),
        ({"model": {"precision": "bfloat16"}}, False),
        ({"env": {"id": "CartPole-v1"}}, False),
    ],
)
def test_a_run_builds_the_kernels_before_it_starts_processes(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], expected: bool
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(build, "compiled_and_checked", lambda: calls.append(True))
    build.build_ahead(Config.model_validate({"algorithm": "ppo", "mode": "sequential", **settings}))
    assert bool(calls) == expected
