"""setup.sh decides rightly without a network, and `make` lists its targets.

The interpreters on the PATH are made up for each test: shell scripts that answer as a Python of the wanted
version would, write down what pip and uv are asked to do, and leave the rest to the real Python.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NVIDIA_DEVICE = Path("/dev/nvidia0").exists()
PIP = "pip install -r requirements.txt -r requirements-dev.txt"
KERNELS = "kernels"
PACKAGE = "pip install --quiet --no-deps --no-build-isolation --editable ."

# The virtual environment that it makes is a real one, without pip, in which it stands in for the interpreter.
FAKE_PYTHON = r"""#!/bin/bash
HERE='{here}' FACTS='{facts}' HAS_VENV='{has_venv}'
real='{real}'
if [ -e "$(dirname "$0")/python.real" ]; then real="$(dirname "$0")/python.real"; fi
case "$*" in
    "-c "*python_implementation*) echo "$FACTS" ;;
    "-c import ensurepip, venv") [ "$HAS_VENV" = yes ]; exit ;;
    "-c import pip") exit 0 ;;
    "-m venv --clear "*)
        echo "venv" >>"$HERE/calls"
        "$real" -m venv --clear --without-pip "${{@: -1}}" || exit 1
        mv "${{@: -1}}/bin/python" "${{@: -1}}/bin/python.real"
        cp "$0" "${{@: -1}}/bin/python" ;;
    "-m pip config list") cat "$HERE/pip_config" ;;
    "-m pip install "*)
        echo "pip ${{*:3}}" >>"$HERE/calls"
        case "$*" in
            *--report*) while [ "$1" != --report ]; do shift; done; cp "$HERE/report.json" "$2" ;;
            *"uv>="*) cp "$HERE/uv" "$(dirname "$0")/uv" ;;
            *"-r requirements-dev.txt") if [ -e "$HERE/kill" ]; then rm "$HERE/kill"; kill -9 $PPID; fi
                                    [ ! -e "$HERE/fail" ] ;;
            *"--editable .") for site in "$(dirname "$0")"/../lib/python*/site-packages; do
                                 echo "$PWD/src" >"$site/rlcb.pth"
                             done ;;
        esac ;;
    "-m rlcb.kernels.build") echo kernels >>"$HERE/calls" ;;
    *ProcgenGym3Env*) echo verify >>"$HERE/calls"; cat "$HERE/verify"
                      if [ -e "$HERE/error" ]; then cat "$HERE/error" >&2; exit 1; fi ;;
    *) exec "$real" "$@" ;;
