#!/usr/bin/env bash
# Makes venv/, installs the requirements and this package into it, and checks the result. For bash 3.2 or later.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
    cat <<'TEXT'
Usage: ./setup.sh [--plan] [--help]

Makes a virtual environment in venv/, installs requirements.txt, requirements-dev.txt (tools for tests and
style) and this package into it, compiles the kernels of the convolutions for this processor, and checks that
torch, Gymnasium and Procgen work. The package is installed
editable: the command venv/bin/rlcb and `import rlcb` use the files of this folder. Run it again at any time:
it does nothing if all is in place, updates packages if the requirements have changed, and repairs an
interrupted setup.

  --plan   print the steps, change nothing
  --help   print this text

Environment variables:
  PYTHON       the Python to use (3.10 to 3.12); by default the first one on the PATH of python3.11,
               python3.12, python3.10 and python3
  VENV         the folder of the virtual environment, relative to this folder (default: venv)
  TORCH_BUILD  cpu: accept only a torch without CUDA; default: install the torch that pip chooses.
               If not set: cpu on Linux without an NVIDIA GPU, default elsewhere

The CPU build of torch comes from pip's package sources if any are configured (PIP_INDEX_URL,
PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, or pip's configuration file); if they offer a CUDA build, setup stops
before it installs anything. Otherwise uv, installed into the virtual environment, downloads the CPU build.
TEXT
}

# --- Messages -----------------------------------------------------------------------------------------------

say() { printf '%s\n' "$*"; }

die() {  # die CODE MESSAGE: print one line on stderr; code 2: the user can correct it, code 1: a step failed
    printf 'setup.sh: %s\n' "$2" >&2
    exit "$1"
}

run() {  # run COMMAND...: run it, or only print it with --plan
    if [ "$plan" = no ]; then "$@"; else say "would run:$(printf ' %q' "$@")"; fi
}

# --- Small programs for Python ------------------------------------------------------------------------------

# Prints version, implementation, system and machine of an interpreter. Must run in Python 2 as well.
PROBE='import platform, sys
system = "linux" if sys.platform.startswith("linux") else sys.platform
facts = sys.version_info[0], sys.version_info[1], platform.python_implementation(), system, platform.machine()
sys.stdout.write("%d.%d %s %s %s\n" % facts)'

# Prints what the stamp of a finished setup contains: a hash of the requirements, and the Python version.
KEY='import hashlib, sys
wanted = b"".join(open(name, "rb").read() for name in ("requirements.txt", "requirements-dev.txt"))
print(hashlib.sha256(wanted).hexdigest(), "%d.%d" % sys.version_info[:2])'

# Fails if `import rlcb` does not use the files of this folder, as after the folder has been moved.
OF_THIS_FOLDER='import importlib.util, pathlib, sys
found = importlib.util.find_spec("rlcb")
sys.exit(found is None or not pathlib.Path(found.origin).samefile("src/rlcb/__init__.py"))'

# Prints the build of the torch in the virtual environment, "cpu" or "cuda", or "absent" if its version is not
# the one in requirements.txt.
TORCH_STATE='import importlib.metadata, pathlib, re, runpy
try:
    found = importlib.metadata.distribution("torch")
    wanted = re.findall(r"(?m)^torch==([^\s;]+)", open("requirements.txt").read())
    facts = runpy.run_path(str(pathlib.Path(found.locate_file("torch")) / "version.py"))
    state = ("cuda" if facts.get("cuda") else "cpu") if found.version.split("+")[0] in wanted else "absent"
except (importlib.metadata.PackageNotFoundError, OSError):
    state = "absent"
print(state)'

# Prints the version of the torch in a report of `pip install --dry-run` if it is a CUDA build.
CUDA_IN_REPORT='import json, re, sys
for item in json.load(open(sys.argv[1]))["install"]:
    about = item["metadata"]
    needs_cuda = any(re.match(r"(nvidia|cuda)[-_]", need) for need in about.get("requires_dist", []))
    if about["name"] == "torch" and (needs_cuda or "+cu" in about["version"]):
        print(about["version"])'

# A killed installation leaves packages without their list of files, or with missing files. Removes the
# metadata of such packages, so that pip installs them again.
FORGET_BROKEN='import importlib.metadata, pathlib, shutil, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
for info in sorted(site.glob("*.dist-info")):
    files = importlib.metadata.Distribution.at(info).files
    if not files or not all(f.locate().exists() for f in files if f.suffix != ".pyc"):
        print("repairing " + info.name[: -len(".dist-info")])
        shutil.rmtree(info)'

VERIFY='import importlib.metadata as md, platform
import argcomplete, gym, gymnasium, imageio_ffmpeg, jinja2, matplotlib, numpy
import psutil, pydantic, rich, scipy, shimmy, torch, yaml
from procgen import ProcgenGym3Env
imageio_ffmpeg.get_ffmpeg_exe()
env = ProcgenGym3Env(num=2, env_name="coinrun", num_levels=1, start_level=0)
for step in range(10):
    env.act(numpy.full(2, step % 15, dtype=numpy.int32))
    reward, observation, first = env.observe()
assert observation["rgb"].shape == (2, 64, 64, 3) and observation["rgb"].any(), "coinrun shows nothing"
env.close()
torch.nn.Conv2d(3, 8, 3)(torch.zeros(1, 3, 64, 64)).sum().backward()
procgen = {d.metadata["Name"] for d in md.distributions()} & {"procgen", "procgen-mirror"}
print("cuda" if torch.version.cuda else "cpu")
print("Python %s, torch %s, numpy %s, gymnasium %s, %s; coinrun steps" % (
      platform.python_version(), torch.__version__, numpy.__version__, gymnasium.__version__,
      " ".join(sorted(name + " " + md.version(name) for name in procgen))))'

# --- Which Python -------------------------------------------------------------------------------------------

# Fails if the command exists but does not run, for example a pyenv shim.
probe() { "$1" -c "$PROBE" 2>/dev/null </dev/null; }

fits() {  # fits "3.11 CPython linux x86_64"
    case "$1" in
        "3.10 CPython darwin x86_64") return 0 ;;  # Procgen was built for Intel Macs up to 3.10
        *" darwin "*) return 1 ;;
        "3.10 CPython "* | "3.11 CPython "* | "3.12 CPython "*) return 0 ;;
        *) return 1 ;;
    esac
}

candidates() {  # prints one path a line; a working Python may stand behind a failing shim on the PATH
    local name
    if [ -n "${PYTHON:-}" ]; then
        type -aP "$PYTHON" || true
        return
    fi
    for name in python3.11 python3.12 python3.10 python3; do type -aP "$name" || true; done
}

pick_python() {  # sets python and python_facts, or exits with the reason
    local path facts found="" bare="" version
    while IFS= read -r path; do
        facts=$(probe "$path") || continue
        refuse_platform "$facts"
        version="${facts%% *}"
        if ! fits "$facts"; then
            case ", $found," in *", $version ("*) ;; *) found="${found:+$found, }$version ($path)" ;; esac
        elif ! "$path" -c 'import ensurepip, venv' >/dev/null 2>&1 </dev/null; then
            bare="${bare:-$version ($path)}"
        else
            python=$path
            python_facts=$facts
            return
        fi
    done < <(candidates)
    if [ -n "$bare" ]; then
        die 2 "Python $bare cannot make virtual environments: apt-get install python${bare%% *}-venv"
    fi
    local wanted="needs Python 3.10 to 3.12"
    if [ "$(uname -s)" = Darwin ]; then
        wanted="needs Python 3.10, the last that Procgen was built for on a Mac"
    fi
    die 2 "$wanted, found ${found:-none that runs}${PYTHON:+ for PYTHON=$PYTHON}; set PYTHON to one that fits"
}