esac
"""

CPU_TORCH = {"name": "torch", "version": "2.13.0+cpu", "requires_dist": ["filelock", "sympy>=1.13.3"]}
CUDA_TORCH = {"name": "torch", "version": "2.13.0", "requires_dist": ["filelock", "nvidia-cudnn-cu13==9.20"]}


class Scene:
    """A copy of setup.sh in a folder of its own, with a PATH on which only made-up Pythons are found."""

    def __init__(self, folder: Path) -> None:
        self.here = folder
        self.project = folder / "project"
        self.bin = folder / "bin"
        for path in (self.project, self.bin):
            path.mkdir()
        for name in ("setup.sh", "requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, self.project)
        (self.project / "src" / "rlcb").mkdir(parents=True)
        (self.project / "src" / "rlcb" / "__init__.py").touch()
        for tool in "bash cat cp dirname grep ls mkdir mktemp mv rm tail touch uname".split():  # noqa: SIM905
            found = shutil.which(tool)
            assert found, f"{tool} is missing on this machine"
            (self.bin / tool).symlink_to(found)
        self.script(self.bin / "c++", "#!/bin/bash\nexit 1\n")
        (folder / "pip_config").write_text("")
        (folder / "verify").write_text("cpu\nPython, torch and procgen work\n")
        self.script(folder / "uv", f"#!/bin/bash\necho \"uv $*\" >>'{folder}/calls'\n")
        self.report(CPU_TORCH)

    def script(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def python(self, name: str, facts: str, has_venv: bool = True) -> Path:
        """Put an interpreter on the PATH that says it is `facts`, such as "3.11 CPython linux x86_64"."""
        text = FAKE_PYTHON.format(
            here=self.here, facts=facts, has_venv="yes" if has_venv else "no", real=sys._base_executable
        )
        self.script(self.bin / name, text)
        return self.bin / name

    def fitting_python(self) -> None:
        """One whose version is that of the Python that runs the tests."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self.python("python3", f"{version} CPython linux x86_64")

    def report(self, torch: dict[str, object]) -> None:
        """What pip's dry run says it would install as torch."""
        (self.here / "report.json").write_text(json.dumps({"install": [{"metadata": torch}]}))

    def setup(self, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run setup.sh with nothing in the environment but what it needs and what is given."""
        here = str(self.here)
        return subprocess.run(
            [str(self.project / "setup.sh"), *flags],
            env={"PATH": str(self.bin), "HOME": here, "TMPDIR": here, **environment},
            cwd=here,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """What was asked of venv, pip and uv since the last time, in order."""
        log = self.here / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    @property
    def stamp(self) -> Path:
        return self.project / "venv" / ".setup-stamp"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, f"expected one line, got {text!r}"
    return lines[0]


# --- Which Python -------------------------------------------------------------------------------------------


def test_pythons_that_do_not_fit_are_refused_in_one_line_that_names_those_that_do(scene: Scene) -> None:
    scene.python("python3", "3.13 CPython linux x86_64")
    scene.python("python3.11", "3.11 PyPy linux x86_64")
    result = scene.setup()
    assert result.returncode == 2
    line = only_line(result.stderr)
    assert "3.10 to 3.12" in line
    assert "3.13" in line, "the line says what was found"
    assert not (scene.project / "venv").exists()


def test_no_python_at_all_is_refused_in_one_line(scene: Scene) -> None:
    result = scene.setup()
    assert result.returncode == 2
    assert "3.10 to 3.12" in only_line(result.stderr)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12"])
def test_each_supported_python_is_taken(scene: Scene, version: str) -> None:
    path = scene.python(f"python{version}", f"{version} CPython linux x86_64")
    result = scene.setup("--plan")
    assert result.returncode == 0, result.stderr
    assert f"{path} -m venv" in result.stdout


def test_a_shim_that_fails_is_passed_over(scene: Scene) -> None:
    scene.script(scene.bin / "python3.11", "#!/bin/bash\necho 'shim: no such version' >&2\nexit 127\n")
    path = scene.python("python3.12", "3.12 CPython linux x86_64")
    result = scene.setup("--plan")
    assert result.returncode == 0, result.stderr
    assert f"{path} -m venv" in result.stdout
    assert result.stderr == ""


def test_behind_a_failing_shim_the_same_name_later_on_the_path_is_found(scene: Scene) -> None:
    shims = scene.here / "shims"
    shims.mkdir()
    scene.script(shims / "python3.11", "#!/bin/bash\nexit 127\n")
    path = scene.python("python3.11", "3.11 CPython linux x86_64")
    result = scene.setup("--plan", PATH=f"{shims}:{scene.bin}")
    assert result.returncode == 0, result.stderr
    assert f"{path} -m venv" in result.stdout


def test_the_variable_python_chooses(scene: Scene) -> None:
    scene.python("python3.11", "3.11 CPython linux x86_64")
    path = scene.python("my-python", "3.10 CPython linux x86_64")
    result = scene.setup("--plan", PYTHON=str(path))
    assert result.returncode == 0, result.stderr
    assert f"{path} -m venv" in result.stdout


def test_a_python_asked_for_that_does_not_fit_is_not_replaced_silently(scene: Scene) -> None:
    scene.python("python3.11", "3.11 CPython linux x86_64")
    path = scene.python("old-python", "3.9 CPython linux x86_64")
    result = scene.setup("--plan", PYTHON=str(path))
    assert result.returncode == 2
    line = only_line(result.stderr)
    assert "3.10 to 3.12" in line
    assert "3.9" in line


def test_a_python_without_venv_names_the_package_to_install(scene: Scene) -> None:
    scene.python("python3.11", "3.11 CPython linux x86_64", has_venv=False)
    result = scene.setup()
    assert result.returncode == 2
    assert "apt-get install python3.11-venv" in only_line(result.stderr)


def test_another_fitting_python_is_preferred_to_one_without_venv(scene: Scene) -> None:
    scene.python("python3.11", "3.11 CPython linux x86_64", has_venv=False)
    path = scene.python("python3.10", "3.10 CPython linux x86_64")
    result = scene.setup("--plan")
    assert result.returncode == 0, result.stderr
    assert f"{path} -m venv" in result.stdout


@pytest.mark.parametrize(
    ("facts", "named"),
    [("3.11 CPython darwin arm64", "Apple silicon"), ("3.11 CPython linux aarch64", "linux aarch64")],
)
def test_machines_that_procgen_was_not_built_for_are_refused(scene: Scene, facts: str, named: str) -> None:
    scene.python("python3.11", facts)
    result = scene.setup()
    assert result.returncode == 2
    line = only_line(result.stderr)
    assert "Procgen" in line
    assert named in line


# --- Which torch --------------------------------------------------------------------------------------------


def test_without_sources_of_its_own_pip_leaves_the_cpu_build_to_uv(scene: Scene) -> None:
    scene.fitting_python()
    result = scene.setup(TORCH_BUILD="cpu")
    assert result.returncode == 0, result.stderr
    calls = scene.calls()
    assert any(call.startswith("uv pip install") and "--torch-backend=cpu" in call for call in calls), calls
    assert not any(call == PIP for call in calls), calls


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"])
def test_sources_in_the_environment_mean_plain_pip(scene: Scene, variable: str) -> None:
    scene.fitting_python()
    result = scene.setup("--plan", TORCH_BUILD="cpu", **{variable: "/some/folder"})
    assert result.returncode == 0, result.stderr
    assert PIP in result.stdout
    assert "uv" not in result.stdout


@pytest.mark.parametrize(
    ("settings", "plain_pip"),
    [
        ("global.find-links='/some/folder'", True),
        ("global.timeout='60'\nuser.index-url='file:///some/folder'", True),
        ("install.extra-index-url='file:///some/folder'", True),
        ("global.timeout='60'", False),
        ("global.find-links=''", False),
        ("global.disable-pip-version-check='1'\nglobal.progress-bar='off'", False),
    ],
)
def test_sources_in_pips_configuration_mean_plain_pip(scene: Scene, settings: str, plain_pip: bool) -> None:
    scene.fitting_python()
    (scene.here / "pip_config").write_text(settings + "\n")
    result = scene.setup("--plan", TORCH_BUILD="cpu")
    assert result.returncode == 0, result.stderr
    assert (PIP in result.stdout) == plain_pip
    assert ("--torch-backend=cpu" in result.stdout) != plain_pip


@pytest.mark.parametrize("torch", [CUDA_TORCH, CPU_TORCH | {"version": "2.13.0+cu130"}])
def test_a_cuda_build_is_refused_before_anything_is_installed(scene: Scene, torch: dict[str, object]) -> None:
    scene.fitting_python()
    scene.report(torch)
    result = scene.setup(TORCH_BUILD="cpu", PIP_FIND_LINKS="/some/folder")
    assert result.returncode == 2
    line = only_line(result.stderr)
    assert "CUDA" in line
    assert "TORCH_BUILD=default" in line
    assert PIP not in scene.calls()
    assert not scene.stamp.exists()


def test_a_cpu_build_from_pips_sources_is_installed(scene: Scene) -> None:
    scene.fitting_python()
    result = scene.setup(TORCH_BUILD="cpu", PIP_FIND_LINKS="/some/folder")
    assert result.returncode == 0, result.stderr
    assert PIP in scene.calls()


def test_cuda_is_taken_when_asked_for(scene: Scene) -> None:
    scene.fitting_python()
    scene.report(CUDA_TORCH)
    (scene.here / "verify").write_text("cuda\nall works\n")
    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 0, result.stderr
    assert PIP in scene.calls()


def test_a_cuda_build_that_got_in_all_the_same_is_reported(scene: Scene) -> None:
    scene.fitting_python()
    (scene.here / "verify").write_text("cuda\nall works\n")
    result = scene.setup(TORCH_BUILD="cpu")
    assert result.returncode == 1
    assert "CUDA" in only_line(result.stderr)
    assert not scene.stamp.exists()


@pytest.mark.skipif(NVIDIA_DEVICE, reason="this machine has an NVIDIA GPU")
def test_linux_without_a_gpu_gets_the_cpu_build(scene: Scene) -> None:
    scene.fitting_python()
    scene.script(scene.bin / "nvidia-smi", "#!/bin/bash\nexit 9\n")  # a driver without a GPU
    result = scene.setup("--plan")
    assert result.returncode == 0, result.stderr
    assert "--torch-backend=cpu" in result.stdout


def test_with_a_gpu_pip_decides(scene: Scene) -> None:
    scene.fitting_python()
    scene.script(scene.bin / "nvidia-smi", "#!/bin/bash\necho 'GPU 0: a GPU'\n")
    result = scene.setup("--plan")
    assert result.returncode == 0, result.stderr
    assert PIP in result.stdout
    assert "--torch-backend" not in result.stdout
    assert "--report" not in result.stdout


def test_an_unknown_torch_build_is_refused(scene: Scene) -> None:
    scene.fitting_python()
    result = scene.setup(TORCH_BUILD="gpu")
    assert result.returncode == 2
    line = only_line(result.stderr)
    assert "gpu" in line
    assert "cpu or default" in line


# --- Once, again, and after trouble -------------------------------------------------------------------------


def test_the_second_run_asks_nothing_of_pip(scene: Scene) -> None:
    scene.fitting_python()
    first = scene.setup(TORCH_BUILD="default")
    assert first.returncode == 0, first.stderr
    assert "Python, torch and procgen work" in first.stdout
    assert scene.calls() == ["venv", PIP, PACKAGE, KERNELS, "verify"]
    os.utime(scene.stamp, (1, 1))

    second = scene.setup()
    assert second.returncode == 0, second.stderr
    assert "up to date" in second.stdout
    assert scene.calls() == []
    assert scene.stamp.stat().st_mtime > 1, "make compares the stamp's age with requirements.txt"


def test_without_a_compiler_that_of_ziglang_is_installed(scene: Scene) -> None:
    scene.fitting_python()
    (scene.bin / "c++").unlink()
    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 0, result.stderr
    assert scene.calls() == ["venv", PIP, PACKAGE, "pip install --quiet ziglang", KERNELS, "verify"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "OSError: cannot load '/x/libenv.so': libGL.so.1: cannot open shared object file: No such file",
            "Procgen needs libGL.so.1 of the system: apt-get install libgl1 libglib2.0-0, and run it again",
        ),
        ("ValueError: no", "the installation does not work: ValueError: no (rm -r venv and run it again)"),
    ],
)
def test_an_installation_that_does_not_work_is_reported_with_what_to_do(
    scene: Scene, error: str, said: str
) -> None:
    scene.fitting_python()
    (scene.here / "error").write_text(f"Traceback\n{error}\n")
    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 1
    assert only_line(result.stderr) == f"setup.sh: {said}"
    assert not scene.stamp.exists()


def test_a_package_installed_from_another_folder_is_installed_again(scene: Scene) -> None:
    scene.fitting_python()
    assert scene.setup(TORCH_BUILD="default").returncode == 0
    shutil.copytree(scene.project / "src", scene.here / "moved" / "src")
    (link,) = scene.project.glob("venv/lib/python*/site-packages/rlcb.pth")
    link.write_text(f"{scene.here}/moved/src\n")
    scene.calls()

    again = scene.setup(TORCH_BUILD="default")
    assert again.returncode == 0, again.stderr
    assert scene.calls() == [PIP, PACKAGE, KERNELS, "verify"]
    assert link.read_text() == f"{scene.project}/src\n"


def test_changed_requirements_are_installed_into_the_same_environment(scene: Scene) -> None:
    scene.fitting_python()
    scene.setup(TORCH_BUILD="default")
    scene.calls()
    with (scene.project / "requirements.txt").open("a") as file:
        file.write("# one more line\n")
    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 0, result.stderr
    assert scene.calls() == [PIP, PACKAGE, KERNELS, "verify"]


@pytest.mark.parametrize("trouble", ["kill", "fail"])
def test_after_an_interrupted_or_failed_run_the_next_one_finishes(scene: Scene, trouble: str) -> None:
    scene.fitting_python()
    (scene.here / trouble).touch()
    broken = scene.setup(TORCH_BUILD="default")
    assert broken.returncode == {"kill": -9, "fail": 1}[trouble]
    assert not scene.stamp.exists()
    scene.calls()

    (scene.here / trouble).unlink(missing_ok=True)
    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 0, result.stderr
    assert scene.calls() == [PIP, PACKAGE, KERNELS, "verify"]
    assert scene.stamp.exists()


def test_after_an_interrupted_update_going_back_to_the_old_requirements_installs_them(scene: Scene) -> None:
    scene.fitting_python()
    scene.setup(TORCH_BUILD="default")
    requirements = scene.project / "requirements.txt"
    before = requirements.read_text()
    requirements.write_text(before + "# one more line\n")
    (scene.here / "kill").touch()
    scene.setup(TORCH_BUILD="default")
    scene.calls()

    requirements.write_text(before)
    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 0, result.stderr
    assert scene.calls() == [PIP, PACKAGE, KERNELS, "verify"]


def test_half_installed_packages_are_forgotten_so_that_pip_installs_them_again(scene: Scene) -> None:
    scene.fitting_python()
    (scene.here / "fail").touch()
    scene.setup(TORCH_BUILD="default")
    (scene.here / "fail").unlink()
    (site,) = (scene.project / "venv").glob("lib/python*/site-packages")
    for name, record in {"whole": "whole.py,,\n", "lacking": "gone.py,,\n", "unlisted": None}.items():
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        if record is not None:
            (info / "RECORD").write_text(record)
    (site / "whole.py").touch()

    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 0, result.stderr
    assert {path.name for path in site.glob("*.dist-info")} >= {"whole-1.0.dist-info"}
    assert not (site / "lacking-1.0.dist-info").exists()
    assert not (site / "unlisted-1.0.dist-info").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(scene: Scene) -> None:
    scene.fitting_python()
    scene.setup(TORCH_BUILD="default")
    scene.calls()
    python = scene.project / "venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    result = scene.setup(TORCH_BUILD="default")
    assert result.returncode == 0, result.stderr
    assert scene.calls() == ["venv", PIP, PACKAGE, KERNELS, "verify"]


def test_a_folder_that_is_no_environment_is_left_alone(scene: Scene) -> None:
    scene.fitting_python()
    keep = scene.project / "precious"
    keep.mkdir()
    (keep / "thesis.txt").write_text("years of work")
    result = scene.setup(VENV="precious")
    assert result.returncode == 2
    assert "precious" in only_line(result.stderr)
    assert (keep / "thesis.txt").read_text() == "years of work"


def test_a_plan_changes_nothing(scene: Scene) -> None:
    scene.fitting_python()
    before = sorted(path.name for path in scene.here.rglob("*"))
    result = scene.setup("--plan", TORCH_BUILD="cpu")
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in scene.here.rglob("*")) == before


def test_help_explains_and_unknown_options_are_refused(scene: Scene) -> None:
    help_text = scene.setup("--help")
    assert help_text.returncode == 0
    for word in ("PYTHON", "VENV", "TORCH_BUILD", "--plan"):
        assert word in help_text.stdout
    refused = scene.setup("--hepl")
    assert refused.returncode == 2
    assert "--hepl" in only_line(refused.stderr)


# --- Makefile -----------------------------------------------------------------------------------------------


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_make_alone_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    targets = phony.group(1).split()
    assert {"install", "test", "lint", "benchmark", "train", "evaluate", "clean"} <= set(targets)
    result = make()
    assert result.returncode == 0, result.stderr
    for target in targets:
        assert re.search(rf"^  {target}  +\S", result.stdout, re.MULTILINE), f"{target} has no line"
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile, an environment in place, and programs that print their arguments."""
    for name in ("Makefile", "setup.sh", "requirements.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "venv" / ".setup-stamp").touch()
    for name in ("compare_results", "evaluate", "plot_results", "run_benchmark", "train"):
        (tmp_path / f"{name}.py").write_text("import sys\nprint(sys.argv)\n")
    return tmp_path


def test_make_evaluate_takes_the_newest_final_checkpoint(clone: Path) -> None:
    for age, name in enumerate(["runs/new run/checkpoints/b_final.pt", "benchmarks/old/a_final.pt"]):
        path = clone / name
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (2_000_000_000 - age, 2_000_000_000 - age))
    (clone / "runs/new run/checkpoints/b_step_9.pt").touch()
    result = make("evaluate", "EPISODES=7", "ARGS=--split test", folder=clone)
    assert result.returncode == 0, result.stderr
    arguments = result.stdout.splitlines()[-1]
    newest = "runs/new run/checkpoints/b_final.pt"
    assert arguments == str(["evaluate.py", "--checkpoint", newest, "--num-episodes", "7", "--split", "test"])


@pytest.mark.parametrize(
    ("target", "named"),
    [("evaluate", "*_final.pt"), ("plot", "metrics.jsonl"), ("compare", "study.yaml")],
)
def test_make_says_in_one_line_that_there_is_nothing_to_show(clone: Path, target: str, named: str) -> None:
    result = make(target, folder=clone)
    assert result.returncode != 0
    assert named in only_line("\n".join(x for x in result.stderr.splitlines() if not x.startswith("make")))


def test_make_train_leaves_to_the_configuration_what_is_not_given(clone: Path) -> None:
    plain = make("train", folder=clone)
    assert plain.stdout.splitlines()[-1] == str(["train.py", "--algorithm", "ppo", "--mode", "sequential"])
    given = make("train", "ENV=coinrun", "SEED=3", "OUTPUT=my runs/a", folder=clone)
    expected = ["--output-dir", "my runs/a", "--env", "coinrun", "--seed", "3"]
    assert given.stdout.splitlines()[-1].endswith(str(expected)[1:])


def test_make_benchmark_plans_a_study_whose_parts_can_be_set_and_resumes_it(clone: Path) -> None:
    def arguments(*settings: str) -> list[str]:
        result = make("benchmark", "OUTPUT=my study", *settings, folder=clone)
        assert result.returncode == 0, result.stderr
        return ast.literal_eval(result.stdout.splitlines()[-1])

    folder = ("--output-dir", "my study")
    assert arguments() == ["run_benchmark.py", "--hours", *folder]
    assert arguments("HOURS=1") == ["run_benchmark.py", "--hours", "1", *folder]
    given = ("ENVS=coinrun maze", "SEEDS=1 2", "DURATION=0.5", "EPISODES=7", "ARGS=--cooldown 9")
    flags = [
        *("--envs", "coinrun", "maze", "--seeds", "1", "2", "--duration", "0.5"),
        *("--evaluate-episodes", "7", *folder, "--cooldown", "9"),
    ]
    assert arguments(*given) == ["run_benchmark.py", "--hours", *flags]
    (clone / "my study").mkdir()
    (clone / "my study" / "study.yaml").touch()
    assert arguments(*given, "HOURS=1") == ["run_benchmark.py", *flags]


def test_make_compare_takes_the_newest_study_or_the_runs_that_are_named(clone: Path) -> None:
    for age, name in enumerate(["benchmarks/new one", "benchmarks/old"]):
        path = clone / name / "study.yaml"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (2_000_000_000 - age, 2_000_000_000 - age))
    newest = make("compare", folder=clone).stdout.splitlines()[-1]
    picture = "benchmarks/new one/comparison.png"
    assert ast.literal_eval(newest) == [
        "compare_results.py",
        "--runs",
        "benchmarks/new one",
        "--output",
        picture,
    ]
    named = make("compare", "RUNS=runs/a runs/b", "OUTPUT=c.png", folder=clone).stdout.splitlines()[-1]
    assert ast.literal_eval(named) == [
        "compare_results.py",
        "--runs",
        "runs/a",
        "runs/b",
        "--output",
        "c.png",
    ]


def test_make_clean_removes_caches_and_nothing_else(clone: Path) -> None:
    (clone / "src" / "__pycache__").mkdir(parents=True)
    (clone / ".pytest_cache").mkdir()
    (clone / "runs" / "a" / "__pycache__").mkdir(parents=True)
    result = make("clean", folder=clone)
    assert result.returncode == 0, result.stderr
    assert not (clone / "src" / "__pycache__").exists()
    assert not (clone / ".pytest_cache").exists()
    assert (clone / "runs" / "a" / "__pycache__").exists()
    assert (clone / "venv" / "bin" / "python").exists()