refuse_platform() {
    case "$1" in
        *" linux x86_64" | *" darwin x86_64") ;;
        *" darwin arm64") die 2 "Procgen was not built for Apple silicon: use Linux or an Intel Mac" ;;
        *) die 2 "Procgen was not built for ${1#* * }: use Linux on x86_64 or an Intel Mac" ;;
    esac
}

# --- Which torch --------------------------------------------------------------------------------------------

has_nvidia_gpu() { [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; }

choose_build() {  # sets build to cpu or default, and why
    case "${TORCH_BUILD:-}" in
        cpu | default) build=$TORCH_BUILD why="set by TORCH_BUILD" ;;
        "")
            if [[ "$python_facts" != *" linux "* ]]; then build=default why="only Linux has CUDA builds"
            elif has_nvidia_gpu; then build=default why="this machine has an NVIDIA GPU"
            else build=cpu why="this machine has no NVIDIA GPU"; fi ;;
        *) die 2 "TORCH_BUILD is '$TORCH_BUILD'; it must be cpu or default" ;;
    esac
}

pip_has_sources() {  # pip_has_sources PYTHON
    if [ -n "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}${PIP_FIND_LINKS:-}" ]; then return 0; fi
    local settings
    settings=$("$1" -m pip config list 2>/dev/null </dev/null) || return 1
    [[ "$settings" =~ (index-url|find-links)=.{3} ]]  # more than the two quotes of an empty value
}

refuse_cuda() {  # exits if pip would install a CUDA build of torch; runs before anything is installed
    local version
    # Since pip 23.3 a dry run reads only the metadata and does not download the package.
    run "$vpy" -m pip install --quiet 'pip>=23.3' ||
        die 1 "pip could not be updated (see its output above)"
    run "$vpy" -m pip install --quiet --dry-run --no-deps --ignore-installed \
        --report "$scratch/report.json" -r "$scratch/torch.txt" ||
        die 1 "pip found no torch that fits (see its output above)"
    if [ "$plan" = yes ]; then return; fi
    version=$("$vpy" -c "$CUDA_IN_REPORT" "$scratch/report.json")
    if [ -n "$version" ]; then
        die 2 "pip's sources offer a CUDA build of torch ($version), but $why:$(
            ) give pip a source that has a CPU build, or accept CUDA with TORCH_BUILD=default"
    fi
}

# --- The steps ----------------------------------------------------------------------------------------------

make_venv() {
    if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
        die 2 "$venv exists and is not a virtual environment: move it away, or set VENV to another folder"
    fi
    say "Making $venv/ with Python ${python_facts%% *} ($python)"
    run "$python" -m venv --clear "$venv" || die 1 "the virtual environment could not be made"
}

install() {
    local state=absent
    rm_stamp
    if [ -x "$vpy" ]; then
        if [ "$plan" = no ]; then "$vpy" -c "$FORGET_BROKEN"; fi
        state=$("$vpy" -c "$TORCH_STATE")
    fi
    if [ "$build" = cpu ] && [ "$state" = cuda ]; then
        if [ -n "${TORCH_BUILD:-}" ]; then
            die 2 "$venv holds a CUDA build of torch: remove $venv, or keep it with TORCH_BUILD=default"
        fi
        build=default why="$venv already holds a CUDA build"
    fi
    say "Installing the requirements (torch: $build build; $why)"
    case "$python_facts" in *" linux "*) ;; *) build=default ;; esac
    if [ "$build" = cpu ] && ! pip_has_sources "$([ -x "$vpy" ] && echo "$vpy" || echo "$python")"; then
        run "$vpy" -m pip install --quiet 'uv>=0.7' ||
            die 1 "uv could not be installed (see pip's output above)"
        run "$venv/bin/uv" pip install --python "$vpy" --torch-backend=cpu \
            -r requirements.txt -r requirements-dev.txt ||
            die 1 "installing the requirements failed (see uv's output above); run it again to continue"
    else
        if [ "$build" = cpu ] && [ "$state" = absent ]; then refuse_cuda; fi
        run "$vpy" -m pip install -r requirements.txt -r requirements-dev.txt ||
            die 1 "installing the requirements failed (see pip's output above); run it again to continue"
    fi
    run "$vpy" -m pip install --quiet --no-deps --no-build-isolation --editable . ||
        die 1 "this package could not be installed (see pip's output above)"
}

# A failure is no reason to stop: PyTorch's kernels compute the convolutions then, at half the speed.
build_kernels() {
    if [ -z "${CXX:-}$(type -P c++ g++ clang++)" ]; then
        say "Installing ziglang, whose C++ compiler builds the kernels (this system has none)"
        run "$vpy" -m pip install --quiet ziglang || say "ziglang could not be installed (see pip's output above)"
    fi
    run "$vpy" -m rlcb.kernels.build || true
}

verify() {
    local report error missing='(lib[^:/ ]+): cannot open shared object file'
    if [ "$plan" = yes ]; then
        say "would check: torch, gymnasium and procgen import, coinrun steps"
        return
    fi
    if ! report=$("$vpy" -W ignore -c "$VERIFY" 2>"$scratch/errors"); then
        error=$(tail -n 1 "$scratch/errors")
        if [[ "$error" =~ $missing ]]; then
            die 1 "Procgen needs ${BASH_REMATCH[1]} of the system: apt-get install libgl1 libglib2.0-0, and run it again"
        fi
        die 1 "the installation does not work: $error (rm -r $venv and run it again)"
    fi
    if [ "$build" = cpu ] && [ "${report%%$'\n'*}" != cpu ]; then
        die 1 "torch came as a CUDA build, but $why: remove $venv, or accept it with TORCH_BUILD=default"
    fi
    say "${report#*$'\n'}"
}

rm_stamp() { if [ "$plan" = no ]; then rm -f "$stamp"; fi; }

write_stamp() {  # the last step, so that an interrupted setup has no stamp
    if [ "$plan" = yes ]; then return; fi
    "$vpy" -c "$KEY" >"$stamp.new"
    mv "$stamp.new" "$stamp"
}

up_to_date() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$("$vpy" -c "$KEY")" ] || return 1
    "$vpy" -c "$OF_THIS_FOLDER" 2>/dev/null || return 1
    [ "${TORCH_BUILD:-}" != cpu ] || [ "$("$vpy" -c "$TORCH_STATE")" = cpu ]
}

venv_is_usable() {  # true if its Python runs, fits, has pip and has the version asked for
    venv_facts=$(probe "$vpy") && fits "$venv_facts" || return 1
    if [ -n "${PYTHON:-}" ]; then
        pick_python
        [ "${python_facts%% *}" = "${venv_facts%% *}" ] || return 1
    fi
    "$vpy" -c 'import pip' 2>/dev/null
}

main() {
    plan=no
    while [ $# -gt 0 ]; do
        case "$1" in
            -h | --help) usage; exit 0 ;;
            --plan) plan=yes ;;
            *) die 2 "unknown option '$1'; there are --plan and --help" ;;
        esac
        shift
    done
    venv="${VENV:-venv}"
    vpy="$venv/bin/python"
    stamp="$venv/.setup-stamp"
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/setup.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    grep -E '^torch *[=<>;]' requirements.txt >"$scratch/torch.txt"

    if venv_is_usable; then
        python=$vpy python_facts=$venv_facts
        choose_build
        if up_to_date; then
            if [ "$plan" = no ]; then touch "$stamp"; fi  # make compares its age with the requirements
            say "$venv/ is up to date (Python ${python_facts%% *})"
            exit 0
        fi
    else
        pick_python
        choose_build
        make_venv
    fi
    install
    build_kernels
    verify
    write_stamp
    if [ "$plan" = no ]; then
        say "Ready: 'make' lists the commands; 'source $venv/bin/activate' puts rlcb and python on the PATH"
    fi
}

main "$@"
